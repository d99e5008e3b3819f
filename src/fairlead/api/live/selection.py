"""What a client asks for, turned into a filter that its token may have."""

from __future__ import annotations

import msgspec

from fairlead.api.http.problems import Invalid, NotFound
from fairlead.api.http.route import Access
from fairlead.api.live.gauges import FIGURES
from fairlead.client.event_info import EVENT_TYPES, EventFilter, event_filter, parse_event_text
from fairlead.model.errors import InvalidInput

LIVE_TYPES = EVENT_TYPES | FIGURES
_MOST_TYPES = 100


class Selection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which events a client wants; what is left out does not matter."""

    types: list[str] | None = None
    queue: str | None = None
    tenant: str | None = None
    task: str | None = None  # the id of one
    name: str | None = None  # of tasks


def filter_of(asked: Selection, access: Access) -> EventFilter:
    """The filter for a caller; one with a tenant of its own gets nothing of another.

    Raises ``NotFound`` for another tenant, and errors that name what is not valid.
    """
    if access.tenant is not None and asked.tenant not in (None, access.tenant):
        raise NotFound(f"there is no tenant {asked.tenant!r}")
    if asked.types is not None and not 1 <= len(asked.types) <= _MOST_TYPES:
        raise Invalid("too many or too few", field="types", rule=f"1 to {_MOST_TYPES} names")
    found = event_filter(
        asked.types,
        queue=asked.queue,
        tenant=asked.tenant if access.tenant is None else access.tenant,
        task=asked.task,
        name=asked.name,
        known=LIVE_TYPES,
    )
    # Workers belong to nobody: a tenant hears nothing of them.
    return found if access.tenant is None else msgspec.structs.replace(found, workers=False)


def check_place(after: str | None) -> str | None:
    """The id of an event, or ``Invalid``."""
    if after is None:
        return None
    try:
        parse_event_text(after)
    except InvalidInput as error:
        raise Invalid(
            str(error), field="after", value=after, rule="the id of an event that was seen"
        ) from None
    return after
