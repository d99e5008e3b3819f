"""An event loop whose time leaps to the next timer instead of passing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

__all__ = ("leaping",)

_PATIENCE = 5.0  # seconds for a thread


class _Leaps(selectors.SelectSelector):
    """Where nothing is ready, the time that would be waited for is added up."""

    def __init__(self) -> None:
        super().__init__()
        self.leapt = 0.0  # seconds

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(_PATIENCE if timeout is None else 0)
        if not ready:
            assert timeout is not None, "the program waits for something that never comes"
            self.leapt += max(timeout, 0.0)
        return ready


class _LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaps = _Leaps()
        super().__init__(self._leaps)

    def time(self) -> float:
        return self._leaps.leapt


def leaping(program: Coroutine[Any, Any, None]) -> None:
    """Run a program that waits for timers alone: by the loop's clock it takes what it waits for.

    So what it takes does not depend on the machine. Threads that it waits for have no time.
    """
    with asyncio.Runner(loop_factory=_LeapingLoop) as runner:
        runner.run(program)
