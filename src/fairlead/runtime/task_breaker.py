"""A circuit breaker of this process: tasks whose service is down wait instead of failing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from fairlead.model.errors import InvalidOption
from fairlead.model.limits import check_count

_MAX_COOLDOWN = 86_400.0  # seconds
_WHILE_PROBING = 0.1  # of the cooldown: how soon to ask again while others try


class Breaker:
    """Closed at first: attempts run. After so many ``failures`` in a row it is open: none do.

    ``cooldown`` seconds later it is half open, and lets up to ``probes`` attempts in at a time. A
    failure opens it again, ``probes`` successes in a row close it. Give it to one task or to
    several that use the same service: ``@app.task(breaker=breaker)``. It holds for this process.

    Workers ask and tell it on their event loop and nowhere else, so it has no lock. It does not
    know which attempt an outcome belongs to: one that began earlier counts like any other.
    """

    def __init__(
        self,
        *,
        failures: int = 5,
        cooldown: float = 30.0,
        probes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a breaker, which is closed.

        Args:
            failures: How many failures in a row open it. Default: 5.
            cooldown: Seconds until it is tried again. Default: 30.
            probes: How many attempts are let in then, and have to succeed. Default: 1.
            clock: Seconds that grow, for tests. Default: ``time.monotonic``.
        """
        check_count("failures", failures, 1)
        check_count("probes", probes, 1)
        _check_seconds("cooldown", cooldown)
        self.failures = failures
        self.cooldown = float(cooldown)
        self.probes = probes
        self._clock = clock
        self._failed = 0  # in a row, while closed
        self._until: float | None = None  # open until then; None: closed
        self._probing = 0  # attempts let in since, and not heard of
        self._good = 0  # of these, how many succeeded

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        """Whether attempts run, wait, or are tried out."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until else "half_open"

    def admit(self) -> float:
        """0 if an attempt may run now, else the seconds after which to ask again.

        Whoever is let in says how it went: ``succeeded``, ``failed``, or ``released`` if it tells
        nothing about the service.
        """
        if self._until is None:
            return 0.0
        left = self._until - self._clock()
        if left > 0:
            return left
        if self._probing + self._good >= self.probes:
            return self.cooldown * _WHILE_PROBING
        self._probing += 1
        return 0.0

    def succeeded(self) -> None:
        """Note that an attempt found the service well."""
        state = self.state
        if state == "closed":
            self._failed = 0
        elif state == "half_open":
            self._probing = max(self._probing - 1, 0)
            self._good += 1
            if self._good >= self.probes:
                self._failed, self._until = 0, None

    def failed(self) -> None:
        """Note that an attempt failed."""
        state = self.state
        if state == "closed":
            self._failed += 1
            if self._failed < self.failures:
                return
        elif state == "open":
            return  # it began before
        self._until = self._clock() + self.cooldown
        self._probing = self._good = 0

    def released(self) -> None:
        """Note that an attempt ended without a word about the service: its place is free."""
        if self.state == "half_open":
            self._probing = max(self._probing - 1, 0)

    def __repr__(self) -> str:
        return f"<Breaker {self.state}>"


def _check_seconds(option: str, value: object) -> None:
    # NaN fails the comparison, as it should.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= _MAX_COOLDOWN
    ):
        raise InvalidOption(option, value, f"a number above 0 and up to {_MAX_COOLDOWN:g} seconds")
