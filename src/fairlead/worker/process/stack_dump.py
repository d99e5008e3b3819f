"""Where a process is: asked by a signal, answered in a file, even while it hangs or as it crashes.

The interpreter's fault handler writes the stacks without the help of the interpreter, so also from
within a call of C code that lasts for ever. If Python code runs, the handler that is set here adds
where each attempt waits, and says in shared memory whose code the loop was in.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Sequence
from types import FrameType

from fairlead.worker.inflight import Inflight
from fairlead.worker.process.shared_state import Row, SharedState, memory_file
from fairlead.worker.run.context import current

SIGNAL = signal.SIGUSR1

_MOST = 256 * 1024  # bytes that are read
_FRAME = re.compile(r'^  File "(.*)", line \d+ in (.*)$')


class StackFile:
    """A file without a name that a child writes its stacks to; the supervisor's end."""

    def __init__(self) -> None:
        self.fd = memory_file()

    def clear(self) -> None:
        """Forget what was written."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)  # the child writes at the same place

    def read(self) -> str:
        """What was written since."""
        return os.pread(self.fd, _MOST, 0).decode(errors="replace")

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


def dump_on_signal(fd: int, shared_state: SharedState, inflight: Inflight) -> None:
    """Write the stacks to this file from now on, at the signal and when the process crashes."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        # Called in the context of whatever the loop's thread is doing, so this is its attempt.
        context = current.get()
        row = None if context is None else inflight.row(context.id, context.token)
        parts = ["\nWhat runs here:\n"]
        parts += (running.where() for running in inflight)
        os.write(fd, "\n".join(parts).encode(errors="replace")[:_MOST])
        shared_state.answer(row)

    signal.signal(SIGNAL, handle)
    faulthandler.enable(file=fd, all_threads=True)
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=True)


def blamed(stack: str, places: Sequence[tuple[str, str]], rows: Sequence[Row]) -> list[str]:
    """The tasks that a crash or a hang is charged to, by the stack of the thread it was in.

    The innermost handler on it is to blame; of several attempts of it, nobody can say which one,
    and all of them are. Without a handler on the stack, all that have begun are.
    """
    started = [row for row in rows if row.started]
    numbers = {place: number for number, place in enumerate(places)}
    current = False
    for line in stack.splitlines():
        if line.startswith("Current thread"):
            current = True
        elif line.startswith(("Thread", "Extension modules", "What runs")):
            current = False
        elif current and (frame := _FRAME.match(line)):
            number = numbers.get((frame[1], frame[2]))
            found = [row.id for row in started if row.task == number]
            if found:
                return found
    return [row.id for row in started]
