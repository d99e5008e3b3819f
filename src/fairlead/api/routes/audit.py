"""The audit trail: who changed what, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.api.http.route import Request, Route
from fairlead.api.views.audit import AUDIT, TENANTS_AUDIT, AuditLine
from fairlead.api.views.paging import Limit, about, for_operators
from fairlead.api.views.timestamps import moment
from fairlead.broker.documents import Note


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change. Nothing of the arguments or results of tasks is in it."""

    number: int
    at: datetime
    token: Annotated[str, about("The id of the token; empty: a caller of this machine.")]
    name: Annotated[str, about("Of the token.")]
    peer: Annotated[str, about("The address that the call came from.")]
    action: Annotated[str, about("What was done, such as queue.pause.")]
    target: Annotated[str, about("With what.")]
    tenant: Annotated[str | None, about("That the token is bound to.")] = None
    details: dict[str, Any] = {}


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Changes, the latest first; of operators and of tenants the last 10,000 each are kept."""

    entries: list[AuditEntry]
    cursor: Annotated[int | None, about("For `before`, to read on; null: the end.")] = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the trail."""

    before: (
        Annotated[int, Meta(ge=1, le=2**53, description="Entries before this number.")] | None
    ) = None
    limit: Limit = 100


async def _audit(request: Request) -> AuditPage:
    for_operators(request, "the audit trail is")
    query: AuditQuery = request.query
    notes: list[Note] = []
    for trail in (AUDIT, TENANTS_AUDIT):  # their numbers are of one line
        notes += await request.client.store.notes(trail, before=query.before, limit=query.limit)
    notes = sorted(notes, key=lambda note: -note.number)[: query.limit]
    more = len(notes) == query.limit and notes[-1].number > 1
    return AuditPage(
        entries=[entry for note in notes if (entry := _entry(note)) is not None],
        cursor=notes[-1].number if more else None,
    )


def _entry(note: Note) -> AuditEntry | None:
    """A line of the trail; None for one that cannot be read here."""
    try:
        line = msgspec.json.decode(note.value, type=AuditLine)
    except msgspec.MsgspecError:
        return None
    return AuditEntry(number=note.number, at=moment(note.at), **msgspec.structs.asdict(line))


ROUTES = (
    Route(
        method="GET",
        path="/audit",
        handler=_audit,
        scope="manage",
        summary="Show who changed what, the latest first.",
        query=AuditQuery,
    ),
)
