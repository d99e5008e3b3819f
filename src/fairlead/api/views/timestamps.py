"""Moments as callers see them: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, overload

from msgspec import Meta

Moment = Annotated[datetime, Meta(tz=True)]  # RFC 3339, with a zone

_LATEST = 253_402_300_799.0  # the last second that a datetime can say


@overload
def moment(seconds: float) -> datetime: ...
@overload
def moment(seconds: float | None) -> datetime | None: ...
def moment(seconds: float | None) -> datetime | None:
    """Unix seconds as a datetime, which is written in RFC 3339; None stays None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LATEST), UTC)


def moment_text(seconds: float) -> str:
    """Unix seconds as text, in milliseconds."""
    return moment(seconds).isoformat(timespec="milliseconds")[:-6] + "Z"
