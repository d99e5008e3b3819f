"""One incarnation's way to the broker: grouped enqueues, orders, reads and waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fairlead.broker import Caller, Store
from fairlead.broker.documents import DocumentChange, DocumentChanged
from fairlead.broker.flows import FlowOrder, FlowRecord
from fairlead.broker.orders import alter_all
from fairlead.broker.records import (
    Page,
    Parts,
    TaskRecord,
)
from fairlead.broker.repeats import LIMIT, Limit
from fairlead.broker.requests import (
    MAX_STEP,
    Alter,
    Altered,
    Call,
    Change,
    Deleted,
    Durability,
    Moved,
    Receipt,
    Submission,
    WorkerOrder,
)
from fairlead.broker.schedules import Scheduled, ScheduleOrder
from fairlead.broker.submissions import Row, Submissions, filled, row_of
from fairlead.broker.thread_line import ThreadLine, thread_line_of
from fairlead.client.catalog import Catalogs
from fairlead.client.errors import about
from fairlead.client.fail_fast_breaker import FailFastCaller, fail_fast_store
from fairlead.client.flow_submit import Draft, send
from fairlead.client.middleware import AroundEnqueue, through
from fairlead.client.submit_path import SubmitPath, counted
from fairlead.client.task_reader import PageSelection, TaskReader
from fairlead.client.waiter import Waiter
from fairlead.model.codecs import Codecs
from fairlead.model.errors import Ambiguous, BrokerError, QueueInUse
from fairlead.model.priorities import DEFAULT, Priorities
from fairlead.runtime.ids import new_id
from fairlead.telemetry.counters import Counters

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback


class Client:
    """Enqueues, orders, reads and waits. One per event loop: its calls are numbered in one line.

    What is read as it is in the broker, such as counters and documents, is read of its ``store``.
    """

    def __init__(
        self,
        store: Store,
        *,
        incarnation: str | None = None,
        around: Sequence[AroundEnqueue] = (),
        limit: float = LIMIT,
        counters: Counters | None = None,
        fallback: Fallback | None = None,
        priorities: Priorities = DEFAULT,
        codecs: Codecs | None = None,
    ) -> None:
        """``limit`` is how many seconds a call may take that does not say so itself.

        With a ``fallback`` tasks go into its spool while the broker is away.
        """
        self.codecs = codecs  # of what was enqueued, and of what is read
        self.incarnation = incarnation or new_id()
        self.counters = counters or Counters()
        self._around = around  # the app's, and may still grow
        self.limit, self.priorities = limit, priorities
        self._fallback = fallback
        if fallback is None:
            self.store, self._caller = store, Caller(self.incarnation, limit=limit)
        else:
            self.store = fail_fast_store(store, fallback)
            self._caller = FailFastCaller(self.incarnation, fallback, limit=limit)
        self._path = SubmitPath(store, self._caller, self.counters, fallback)
        self.reader = TaskReader(self.store, codecs)
        self.recognized = self.reader.recognized
        self.waiter = Waiter(store, self.incarnation)
        self.catalogs = Catalogs(store)

    @property
    def spools(self) -> bool:
        """Whether tasks go into a spool while the broker is away."""
        return self._fallback is not None

    @property
    def is_away(self) -> bool:
        """Whether the broker, or a shard of it, is known to be away."""
        return self._fallback is not None and self._fallback.state == "spooling"

    def read_limit(self, limit: float | None) -> float:
        """Return the seconds that a read may take which a task to be enqueued waits for."""
        limit = self.limit if limit is None else limit
        return limit if self._fallback is None else min(limit, self._fallback.options.silence)

    async def submit(
        self,
        item: Submission | Row,
        limit: float | None = None,
        durability: Durability = "spooled",
    ) -> Receipt:
        """Enqueue one task; concurrent calls share a trip. A refusal is in the receipt.

        ``limit`` is how many seconds it may take. A ``BrokerError`` has the task's id. With a
        fallback the receipt says where the task is; ``committed`` raises instead of spooling it.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (self.limit if limit is None else limit)
        row = item if isinstance(item, tuple) else row_of(item)
        try:
            if self._fallback is None and not self._around and self.codecs is None:
                answer = await self._path.put(row, until, loop)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            submission = filled(row)
            path = self._path.choose(durability, (submission,))

            async def send(submissions: Sequence[Submission]) -> list[Receipt]:
                if isinstance(path, SubmitPath):
                    receipts = [await path.submit(row_of(submissions[0]), until)]
                else:
                    receipts = [await path.submit(submissions[0], until)]
                return await self.recognized(submissions, receipts)

            return (await through(self._around, [submission], send))[0]
        except BrokerError as error:
            about(error, filled(row))
            raise

    async def submit_again(
        self, call: Call, row: Row, limit: float, after: Ambiguous | None
    ) -> Receipt:
        """Go on with a call that a thread began over a line of its own, under its number.

        ``limit`` is how many seconds are left of it, ``after`` what came of it so far.
        """
        caller, within = Caller(call.incarnation, first=call.number), Limit(self._until(limit))
        enqueue = partial(self.store.enqueue, submissions=Submissions.of([row]))
        try:
            if after is None:
                return (await caller.call(enqueue, within))[0]
            return (await caller.ask_again(enqueue, call, within, after))[0]
        except BrokerError as error:
            about(error, filled(row))
            raise

    def thread_line(self) -> ThreadLine | None:
        """Return a line for a thread to where the calls of this client go; None: not now."""
        return thread_line_of(self.store)

    async def submit_many(
        self,
        submissions: Sequence[Submission],
        limit: float | None = None,
        durability: Durability = "spooled",
    ) -> list[Receipt]:
        """Enqueue tasks that may depend on each other, in as few calls as the limits allow.

        Receipts come in the order given. A cycle raises before anything is written. A task whose
        parent in the same list was refused is refused too (``unknown_dependency``); one whose
        parent was a duplicate depends on the task that stands for it.

        If a call in the middle fails, those before it stand; the same list again is safe, because
        the broker knows the ids it has accepted; the error has those of the call that failed.
        ``limit`` is for all of it; without one each call has the usual time.
        """
        in_all = self._in_all(limit)

        async def send(submissions: Sequence[Submission]) -> list[Receipt]:
            sent = await self._path.submit_many(submissions, in_all, durability)
            return await self.recognized(submissions, sent)

        if self._around:
            return await through(self._around, submissions, send)
        return await send(submissions)

    async def alter(self, orders: Sequence[Alter]) -> list[Altered]:
        """Cancel, requeue or delete tasks; one answer per order."""
        return await alter_all(self.store, self._caller, orders)

    async def submit_flow(self, draft: Draft, limit: float | None = None) -> bool:
        """Enqueue a flow as one unit; False if one of this id exists already."""
        try:
            new = await send(self.store, self._caller, self._around, draft, self._in_all(limit))
            if new and self.counters.on:
                self.counters.submitted(counted(draft.submissions))
            return new
        except BrokerError as error:
            error.ids = (draft.id,)
            raise

    async def alter_flow(self, order: FlowOrder) -> bool:
        """Cancel a flow, or retry its failed part; False if there was nothing to do."""
        before = await self.flow(order.flow)
        moved = await self._caller.call(lambda call: self.store.alter_flow(call, order))
        if before is None or moved is None:
            return False
        more, touched = moved.more, moved.count > 0
        for _ in range(math.ceil(before.total / MAX_STEP) + 1):  # workers would go on with it too
            if not more:
                break
            more = (await self.store.deliver()).more
        return touched or await self.flow(order.flow) != before

    async def flow(self, id: str) -> FlowRecord | None:
        """How far a flow is; None if the broker does not know it."""
        return (await self.store.flows([id]))[0]

    async def configure(self, changes: Sequence[Change]) -> None:
        """Set limits, weights and pauses."""
        await self._caller.call(lambda call: self.store.configure(call, changes))

    async def plan(self, orders: Sequence[ScheduleOrder]) -> list[Scheduled]:
        """Create, change or delete schedules; one answer per order."""
        answers: list[Scheduled] = []
        for start in range(0, len(orders), MAX_STEP):
            part = orders[start : start + MAX_STEP]
            answers += await self._caller.call(partial(self.store.plan, orders=part))
        return answers

    async def now(self) -> float:
        """The broker's time."""
        return (await self.store.hello()).now

    async def write_documents(self, changes: Sequence[DocumentChange]) -> list[DocumentChanged]:
        """Write or delete documents; one answer per change."""
        answers: list[DocumentChanged] = []
        for start in range(0, len(changes), MAX_STEP):
            part = changes[start : start + MAX_STEP]
            answers += await self._caller.call(partial(self.store.write_documents, changes=part))
        return answers

    async def note(self, trail: str, values: Sequence[bytes]) -> None:
        """Append notes to a trail."""
        for start in range(0, len(values), MAX_STEP):
            part = values[start : start + MAX_STEP]
            await self._caller.call(partial(self.store.note, trail=trail, values=part))

    async def purge(self, queue: str, tenant: str | None = None) -> int:
        """Cancel all that waits in a queue, or one tenant's part of it; how many there were."""
        count, more = 0, True
        while more:
            moved = await self.purge_some(queue, tenant)
            count, more = count + moved.count, moved.more
        return count

    async def purge_some(self, queue: str, tenant: str | None = None) -> Moved:
        """Cancel up to 50 tasks that wait in a queue, or in one tenant's part of it."""
        return await self._caller.call(lambda call: self.store.purge(call, queue, tenant))

    async def delete_queue(self, queue: str) -> int:
        """Forget a queue, its settings and what it keeps; how many finished tasks there were."""
        count, more = 0, True
        while more:
            deleted = await self.delete_some_of_queue(queue)
            count, more = count + deleted.count, deleted.more
        return count

    async def delete_some_of_queue(self, queue: str) -> Deleted:
        """Forget up to 50 finished tasks of a queue, and the queue with the last of them."""
        deleted = await self._caller.call(lambda call: self.store.delete_queue(call, queue))
        if deleted.refused:
            raise QueueInUse(queue, deleted.waiting, deleted.running, deleted.pinned)
        return deleted

    async def find(self, ids: Sequence[str], parts: Parts = "info") -> list[TaskRecord | None]:
        """What the broker knows of these tasks; None where it knows nothing."""
        return await self.reader.many(ids, parts)

    async def page(self, selection: PageSelection) -> Page:
        """Part of a listing of tasks; bounded, with a cursor to read on."""
        return await self.reader.page(selection)

    async def order_worker(self, incarnation: str, order: WorkerOrder) -> bool:
        """Order a worker to pause or to stop, or to resume; False if it is unknown."""
        return await self._caller.call(
            lambda call: self.store.order_worker(call, incarnation, order)
        )

    async def close(self) -> None:
        """Finish what is outstanding and refuse the rest. The store stays open."""
        await self._path.close()
        await self.waiter.close()

    def _until(self, limit: float | None) -> float:
        """When a call that begins now is out of time, by the loop's clock."""
        return asyncio.get_running_loop().time() + (self.limit if limit is None else limit)

    def _in_all(self, limit: float | None) -> Limit | None:
        """For what takes many calls: its own limit, if it was given one; else each call has its."""
        return None if limit is None else Limit(self._until(limit))
