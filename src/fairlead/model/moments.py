"""Points in time as callers give them: a datetime with a time zone, or unix seconds."""

from __future__ import annotations

from datetime import datetime

from fairlead.model.durations import in_seconds
from fairlead.model.errors import InvalidOption

Moment = datetime | float | int  # a datetime with a time zone, or unix seconds

_EARLIEST = 946_684_800.0  # the year 2000: a smaller number is a number of seconds from now
_RULE = (
    "a datetime with a time zone, e.g. datetime.now(UTC) + timedelta(hours=1), or unix seconds, "
    "from the year 2000 to ten years from now; for seconds from now use delay"
)


def unix_seconds(option: str, value: object) -> float:
    """Return the moment in unix seconds; raise InvalidOption for anything else."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        number = value.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    else:
        raise InvalidOption(option, value, _RULE)
    # Compared before it becomes a float: of a huge integer there is none. NaN fails, as it should.
    if not _EARLIEST <= number <= 1e11:
        raise InvalidOption(option, value, _RULE)
    return float(number)


def delay_until(option: str, moment: float, now: float) -> float:
    """Return the seconds from now until a moment, 0 for one that has passed.

    Raises InvalidOption for one that is further off than a delay may be.
    """
    delay = in_seconds(max(moment - now, 0.0))
    if delay is None:
        raise InvalidOption(option, moment, _RULE)
    return delay
