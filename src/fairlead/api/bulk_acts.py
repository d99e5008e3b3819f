"""One order for all tasks that match: in bounded steps, each of which says where the next begins.

An act is about tasks that were there when it began: the cursor that goes from step to step carries
that moment, and how many more pages there can be. So it comes to an end however fast new tasks come
in. Nothing is kept between two steps: a caller that goes away has stopped the act.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from fairlead.api.error_groups import kind_of
from fairlead.api.moments import moment
from fairlead.api.problems import NOTHING_DONE, InDoubt, Invalid, ProblemBody, problem_of
from fairlead.api.route import Reply, Request
from fairlead.api.shapes import about
from fairlead.api.task_filter import TaskFilter
from fairlead.api.task_pages import found_tasks
from fairlead.broker.verbs import MAX_STEP, Alter, Seen
from fairlead.broker.views import TaskRecord
from fairlead.client import Client
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.message import LEVELS

__all__ = ("STATES", "Act", "ActStep", "Action", "Changes", "Tally", "act", "order_for")

NDJSON = "application/x-ndjson"
_MATCHED = 200  # tasks that one step gives orders about
_CALLS = 5  # pages that one step reads
_SAMPLES = 10
_SPARE = 20  # pages beyond those that tasks can fill which are there when an act begins

Action = Literal["cancel", "retry", "delete", "run", "prioritize"]
_VERBS: dict[str, Literal["cancel", "requeue", "delete", "run", "prioritize"]] = {
    "cancel": "cancel",
    "retry": "requeue",
    "delete": "delete",
    "run": "run",
    "prioritize": "prioritize",
}
#: The states in which an action has something to do.
STATES: dict[str, frozenset[State]] = {
    "cancel": frozenset(State) - FINAL,
    "retry": frozenset({State.DEAD}),
    "delete": frozenset(FINAL),
    "run": frozenset({State.SCHEDULED, State.RETRYING}),
    "prioritize": frozenset(State) - FINAL - {State.RUNNING},
}


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
    """Where an act goes on."""

    digest: str
    began: float
    pages: int  # that may still be read
    cursor: str | None = None
    examined: int = 0
    matched: int = 0
    changed: int = 0

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


async def act(request: Request, act: Act, cursor: str | None, noted: str) -> ActStep | Reply:
    """Carry out one step, or with ``Accept: application/x-ndjson`` all of them, a line each."""
    place = await _begin(request.client, act) if cursor is None else _parse(cursor, act)
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


async def _begin(client: Client, act: Act) -> _Place:
    found = await client.snapshot(act.asked.queue, tenants=False)
    there = sum(
        each.depth + each.running + each.completed + each.dead + each.cancelled
        for each in found.queues.values()
    )
    # A page that is not full has looked at 1,000 tasks.
    return _Place(act.digest, found.now, there // 100 + _SPARE)


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


class Changes:
    """Counts what was changed, also if the broker goes away in the middle."""

    def __init__(self) -> None:
        self.count = 0

    async def make(self, client: Client, orders: Sequence[Alter]) -> int:
        """Give the orders; how many of them changed something."""
        before = self.count
        for start in range(0, len(orders), MAX_STEP):  # what one call takes
            answers = await client.alter(orders[start : start + MAX_STEP])
            self.count += sum(answer.code in ("done", "requested") for answer in answers)
        return self.count - before


async def _step(
    client: Client, act: Act, place: _Place, changes: Changes
) -> tuple[ActStep, _Place | None]:
    def is_meant(record: TaskRecord) -> bool:
        return (
            record.state in STATES[act.action]
            and record.enqueued_at <= place.began
            and (record.finished_at or 0.0) <= place.began  # not what ended since, for the 2nd time
            and (act.group is None or kind_of(record).group == act.group)
        )

    found = await found_tasks(
        client,
        act.asked,
        state=act.state,
        tenant=act.tenant,
        cursor=place.cursor,
        limit=_MATCHED,
        calls=min(_CALLS, max(place.pages, 1)),
        also=is_meant,
    )
    changed = 0
    if found.records and not act.dry_run:
        orders = [order_for(act.action, record, act.level) for record in found.records]
        changed = await changes.make(client, orders)
    pages = place.pages - found.calls
    following = None
    total = Tally(
        examined=place.examined + found.examined,
        matched=place.matched + len(found.records),
        changed=place.changed + changed,
    )
    if found.cursor is not None and pages > 0:
        following = _Place(
            place.digest,
            place.began,
            pages,
            found.cursor,
            total.examined,
            total.matched,
            total.changed,
        )
    step = ActStep(
        examined=found.examined,
        matched=len(found.records),
        changed=changed,
        total=total,
        began_at=moment(place.began),
        sample=[record.message.id for record in found.records[:_SAMPLES]],
        cursor=None if following is None else str(following),
    )
    return step, following


def order_for(action: Action, record: TaskRecord, level: int | None = None) -> Alter:
    """The order about a task that was read: only if it still stands as it did then."""
    message = record.message
    seen = Seen(state=record.state, generation=record.generation, attempts=record.attempts)
    verb = _VERBS[action]
    return Alter(id=message.id, action=verb, tenant=message.tenant, level=level, seen=seen)


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
    priority = {} if act.level is None else {"priority": LEVELS[act.level]}
    if goes_on:
        about["goes_on"] = True
    await request.note(
        f"{noted}.{act.action}", "*", tenant=act.tenant, changed=changed, **about, **priority
    )
