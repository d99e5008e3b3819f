"""Acts about all tasks that match, over HTTP: one step, or all of them as a stream of lines."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Any

import msgspec

from fairlead.api.http.problems import NOTHING_DONE, InDoubt, Invalid, ProblemBody, problem_of
from fairlead.api.http.route import Reply, Request
from fairlead.api.task_filter import TaskFilter, matches, selection_of
from fairlead.api.views.paging import about
from fairlead.api.views.timestamps import moment
from fairlead.broker.records import TaskRecord
from fairlead.client import Client
from fairlead.client.bulk_actions import Action, BulkAction, BulkPlace, Changes, begin, bulk_step
from fairlead.client.error_groups import kind_of
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import State

NDJSON = "application/x-ndjson"
_SAMPLES = 10


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What all steps of an act came to."""

    examined: int = 0
    matched: int = 0
    changed: int = 0


class ActStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an act. It is over when ``cursor`` is null."""

    examined: Annotated[int, about("Tasks that this step looked at.")]
    matched: Annotated[int, about("Of these, those that the act is about.")]
    changed: Annotated[int, about("Of these, those that were changed; 0 in a dry run.")]
    total: Annotated[Tally, about("The same of all steps so far.")]
    began_at: Annotated[datetime, about("Only tasks enqueued before are touched.")]
    sample: Annotated[list[str], about("Ids of some that matched.")] = []
    cursor: Annotated[str | None, about("Send it with the same act to go on.")] = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of a stream that had to end early."""

    problem: ProblemBody
    cursor: Annotated[str | None, about("Go on from here.")] = None


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and with which tasks."""

    action: Action
    asked: TaskFilter
    state: State | None
    tenant: str | None
    group: str | None = None  # of errors
    level: int | None = None
    dry_run: bool = False

    @property
    def digest(self) -> str:
        """By which a cursor of another act is recognized."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Where an act goes on, and which one it is."""

    digest: str
    place: BulkPlace

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


async def act(request: Request, act: Act, cursor: str | None, noted: str) -> ActStep | Reply:
    """Carry out one step, or with ``Accept: application/x-ndjson`` all of them, a line each."""
    if cursor is None:
        place = _Place(act.digest, await begin(request.client, act.asked.queue))
    else:
        place = _parse(cursor, act)
    if _wants_stream(request):
        lines = _lines(request, act, place, noted)
        return Reply(stream=lines, media_type=NDJSON)
    changes = Changes()
    try:
        step, _ = await _step(request.client, act, place, changes)
    finally:
        await _note(request, act, noted, changes.count)
    return step


def _wants_stream(request: Request) -> bool:
    """Whether the caller asks for lines as they come."""
    return NDJSON in request.headers.get(b"accept", b"").decode("latin-1").lower()


def _parse(cursor: str, act: Act) -> _Place:
    try:
        data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        place = msgspec.json.decode(data, type=_Place)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        place = None
    if place is None or place.digest != act.digest:
        rule = "the cursor of the step before, with the same act"
        raise Invalid("the cursor is of no such act", field="cursor", value=cursor, rule=rule)
    return place


async def _step(
    client: Client, act: Act, place: _Place, changes: Changes
) -> tuple[ActStep, _Place | None]:
    def is_meant(record: TaskRecord) -> bool:
        in_group = act.group is None or kind_of(record).group == act.group
        return in_group and matches(record, act.asked)

    order = BulkAction(
        action=act.action,
        selection=selection_of(act.asked, act.state, act.tenant),
        matches=is_meant,
        level=act.level,
        dry_run=act.dry_run,
    )
    done = await bulk_step(client, order, place.place, changes)
    after, records = done.after, done.records
    following = None if done.is_last else _Place(place.digest, after)
    step = ActStep(
        examined=done.examined,
        matched=len(records),
        changed=done.changed,
        total=Tally(examined=after.examined, matched=after.matched, changed=after.changed),
        began_at=moment(after.began),
        sample=[record.message.id for record in records[:_SAMPLES]],
        cursor=None if following is None else str(following),
    )
    return step, following


async def _lines(
    request: Request, act: Act, place: _Place, noted: str
) -> AsyncGenerator[bytes, None]:
    """All steps, until the last, the end of the connection, or that of this server."""
    changes = Changes()
    before = 0
    gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    if request.gone is not None:
        gone = asyncio.ensure_future(request.gone())
    following: _Place | None = place
    try:
        while following is not None and not gone.done() and not request.service.draining:
            place = following
            before = changes.count
            step, following = await _step(request.client, act, place, changes)
            if step.changed and changes.count == step.changed and following is not None:
                # The first of many: who began it is known, even if this process is killed.
                await _note(request, act, noted, changes.count, goes_on=True)
            yield msgspec.json.encode(step) + b"\n"
    except BrokerError as error:
        problem = problem_of(error)
        assert problem is not None  # noqa: S101 - every error of the broker is one
        if changes.count > before and isinstance(problem, NOTHING_DONE):
            problem = InDoubt("a part of this step was done", ids=error.ids, retry_after=2.0)
        yield msgspec.json.encode(Failure(problem=problem.body, cursor=str(place))) + b"\n"
    finally:
        gone.cancel()
        await _note(request, act, noted, changes.count)


async def _note(
    request: Request, act: Act, noted: str, changed: int, *, goes_on: bool = False
) -> None:
    """One line for what was changed; of the filter not what it says of errors: that is content."""
    if not changed:
        return
    asked = act.asked
    said = {"state": act.state, "queue": asked.queue, "name": asked.name, "group": act.group}
    about: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    priority = {} if act.level is None else {"priority": request.client.priorities.name(act.level)}
    if goes_on:
        about["goes_on"] = True
    await request.note(
        f"{noted}.{act.action}", "*", tenant=act.tenant, changed=changed, **about, **priority
    )
