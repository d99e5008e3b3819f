"""What the broker cost one attempt: the errors of its context's calls, and the time they took.

An attempt that ends because the broker is away or full is not charged to its task.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.model.errors import BrokerError, Refused

_SLOW = 0.5  # seconds; a broker that is well answers within a hundredth of that
_SHARE = 0.1  # of its time limit that an attempt must have lost to the broker to be excused
_PROMPT = 0.05  # seconds; a call that fails sooner did not wait for the broker
_AWAY_PAUSE, _FULL_PAUSE = 1.0, 5.0  # seconds until a task comes back that was refused at once
_FULL = frozenset({"oom", "spool_full", "spool_failed"})  # the server, or what stands in for it


class BrokerFailures:
    """Of one attempt. May be used from any thread."""

    __slots__ = ("_calls", "_errors", "_lost", "_numbers", "_prompt")

    def __init__(self) -> None:
        self._errors: weakref.WeakSet[BrokerError] = weakref.WeakSet()
        self._prompt: weakref.WeakSet[BrokerError] = weakref.WeakSet()  # of these, without a wait
        self._calls: dict[int, float] = {}  # under way, and since when
        self._numbers = itertools.count()
        self._lost = 0.0  # seconds that slow calls took which are over

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Watch a call of the context: how long it takes, and what it fails with."""
        number, began = next(self._numbers), time.monotonic()
        self._calls[number] = began
        try:
            yield
        except BrokerError as error:
            self.note(error)
            if time.monotonic() - began < _PROMPT:
                self._prompt.add(error)
            raise
        finally:
            del self._calls[number]
            took = time.monotonic() - began
            if took > _SLOW:
                self._lost += took

    def note(self, error: BrokerError) -> None:
        """Remember an error that is the broker's own: it passes, or there is no room."""
        if error.passes or _is_full(error):
            self._errors.add(error)

    def caused(self, error: BaseException) -> bool:
        """Return whether the broker is to blame for what a handler raised, and nobody else."""
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.caused, error.exceptions))
        return isinstance(error, BrokerError) and error in self._errors

    def pause(self, error: BaseException) -> float:
        """Return the seconds after which the task may come back.

        None, if the call had waited for the broker. One that was refused at once would be refused
        again at once, and the handler would run in a circle.
        """
        if isinstance(error, BaseExceptionGroup):
            return max(map(self.pause, error.exceptions), default=0.0)
        if not isinstance(error, BrokerError):
            return 0.0
        if _is_full(error):
            return _FULL_PAUSE
        return _AWAY_PAUSE if error in self._prompt else 0.0

    def cost(self, limit: float) -> bool:
        """Return whether waiting for the broker took a fair part of an attempt's time limit."""
        now = time.monotonic()
        waits = max((now - began for began in list(self._calls.values())), default=0.0)
        lost = self._lost + (waits if waits > _SLOW else 0.0)
        return lost > _SLOW and lost >= _SHARE * limit


def _is_full(error: BrokerError) -> bool:
    return isinstance(error, Refused) and error.cause in _FULL
