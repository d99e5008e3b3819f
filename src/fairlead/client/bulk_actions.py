"""One order for all tasks that match, in bounded steps, each of which says where the next begins.

An act is about tasks that were there when it began: its place carries that moment, and how many
more pages there can be. So it comes to an end however fast new tasks come in. Nothing is kept
between two steps: a caller that goes away has stopped the act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Alter, Seen
from fairlead.client.client import Client
from fairlead.client.task_pages import found_tasks
from fairlead.client.task_reader import PageSelection
from fairlead.model.lifecycle import FINAL, State

_MATCHED = 200  # tasks that one step gives orders about
# Orders of one call, fewer than it takes: other clients wait for as long as it takes. A server that
# can tell how long that is ends a call early; one that cannot carries them all out.
_AT_ONCE = 10
_CALLS = 5  # pages that one step reads
_SPARE = 20  # pages beyond those that tasks can fill which are there when an act begins

Action = Literal["cancel", "retry", "delete", "run", "prioritize"]
#: The order of a broker that each action is.
VERBS: dict[str, Literal["cancel", "requeue", "delete", "run", "prioritize"]] = {
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


class BulkAction(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and with which tasks."""

    action: Action
    selection: PageSelection  # what the broker looks at: state, queue, tenant
    matches: Callable[[TaskRecord], bool]  # and which of these are meant
    level: int | None = None  # prioritize
    dry_run: bool = False


class BulkPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where an act goes on, and what all its steps so far came to."""

    began: float
    pages: int  # that may still be read
    cursor: str | None = None
    examined: int = 0
    matched: int = 0
    changed: int = 0


class BulkStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one step came to."""

    examined: int
    records: list[TaskRecord]  # that matched
    changed: int
    after: BulkPlace
    is_last: bool


class Changes:
    """Counts what was changed, also if the broker goes away in the middle."""

    def __init__(self) -> None:
        self.count = 0

    async def make(self, client: Client, orders: Sequence[Alter]) -> int:
        """Give the orders; how many of them changed something."""
        before = self.count
        for start in range(0, len(orders), _AT_ONCE):
            answers = await client.alter(orders[start : start + _AT_ONCE])
            self.count += sum(answer.code in ("done", "requested") for answer in answers)
        return self.count - before


async def begin(client: Client, queue: str | None) -> BulkPlace:
    """Return where an act begins that is about this queue, or about all."""
    found = await client.store.snapshot(queue, tenants=False)
    there = sum(
        each.depth + each.running + each.completed + each.dead + each.cancelled
        for each in found.queues.values()
    )
    # A page that is not full has looked at 1,000 tasks.
    return BulkPlace(found.now, there // 100 + _SPARE)


async def bulk_step(
    client: Client, act: BulkAction, place: BulkPlace, changes: Changes
) -> BulkStep:
    """Carry out one step of an act."""

    def is_meant(record: TaskRecord) -> bool:
        return (
            record.state in STATES[act.action]
            and record.enqueued_at <= place.began
            and (record.finished_at or 0.0) <= place.began  # not what ended since, for the 2nd time
            and act.matches(record)
        )

    found = await found_tasks(
        client,
        {**act.selection, "cursor": place.cursor},
        is_meant,
        limit=_MATCHED,
        calls=min(_CALLS, max(place.pages, 1)),
    )
    changed = 0
    if found.records and not act.dry_run:
        orders = [order_for(act.action, record, act.level) for record in found.records]
        changed = await changes.make(client, orders)
    after = BulkPlace(
        place.began,
        place.pages - found.calls,
        found.cursor,
        place.examined + found.examined,
        place.matched + len(found.records),
        place.changed + changed,
    )
    return BulkStep(
        examined=found.examined,
        records=found.records,
        changed=changed,
        after=after,
        is_last=found.cursor is None or after.pages <= 0,
    )


def order_for(action: Action, record: TaskRecord, level: int | None = None) -> Alter:
    """The order about a task that was read: only if it still stands as it did then."""
    message = record.message
    seen = Seen(state=record.state, generation=record.generation, attempts=record.attempts)
    verb = VERBS[action]
    return Alter(id=message.id, action=verb, tenant=message.tenant, level=level, seen=seen)
