"""How long to wait before a retry, and whether to retry at all. The dice are an argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from fairlead.model.errors import InvalidOption

_LONGEST = 1e9  # seconds, about 31 years: what lies beyond is a slip, not a plan
_STEEPEST = 1e6

Jitter = Literal["full", "plus_minus", "none"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential delays: ``initial * factor**retry``, capped at ``max``, then jittered.

    ``full`` jitter picks anywhere between zero and the capped delay, so that tasks which failed
    together do not come back together. ``plus_minus`` moves it by at most ``spread`` to either
    side, which may exceed ``max`` by that fraction. ``none`` leaves it as it is.
    """

    initial: float = 1.0
    """Seconds before the first retry. Default: 1."""
    factor: float = 2.0
    """What each further delay is multiplied with. Default: 2."""
    max: float = 300.0
    """The longest delay, in seconds. Default: 300."""
    jitter: Jitter = "full"
    """"full" (0 up to the delay), "plus_minus" (around it) or "none". Default: "full"."""
    spread: float = 0.1
    """How far "plus_minus" goes around the delay, as a fraction of it. Default: 0.1."""

    def __post_init__(self) -> None:
        _check_number("initial", self.initial, 0, _LONGEST)
        _check_number("factor", self.factor, 1, _STEEPEST)
        _check_number("max", self.max, 0, _LONGEST)
        _check_number("spread", self.spread, 0, 1)
        if self.jitter not in get_args(Jitter):
            raise InvalidOption("jitter", self.jitter, f"one of {', '.join(get_args(Jitter))}")

    def ceiling(self, retry: int) -> float:
        """Return the delay before jitter; ``retry`` counts from 0."""
        _check_count("retry", retry)
        if self.initial == 0 or self.factor == 1:  # no power of a huge retry needed, nor possible
            return min(float(self.initial), float(self.max))
        try:
            return min(self.initial * float(self.factor) ** retry, float(self.max))
        except OverflowError:
            return float(self.max)

    def delay(self, retry: int, dice: float) -> float:
        """Return the seconds to wait before ``retry``, given ``dice`` uniform in [0, 1)."""
        if not 0 <= dice < 1:
            raise InvalidOption("dice", dice, "at least 0 and less than 1")
        ceiling = self.ceiling(retry)
        if self.jitter == "full":
            return dice * ceiling
        if self.jitter == "plus_minus":
            return ceiling * (1 + self.spread * (2 * dice - 1))
        return ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which errors of a handler are retried, how often, and after which delays.

    Where several of the classes named here fit an error, the most specific one counts: the one
    that comes first in the method resolution order of the error's class.
    """

    max_retries: int = 5  # attempts after the first
    backoff: Backoff = field(default_factory=Backoff)
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    per_exception: tuple[tuple[type[BaseException], Backoff], ...] = ()

    def __post_init__(self) -> None:
        _check_count("max_retries", self.max_retries)
        _check_classes("retry_on", self.retry_on)
        _check_classes("give_up_on", self.give_up_on)
        classes = [cls for cls, _ in self.per_exception]
        _check_classes("per_exception", classes)
        if len(set(classes)) < len(classes):
            raise InvalidOption("per_exception", classes, "a list that names each class once")

    def retries(self, error: BaseException) -> bool:
        """Say whether ``error`` may be retried; how many retries are left is not asked here.

        ``give_up_on`` wins, unless ``retry_on`` names a more specific class: giving up on
        ``OSError`` but retrying on ``ConnectionError`` retries a refused connection.
        """
        for cls in type(error).__mro__:
            if cls in self.give_up_on:
                return False
            if cls in self.retry_on:
                return True
        return False

    def backoff_for(self, error: BaseException) -> Backoff:
        """Return the backoff of the most specific class that fits, else the default one."""
        special = dict(self.per_exception)
        for cls in type(error).__mro__:
            if cls in special:
                return special[cls]
        return self.backoff


def _check_number(option: str, value: object, low: float, high: float) -> None:
    # NaN fails the comparison, as it should.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidOption(option, value, f"a number from {low:g} to {high:g}")


def _check_count(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidOption(option, value, "a whole number, 0 or more")


def _check_classes(option: str, classes: Iterable[object]) -> None:
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise InvalidOption(option, cls, "a tuple of exception classes")
