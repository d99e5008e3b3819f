"""What signals tell a worker.

TERM and INT stop in good time, a second one at once. TSTP makes quiet: nothing is fetched any more,
until CONT. HUP replaces all children, one after the other; to a worker that was started from a
terminal it says that the terminal is gone, and stops it. USR1 shows where the code is.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from fairlead.worker.process.supervisor import Supervisor


class UnixSignals:
    """Passes signals on to a supervisor, for as long as the block lasts."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._showing: set[asyncio.Task[None]] = set()
        self._meanings: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: supervisor.stop,
            signal.SIGINT: supervisor.stop,
            signal.SIGTSTP: supervisor.quiet,
            signal.SIGCONT: supervisor.resume,
            signal.SIGHUP: supervisor.hang_up,
            signal.SIGUSR1: self._show_stacks,
        }

    def _show_stacks(self) -> None:
        task = asyncio.get_running_loop().create_task(self._supervisor.show_stacks())
        self._showing.add(task)
        task.add_done_callback(self._showing.discard)

    def __enter__(self) -> None:
        for number, meaning in self._meanings.items():
            asyncio.get_running_loop().add_signal_handler(number, meaning)

    def __exit__(self, *error: object) -> None:
        for number in self._meanings:
            asyncio.get_running_loop().remove_signal_handler(number)
