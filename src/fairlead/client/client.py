"""One incarnation's way to the broker: grouped enqueues, orders, reads and waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypedDict, get_args

import msgspec

from fairlead.broker import Caller, Store
from fairlead.broker.flows import FlowOrder, FlowRecord
from fairlead.broker.repeats import LIMIT, Limit, late, undone
from fairlead.broker.schedules import Scheduled, ScheduleOrder, ScheduleRecord
from fairlead.broker.standing import Standing
from fairlead.broker.stats import Stats
from fairlead.broker.verbs import (
    MAX_ENQUEUE,
    MAX_STEP,
    MAX_TENANTS,
    Alter,
    Altered,
    Change,
    Receipt,
    Submission,
)
from fairlead.broker.views import Page, Parts, Snapshot, TaskRecord, WorkerRecord
from fairlead.client.enqueuing import AroundEnqueue, through
from fairlead.client.flow_sending import Draft, send
from fairlead.client.receipts import about
from fairlead.client.redirecting import redirected
from fairlead.client.stated import check_stated
from fairlead.client.waiter import Waiter
from fairlead.model.errors import BrokerError, InvalidOption, QueueInUse
from fairlead.model.graph import sort
from fairlead.model.lifecycle import State
from fairlead.model.names import check_queue, check_tenant
from fairlead.model.options import Dependency
from fairlead.runtime.batcher import Batcher
from fairlead.runtime.ids import new_id

__all__ = ("Client", "PageSelection")

# So that one call never takes long:
_MAX_BYTES = 8 * 1024 * 1024  # of bodies in one call
_MAX_EXTRAS = 100  # dependencies, and tasks with a delay, a deadline or a unique key
_MAX_FIND = 500  # ids in one read


class PageSelection(TypedDict, total=False):
    """Which tasks to list: what is left out does not matter."""

    state: State | str
    queue: str
    tenant: str
    cursor: str | None
    limit: int  # at most 1,000


class Client:
    """Enqueues, orders, reads and waits. One per event loop: its calls are numbered in one line."""

    def __init__(
        self,
        store: Store,
        *,
        incarnation: str | None = None,
        around: Sequence[AroundEnqueue] = (),
        limit: float = LIMIT,
    ) -> None:
        """``limit`` is how many seconds a call may take that does not say so itself."""
        self.incarnation = incarnation or new_id()
        self._around = around  # the app's, and may still grow
        self._store = store
        self._limit = limit
        self._caller = Caller(self.incarnation, limit=limit)
        self._batcher: Batcher[Submission, Receipt] = Batcher(
            self._flush, limit=MAX_ENQUEUE, fits=_Room(), again=undone, late=late
        )
        self._finders: dict[Parts, Batcher[str, TaskRecord | None]] = {
            parts: Batcher(partial(store.find, parts=parts), limit=_MAX_FIND)
            for parts in get_args(Parts)
        }
        self._waiter = Waiter(store, self.incarnation)

    async def submit(self, submission: Submission, limit: float | None = None) -> Receipt:
        """Enqueue one task; concurrent calls share a trip. A refusal is in the receipt.

        ``limit`` is how many seconds it may take. A ``BrokerError`` has the task's id.
        """
        until = self._until(limit)
        try:
            if not self._around:
                return await self._batcher.submit(submission, until)

            async def send(submissions: Sequence[Submission]) -> list[Receipt]:
                return [await self._batcher.submit(submissions[0], until)]

            return (await through(self._around, [submission], send))[0]
        except BrokerError as error:
            about(error, submission)
            raise

    async def submit_many(
        self, submissions: Sequence[Submission], limit: float | None = None
    ) -> list[Receipt]:
        """Enqueue tasks that may depend on each other, in as few calls as the limits allow.

        Receipts come in the order given. A cycle raises before anything is written. A task whose
        parent in the same list was refused is refused too (``unknown_dependency``); one whose
        parent was a duplicate depends on the task that stands for it.

        If a call in the middle fails, those before it stand; the same list again is safe, because
        the broker knows the ids it has accepted; the error has those of the call that failed.
        ``limit`` is for all of it; without one each call has the usual time.
        """
        send = partial(self._submit_many, limit=self._in_all(limit))
        if self._around:
            return await through(self._around, submissions, send)
        return await send(submissions)

    async def _submit_many(
        self, submissions: Sequence[Submission], limit: Limit | None
    ) -> list[Receipt]:
        todo = _ordered(submissions)
        receipts: dict[str, list[Receipt]] = {}
        chunk: list[Submission] = []
        try:
            while todo:
                for chunk in _chunks(todo):
                    sent = await self._enqueue(chunk, limit)
                    for submission, receipt in zip(chunk, sent, strict=True):
                        receipts.setdefault(submission.message.id, []).append(receipt)
                todo = _redirected(todo, receipts)
        except BrokerError as error:
            error.ids = tuple(submission.message.id for submission in chunk)
            error.add_note(
                "Some of the tasks may have been accepted. The same calls may be enqueued again: "
                "those that were accepted are recognized by their ids."
            )
            raise
        # Equal ids were submitted in the order given, so their receipts come in that order too.
        taken = {id: iter(found) for id, found in receipts.items()}
        return [next(taken[submission.message.id]) for submission in submissions]

    async def alter(self, orders: Sequence[Alter]) -> list[Altered]:
        """Cancel, requeue or delete tasks; one answer per order."""
        answers: list[Altered] = []
        for start in range(0, len(orders), MAX_STEP):
            part = orders[start : start + MAX_STEP]
            try:
                answers += await self._caller.call(partial(self._store.alter, orders=part))
            except BrokerError as error:
                error.ids = tuple(order.id for order in part)
                raise
        return answers

    async def submit_flow(self, draft: Draft, limit: float | None = None) -> bool:
        """Enqueue a flow as one unit; False if one of this id exists already."""
        try:
            return await send(self._store, self._caller, self._around, draft, self._in_all(limit))
        except BrokerError as error:
            error.ids = (draft.id,)
            raise

    async def alter_flow(self, order: FlowOrder) -> bool:
        """Cancel a flow, or retry its failed part; False if there was nothing to do."""
        before = await self.flow(order.flow)
        moved = await self._caller.call(lambda call: self._store.alter_flow(call, order))
        if before is None or moved is None:
            return False
        more, touched = moved.more, moved.count > 0
        for _ in range(math.ceil(before.total / MAX_STEP) + 1):  # workers would go on with it too
            if not more:
                break
            more = (await self._store.deliver()).more
        return touched or await self.flow(order.flow) != before

    async def flow(self, id: str) -> FlowRecord | None:
        """How far a flow is; None if the broker does not know it."""
        return (await self._store.flows([id]))[0]

    async def members(self, flow: str, start: int, limit: int) -> list[str]:
        """Ids of a flow's tasks from some place on."""
        return await self._store.members(flow, start=start, limit=limit)

    async def configure(self, changes: Sequence[Change]) -> None:
        """Set limits, weights and pauses."""
        await self._caller.call(lambda call: self._store.configure(call, changes))

    async def plan(self, orders: Sequence[ScheduleOrder]) -> list[Scheduled]:
        """Create, change or delete schedules; one answer per order."""
        answers: list[Scheduled] = []
        for start in range(0, len(orders), MAX_STEP):
            part = orders[start : start + MAX_STEP]
            answers += await self._caller.call(partial(self._store.plan, orders=part))
        return answers

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRecord]:
        """The schedules of these names, or all."""
        return await self._store.schedules(names)

    async def now(self) -> float:
        """The broker's time."""
        return (await self._store.hello()).now

    async def purge(self, queue: str, tenant: str | None = None) -> int:
        """Cancel all that waits in a queue, or one tenant's part of it; how many there were."""
        count, more = 0, True
        while more:
            moved = await self._caller.call(lambda call: self._store.purge(call, queue, tenant))
            count, more = count + moved.count, moved.more
        return count

    async def delete_queue(self, queue: str) -> int:
        """Forget a queue, its settings and what it keeps; how many finished tasks there were."""
        count, more = 0, True
        while more:
            deleted = await self._caller.call(lambda call: self._store.delete_queue(call, queue))
            if deleted.refused:
                raise QueueInUse(queue, deleted.waiting, deleted.running, deleted.pinned)
            count, more = count + deleted.count, deleted.more
        return count

    async def find(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        """What the broker knows of these tasks but their results; None where it knows nothing."""
        found: list[TaskRecord | None] = []
        for start in range(0, len(ids), _MAX_FIND):
            found += await self._store.find(ids[start : start + _MAX_FIND], parts="info")
        return found

    async def find_one(self, id: str, parts: Parts) -> TaskRecord | None:
        """What the broker knows of one task; concurrent calls share a trip."""
        return await self._finders[parts].submit(id)

    async def snapshot(self, queue: str | None = None, *, tenants: bool = True) -> Snapshot:
        """The counts of one queue or of all, with tenants or without."""
        return await self._store.snapshot(queue, tenants=tenants)

    async def stats(self, queue: str | None, *, tenants: bool) -> Stats:
        """What was counted, of one queue or of all."""
        return await self._store.stats(queue, tenants=tenants)

    async def standing(self, id: str) -> Standing | None:
        """Where a task stands; None if the broker does not know it."""
        return await self._store.standing(id)

    async def page(self, selection: PageSelection) -> Page:
        """Part of a listing of tasks; bounded, with a cursor to read on."""
        check_stated(selection, PageSelection, "a page")
        state, cursor = selection.get("state"), selection.get("cursor")
        queue, tenant = selection.get("queue"), selection.get("tenant")
        limit = selection.get("limit", 100)
        if state is not None and state not in tuple(State):
            raise InvalidOption("state", state, f"one of {', '.join(State)}")
        if cursor is not None and not isinstance(cursor, str):
            raise InvalidOption("cursor", cursor, "one that an earlier page returned")
        if type(limit) is not int:
            raise InvalidOption("limit", limit, "a whole number")
        return await self._store.page(
            state=None if state is None else State(state),
            queue=None if queue is None else check_queue(queue),
            tenant=None if tenant is None else check_tenant(tenant),
            cursor=cursor,
            limit=limit,
        )

    async def workers(self) -> list[WorkerRecord]:
        """The workers that were heard of lately."""
        return await self._store.workers()

    async def wait_final(self, id: str) -> State | None:
        """The state in which the task ended, or None if the broker does not know the task."""
        return await self._waiter.wait(id)

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest. The store stays open."""
        await self._batcher.close()
        await self._waiter.close()

    def _until(self, limit: float | None) -> float:
        """When a call that begins now is out of time, by the loop's clock."""
        return asyncio.get_running_loop().time() + (self._limit if limit is None else limit)

    def _in_all(self, limit: float | None) -> Limit | None:
        """For what takes many calls: its own limit, if it was given one; else each call has its."""
        return None if limit is None else Limit(self._until(limit))

    async def _flush(self, submissions: list[Submission]) -> list[Receipt]:
        # As long as nothing was done, those whose time is over are told so, and the others go into
        # the next call. Once something may have been, they all have to wait for the same reply.
        limit = Limit(self._batcher.earliest, self._batcher.latest)
        return await self._enqueue(submissions, limit)

    async def _enqueue(self, submissions: list[Submission], limit: Limit | None) -> list[Receipt]:
        return await self._caller.call(lambda call: self._store.enqueue(call, submissions), limit)


class _Room:
    """Whether one call can take one more: a running total over the batch that grows."""

    def __init__(self) -> None:
        self._tenants: set[str] = set()
        self._bytes = self._extras = 0

    def __call__(self, batch: list[Submission], item: Submission) -> bool:
        if not batch:
            self._tenants = set()
            self._bytes = self._extras = 0
        self._tenants.add(item.message.tenant)
        self._bytes += len(item.message.body)
        if item.delay or item.deadline is not None or item.unique is not None:
            self._extras += 1
        self._extras += len(item.depends_on)
        return (
            len(self._tenants) <= MAX_TENANTS
            and self._bytes <= _MAX_BYTES
            and self._extras <= _MAX_EXTRAS
        )


def _chunks(submissions: list[Submission]) -> Iterator[list[Submission]]:
    room, chunk = _Room(), list[Submission]()
    for submission in submissions:
        if not (room(chunk, submission) and len(chunk) < MAX_ENQUEUE) and chunk:
            yield chunk
            chunk = []
            room(chunk, submission)
        chunk.append(submission)
    if chunk:
        yield chunk


def _ordered(submissions: Sequence[Submission]) -> list[Submission]:
    """The submissions, each behind those it depends on."""
    if not any(submission.depends_on for submission in submissions):
        return list(submissions)
    members: dict[str, list[Submission]] = {}
    for submission in submissions:
        members.setdefault(submission.message.id, []).append(submission)
    order = sort({id: {d.id for s in same for d in s.depends_on} for id, same in members.items()})
    return [_within(submission, members) for id in order for submission in members[id]]


def _within(submission: Submission, members: dict[str, list[Submission]]) -> Submission:
    """The submission with its dependencies on other members as ids that must exist.

    A handle that the broker does not know counts as completed. A member is not known yet, and if
    it is refused, what depends on it must not run as if it had completed.
    """
    return _depending(
        submission,
        tuple(Dependency(d.id) if d.id in members else d for d in submission.depends_on),
    )


def _redirected(
    submissions: list[Submission], receipts: dict[str, list[Receipt]]
) -> list[Submission]:
    """Of those refused for a dependency, the ones that can be tried again, with it put right.

    A unique key may have turned a parent into another task, which its children did not name.
    Their receipts are taken back.
    """
    again: list[Submission] = []
    ids: set[str] = set()
    for submission in submissions:
        id = submission.message.id
        if receipts[id][-1].code != "unknown_dependency":
            continue
        dependencies = tuple(_standing(d, receipts) for d in submission.depends_on)
        if dependencies != submission.depends_on or any(d.id in ids for d in dependencies):
            again.append(_depending(submission, dependencies))
            ids.add(id)
    for id in ids:
        del receipts[id]
    return again


def _standing(dependency: Dependency, receipts: dict[str, list[Receipt]]) -> Dependency:
    for receipt in receipts.get(dependency.id, ()):
        if receipt.code == "duplicate" and receipt.id != dependency.id:
            return Dependency(receipt.id, known=True)
    return dependency


def _depending(submission: Submission, dependencies: tuple[Dependency, ...]) -> Submission:
    if dependencies == submission.depends_on:
        return submission
    new = {
        old.id: now.id
        for old, now in zip(submission.depends_on, dependencies, strict=True)
        if old.id != now.id
    }
    message = submission.message
    if new and submission.uses_results:
        message = msgspec.structs.replace(message, body=redirected(message.body, new))
    return msgspec.structs.replace(submission, message=message, depends_on=dependencies)
