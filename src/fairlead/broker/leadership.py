"""Leadership: of several processes that could do something, one does it at a time.

A name is held until a moment by the broker's time. Each time somebody comes to hold it, that is a
new term, whose number is greater than those of all earlier ones. Whoever led before and does not
know yet that it is over is kept out by the number, not by a clock: a store compares it, and a line
of numbered calls that begins at it makes every call of an older term ``OutOfOrder``.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from fairlead.model.errors import InvalidName, InvalidOption, Refused
from fairlead.model.names import check_key

LEADERSHIP = 10.0  # seconds that one call holds a name
MIN_LEADERSHIP, MAX_LEADERSHIP = 1.0, 300.0
MAX_LEADERS = 100  # names that are held at a time
MAX_HOLDER = 200  # bytes


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a name; without a holder nobody does, and the term is 0."""

    term: int
    holder: str
    until: float  # by the broker's time
    now: float  # when that was so, by the same


class LeadershipVerbs(Protocol):
    """What a store of tasks does for processes of which one leads."""

    async def lead(
        self,
        name: str,
        holder: str,
        *,
        ttl: float = LEADERSHIP,
        release: bool = False,
        now: float | None = None,
    ) -> Leadership:
        """Hold a name for ``ttl`` seconds, unless another holder does; answer who holds it.

        A holder that asks again in time keeps its term, and its time counts from now. Everybody
        else who gets it has a new term, also the last holder once its time was over: greater than
        any term before it, and at least the broker's time in microseconds. With ``release`` a
        holder gives it up at once; what another one holds stays as it is.

        The call has no number: to repeat it does no harm. There may be 100 names at a time, of
        which one more is refused; those whose time is over make room.
        """
        ...


def check_leadership(name: str, holder: str, ttl: float) -> None:
    """Refuse names that cannot be, and times that are too short to lead or too long to wait for."""
    check_key("name of what is led", name)
    if len(check_key("holder", holder).encode()) > MAX_HOLDER:
        raise InvalidName("holder", holder, f"at most {MAX_HOLDER} bytes of UTF-8")
    if not MIN_LEADERSHIP <= ttl <= MAX_LEADERSHIP:  # false for NaN as well
        rule = f"from {MIN_LEADERSHIP:g} to {MAX_LEADERSHIP:g} seconds"
        raise InvalidOption("ttl", ttl, rule)


def too_many_leaders() -> Refused:
    """The error for one more name than there may be."""
    return Refused(
        "leaders",
        f"{MAX_LEADERS} names are held already; use one of them, or wait until one is given up",
    )
