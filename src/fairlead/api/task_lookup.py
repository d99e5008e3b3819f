"""Finds the task that a request is about: of the caller's tenant, or there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from fairlead.api.http.problems import BrokerAway, NotFound, Spooled
from fairlead.api.http.route import Request
from fairlead.broker.records import Parts, TaskRecord
from fairlead.model.errors import InvalidName
from fairlead.model.names import DEFAULT_TENANT, full_id

_MOST_LOOKED_UP = 500  # dependencies of the tasks of one answer; of more, nothing is told


def task_id(request: Request) -> str:
    """The stored id of the task that the path names. Raises ``NotFound`` for a foreign one."""
    return stored_id(request, request.path["id"], request.query.tenant)


def stored_id(request: Request, id: str, asked: str | None = None) -> str:
    """The stored id for one that Fairlead made, one that was chosen, or one as handles show it."""
    tenant = request.tenant(asked)
    prefix, colon, _ = id.rpartition(":")
    if tenant is None:
        tenant = prefix if colon else DEFAULT_TENANT
    elif colon and prefix != tenant:
        raise NotFound("there is no such task", field="id", value=id)
    try:
        return full_id(tenant, id)
    except InvalidName:  # no id looks like this, so there is no such task
        raise NotFound("there is no such task", field="id", value=id) from None


async def found_task(
    request: Request, parts: Parts, *, patience: float | None = None
) -> TaskRecord:
    """What the broker knows of the task that the path names. Raises ``NotFound``.

    ``patience`` is for routes that have none themselves, because they wait.
    """
    id = task_id(request)
    # Asked before the broker, which may get it in between: neither would know it then.
    is_spooled = request.service.is_spooled(id)
    if patience is None:
        record = await request.client.reader.one(id, parts)
    else:
        try:
            async with asyncio.timeout(patience):
                record = await request.client.reader.one(id, parts)
        except TimeoutError:
            raise BrokerAway("the broker did not answer in time", retry_after=2.0) from None
    own = request.tenant(request.query.tenant)
    if record is None and is_spooled:
        detail = "the task is kept on the disk of this server until the broker has it"
        raise Spooled(detail, ids=(id,), retry_after=2.0)
    if record is None or (own is not None and record.message.tenant != own):
        raise NotFound("there is no such task", field="id", value=request.path["id"])
    return record


async def told_to_caller(request: Request, records: Sequence[TaskRecord]) -> list[TaskRecord]:
    """The records as the caller may see them: a tenant not with ids of what belongs to others."""
    own = request.access.tenant
    if own is None:
        return list(records)
    ids = list({id for record in records for id in record.waiting_for})[:_MOST_LOOKED_UP]
    found = await request.client.find(ids) if ids else []
    known = {each.message.id for each in found if each is not None and each.message.tenant == own}
    return [
        msgspec.structs.replace(
            record,
            waiting_for=tuple(id for id in record.waiting_for if id in known),
            flow="" if is_foreign(record.flow, own) else record.flow,
        )
        for record in records
    ]


def is_foreign(id: str, own: str) -> bool:
    """Whether an id was chosen for another tenant, whose name stands before it then."""
    prefix, colon, _ = id.rpartition(":")
    return bool(colon) and prefix != own
