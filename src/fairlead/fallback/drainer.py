"""Sends what is in the spool to the broker: in order, in batches, and without trampling it.

A record is sent, then confirmed. Whoever dies in between leaves a record that is sent again, which
the broker knows by its id. Records of one tenant and priority go in the order of their calls; what
waits (for room in a queue, for a shard, for a task before it) keeps only its own line waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fairlead.broker.call_sizes import Room
from fairlead.broker.requests import Receipt, Submission
from fairlead.fallback.codec import Doubted, LaterVersion, decode_submission, moment_now
from fairlead.fallback.drain_backoff import DrainBackoff
from fairlead.fallback.latency import transfer_time
from fairlead.fallback.local_outcomes import is_taken
from fairlead.fallback.log_summary import LaterRecordsWarning, LogSummary
from fairlead.fallback.numbered_enqueues import Doubt, NumberedEnqueuer, recall
from fairlead.fallback.outages import leads_to_spool
from fairlead.fallback.prober import Prober
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import BrokerError, InvalidInput
from fairlead.model.message import task_name
from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime import fault_injection
from fairlead.spool import Kind, Record, Rejection

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

_BATCH = 256  # records in a step
_HELD = 1.0  # seconds before a queue that was full is tried again
_REST, _LONGEST_REST = 20.0, 30.0  # times the cost of reading again what was left; seconds
_EARLY = 0.01  # seconds that a timer may be early
_SLOWEST = 8.0  # times that a call has the usual time, at most
_SENT = (Kind.SUBMISSION, Kind.LOCAL_DONE)
_FULL = ("queue_full", "tenant_full", "tenant_bytes")

log = logging.getLogger("fairlead.fallback")


class _Item(NamedTuple):
    """A task to send, with what is left of its delay, and where it lies in the spool."""

    record: Record
    submission: Submission
    doubt: Doubted | None = None  # the broker may have it already

    @property
    def id(self) -> str:
        return self.submission.message.id

    @property
    def line(self) -> tuple[str, str]:
        """What waits when its queue is full."""
        return self.submission.message.queue, self.submission.message.tenant


class Drainer:
    """Goes through the spool in passes, step by step. One per process; nothing runs beside it."""

    def __init__(self, fallback: Fallback, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.busy, self.count = 0.0, 0  # seconds that the broker took for the last step, and tasks
        self.sent = 0  # tasks that it has taken so far
        self.left = 0  # tasks that the last pass left where they were
        self._fallback, self._clock = fallback, clock
        self._lines = {shard: NumberedEnqueuer(fallback, shard) for shard in fallback.parts.stores}
        self._after = 0  # the last record that this pass has seen
        self._cost, self._read = 0.0, 0  # seconds of this pass without the broker's; its records
        self._rests_until = 0.0  # when the next pass begins; 0: this one goes on
        self._changes = 0  # of state, before that
        self._behind: set[str] = set()  # tasks that this pass leaves where they are
        self._waiting: set[str] = set()  # shards of these
        self._later = 0  # records of later releases among those that this pass leaves
        self._later_records = LaterRecordsWarning(log)
        self._doubts: dict[int, Doubted] = {}  # by sequence: sent, and no reply came
        self._full: dict[tuple[str, str], float] = {}  # until when a queue is not tried again
        self._backoff = DrainBackoff()
        self._slowness: dict[str, float] = {}  # how many times the usual time a call has
        self._summary = LogSummary(log)
        self._unwritten = ""  # why the last rejected task could not be recorded

    async def step(self, count: int = _BATCH) -> bool:
        """See to the next records, so many at most; whether this pass goes on."""
        began = self._clock()
        try:
            return await self._step(count)
        finally:
            self._cost += max(self._clock() - began - self.busy, 0.0)

    async def _step(self, count: int) -> bool:
        self.busy, self.count = 0.0, 0
        spool, outages = self._fallback.spool, self._fallback.outages
        if self._rests_until and (
            self._clock() >= self._rests_until or outages.changes != self._changes
        ):
            self._begin_pass()
        await self._fallback.local.outcomes.index()
        records = await in_thread(lambda: spool.pending(self._after, count))
        if not records:
            self._end_pass()
            return False
        fault_injection.reached("drain_read")
        self._after, self._read = records[-1].sequence, self._read + len(records)
        tasks: dict[str, list[_Item]] = {}
        homes: dict[str, str] = {}  # the shards of these, by id
        now = moment_now()
        for record in records:
            if record.kind not in _SENT:
                continue
            try:
                task = decode_submission(record.payload)
                item = _Item(record, task.due(now), self._doubts.get(record.sequence, task.doubt))
            except LaterVersion as error:
                self._later += 1
                self._later_records.found(error)
                continue
            except InvalidInput as error:
                await self._reject(record, "unreadable", str(error))
                continue
            shard = self._fallback.shard_of(item.submission.message)
            if any(homes.get(each.id, shard) != shard for each in item.submission.depends_on):
                await self._send_all(tasks)  # a task of another shard goes before those behind it
                homes.clear()
            if self._must_wait(item.submission, shard):
                self._leave([item], shard)
            else:
                tasks.setdefault(shard, []).append(item)
                homes[item.id] = shard
        await self._send_all(tasks)
        return True

    def is_doubted(self, sequence: int) -> bool:
        """Whether a record was sent and no reply came: the broker may have its task."""
        return sequence in self._doubts

    async def _send_all(self, tasks: dict[str, list[_Item]]) -> None:
        """Send tasks, shard by shard, and take them out."""
        while tasks:
            shard = next(iter(tasks))
            await self._send(shard, tasks.pop(shard))

    def _end_pass(self) -> None:
        """A shard of which nothing waits is healthy.

        The next pass reads all that was left again. So it begins after a rest that is long if that
        will be costly; until then only new records are looked at.
        """
        outages = self._fallback.outages
        for shard in self._fallback.parts.stores:
            if shard not in self._waiting:
                outages.drained(shard)
                self._slowness.pop(shard, None)
        self.left = len(self._behind) + self._later
        self._summary.end()
        if self._rests_until:
            return
        rest = min(_REST * self._cost * self.left / max(self._read, 1), _LONGEST_REST)
        if rest < _HELD:
            self._begin_pass()
        else:
            self._rests_until, self._changes = self._clock() + rest, outages.changes

    def _begin_pass(self) -> None:
        """Begin again with the first record."""
        self._after, self._cost, self._read, self._rests_until = 0, 0.0, 0, 0.0
        self._behind, self._waiting, self._later = set(), set(), 0

    def _must_wait(self, submission: Submission, shard: str) -> bool:
        away, message, now = self._fallback.outages.away(), submission.message, self._clock()
        if self._fallback.local.holds(submission):
            return True
        if shard in away or self._backoff.hold(shard, message.id, now):
            return True
        if away and (submission.depends_on or submission.fence):
            return True  # a task that it names may be there
        if self._full.get((message.queue, message.tenant), 0.0) > now:
            return True
        return any(dependency.id in self._behind for dependency in submission.depends_on)

    def _leave(self, items: Sequence[_Item], shard: str) -> None:
        self._waiting.add(shard)
        self._behind.update(item.id for item in items)

    # -- sending --------------------------------------------------------------------------------

    async def _send(self, shard: str, items: list[_Item]) -> None:
        """Send tasks of one shard, in as few calls as the limits allow.

        A task goes after the reply to those that it depends on: if one of them finds its queue
        full, it must wait as well, and not be taken for one whose parent is completed.
        """
        self._fallback.outages.found(shard)
        room, chunk, ids = Room(), list[_Item](), set[str]()
        taken: list[Submission] = []
        for item in items:
            fits = not taken or room.takes(taken, item.submission)
            if not (fits and ids.isdisjoint(d.id for d in item.submission.depends_on)):
                await self._send_chunk(shard, chunk)
                chunk, taken, ids = [], [], set()
            if self._must_wait(item.submission, shard):
                self._leave([item], shard)
                continue
            chunk.append(item)
            taken.append(item.submission)
            ids.add(item.id)
        if chunk:
            await self._send_chunk(shard, chunk)

    async def _send_chunk(self, shard: str, items: list[_Item]) -> None:
        try:
            is_doubted = any(item.doubt is not None for item in items)
            if is_doubted and not (items := await self._recalled(shard, items)):
                return
            receipts = await self._enqueue(shard, items)
        except InvalidInput as error:
            if len(items) == 1:
                await self._reject_item(shard, items[0], "invalid", str(error))
                return
            await self._send_singly(shard, items)
            return
        except BrokerError as error:
            if isinstance(error, Doubt):
                for place, item in enumerate(items):
                    doubt = Doubted(error.incarnation, error.number, place)
                    self._doubts[item.record.sequence] = doubt
            if leads_to_spool(error):
                self._leave(items, shard)
            elif len(items) > 1:
                await self._send_singly(shard, items)
            else:
                self._put_off(shard, items[0], error)
            return
        self._backoff.taken(shard, (item.id for item in items))
        fault_injection.reached("drain_sent")
        if any(item.submission.deadline == 0.0 for item in items):
            await self._bury(shard)
        await self._take_in(shard, list(zip(items, receipts, strict=True)))

    async def _send_singly(self, shard: str, items: list[_Item]) -> None:
        """Find out which of them the broker does not take."""
        for item in items:
            if self._must_wait(item.submission, shard):
                self._leave([item], shard)
            else:
                await self._send_chunk(shard, [item])

    def _put_off(self, shard: str, item: _Item, error: BrokerError) -> None:
        """Leave a task that the broker refuses for now, so that the others can go."""
        self._leave([item], shard)
        fields = {"shard": shard, "reason": str(error)}
        is_first, is_shard = self._backoff.refused(shard, item.id, self._clock())
        if is_first:
            told = fields | {"id": item.id}
            log.warning("broker refuses a task that is in the spool; tried again", extra=told)
        if is_shard:
            log.warning("broker refuses what is in the spool; tried again", extra=fields)

    async def _recalled(self, shard: str, items: list[_Item]) -> list[_Item]:
        """Take in what came of calls whose replies were lost; return what is still to be sent.

        The broker may have carried out a task and forgotten it since: by its id it would be new.
        """
        until = asyncio.get_running_loop().time() + self._fallback.options.silence
        store, answers = self._fallback.parts.stores[shard], dict[tuple[str, int], list[Receipt]]()
        for doubt in {item.doubt[:2] for item in items if item.doubt is not None}:
            try:
                answers[doubt] = await recall(store, *doubt, until) or []
            except BrokerError as error:
                await self._probe(shard, error)  # else a shard that is away would seem to drain
                raise
        known, rest = list[tuple[_Item, Receipt]](), list[_Item]()
        for item in items:
            self._doubts.pop(item.record.sequence, None)
            receipts = answers[item.doubt[:2]] if item.doubt is not None else []
            if item.doubt is not None and item.doubt.place < len(receipts):
                known.append((item, receipts[item.doubt.place]))
            else:
                rest.append(item)
        await self._take_in(shard, known)
        return rest

    async def _take_in(self, shard: str, answered: Sequence[tuple[_Item, Receipt]]) -> None:
        """Confirm what the broker has, reject what it refuses, leave what finds no room.

        Confirm first: that needs no room on the disk, and what is not confirmed is sent again.
        """
        done = [(item, receipt) for item, receipt in answered if is_taken(item.submission, receipt)]
        for item, receipt in done:
            if receipt.id != item.id:
                self._fallback.ids.replace(item.id, receipt.id)
                fields = {"id": item.id, "stands_for_it": receipt.id}
                text = "a spooled task has the unique key of another one"
                self._summary.tell(logging.INFO, text, receipt.code, fields)
        if done:
            spool = self._fallback.spool
            await in_thread(lambda: spool.confirm([item.record.sequence for item, _ in done]))
            self._fallback.ids.discard(item.submission for item, _ in done)
            ends = ((item.submission, receipt) for item, receipt in done)
            self._fallback.local.outcomes.sent(ends, self._summary)
            self.sent += len(done)
        fault_injection.reached("drain_confirmed")
        for item, receipt in answered:
            if receipt.code in _FULL:
                self._full[item.line] = self._clock() + _HELD
                self._leave([item], shard)
            elif receipt.code == "closed":
                self._leave([item], shard)
            elif not is_taken(item.submission, receipt):
                why = f"{receipt.code} ({receipt.detail})" if receipt.detail else receipt.code
                await self._reject_item(shard, item, receipt.code, why)

    async def _enqueue(self, shard: str, items: list[_Item]) -> list[Receipt]:
        """Send tasks in one call, and give it more time if the last ones had too little.

        A call that is late may have a slow link: a probe tells that from a broker that is away.
        """
        fallback, clock = self._fallback, asyncio.get_running_loop().time
        submissions = fallback.ids.settled([item.submission for item in items])
        began, started = clock(), self._clock()
        silence = fallback.options.silence * fallback.outages.patience(shard)
        until = began + (silence + transfer_time(submissions)) * self._slowness.get(shard, 1.0)
        is_late = False

        def failed(error: BrokerError) -> None:
            nonlocal is_late
            if clock() >= until - _EARLY:
                is_late = True
            elif leads_to_spool(error):
                fallback.outages.failed(shard, error, sure=not error.passes)

        try:
            receipts = await self._lines[shard].enqueue(submissions, until, failed)
        except BrokerError as error:
            self._cost -= self._clock() - started  # a wait for the broker is no work of this pass
            if is_late and leads_to_spool(error):
                self._slowness[shard] = min(self._slowness.get(shard, 1.0) * 2.0, _SLOWEST)
                await self._probe(shard, error)
            raise
        self.busy += clock() - began
        self.count += len(submissions)
        fallback.outages.succeeded(shard)
        return receipts

    async def _probe(self, shard: str, error: BrokerError) -> None:
        fallback = self._fallback
        store, silence = fallback.parts.stores[shard], fallback.options.silence
        if not await Prober(shard, store, fallback.outages, silence=silence).probe():
            fallback.outages.failed(shard, error, sure=True)

    async def _bury(self, shard: str) -> None:
        """Let the broker mark what was past its deadline when it came, workers or not."""
        with suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(self._fallback.options.silence):
                await self._fallback.parts.stores[shard].promote()

    async def _reject_item(self, shard: str, item: _Item, code: str, why: str) -> None:
        """Leave a record that says which task the broker will never take."""
        message = item.submission.message
        name = task_name(message.body)
        text = (
            f"task {message.id} ({name}) of tenant {message.tenant}, queue {message.queue}: {why}"
        )
        fields = {"id": message.id, "tenant": message.tenant, "queue": message.queue, "task": name}
        if await self._reject(item.record, code, text, fields):
            self._fallback.ids.refuse(message.id, why)
            self._fallback.ids.discard([item.submission])
        else:
            self._leave([item], shard)  # and what depends on it

    async def _reject(
        self, record: Record, code: str, text: str, fields: dict[str, str] | None = None
    ) -> bool:
        """Leave a record that people see; False if the disk does not take it."""
        left = Rejection(
            code=code, message=text, kind=record.kind, payload=record.payload, at=record.at
        )
        spool = self._fallback.spool
        try:
            await in_thread(lambda: spool.reject(record.sequence, left.encode()))
        except SpoolFailed as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                log.warning("a rejected task cannot be recorded; tried again: %s", error)
            return False
        self._unwritten = ""
        fault_injection.reached("drain_rejected")
        fields = {"code": code} | (fields or {})
        said = "the broker did not take a spooled task; see `fairlead spool`"
        self._summary.tell(logging.ERROR, said, code, fields)
        return True
