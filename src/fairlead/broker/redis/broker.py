"""The broker on a Redis or Valkey server: one script per verb, one call of it per call.

A script is the whole verb, so the server carries it out as one step. Everything that may be refused
without looking at what is stored is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker import checks
from fairlead.broker import documents as docs
from fairlead.broker.documents import DocumentChange, DocumentChanged, DocumentPage, Note
from fairlead.broker.leadership import LEADERSHIP, Leadership, check_leadership
from fairlead.broker.redis import answers, codec
from fairlead.broker.redis import documents as stored
from fairlead.broker.redis.flowing import Flowing
from fairlead.broker.redis.inspector import Inspecting
from fairlead.broker.redis.looking import Looking
from fairlead.broker.redis.post import Posting
from fairlead.broker.redis.schedules import Planning
from fairlead.broker.redis.stored import STATES, worker_bytes
from fairlead.broker.redis.waiting import Waiting
from fairlead.broker.redis.wire import Value
from fairlead.broker.transfers import Transferred
from fairlead.broker.verbs import (
    LEASE,
    Alter,
    Altered,
    BeatReply,
    Call,
    Change,
    Deleted,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    Moved,
    Receipt,
    Settled,
    Submission,
    Watched,
    WorkerOrder,
    Write,
)
from fairlead.broker.views import WorkerRecord
from fairlead.model.lifecycle import Settlement

__all__ = ("RedisBroker",)

_ZERO = ord("0")
_ORDERS = {"pause": "p", "stop": "s"}  # those that stand


class RedisBroker(Waiting, Inspecting, Looking, Posting, Flowing, Planning):
    """A Broker and an Inspector; ``fairlead.broker.protocol`` says what its verbs do."""

    async def enqueue(
        self, call: Call, submissions: Sequence[Submission], *, now: float | None = None
    ) -> list[Receipt]:
        ids = [submission.message.id for submission in submissions]
        if isinstance(submissions, codec.PackedSubmissions):
            packed, args = submissions, submissions.args
        else:
            checks.check_submissions(submissions)
            packed, args = None, codec.submission_args(submissions)
        if self._closed:
            return self._refuse(now, ids)
        return answers.receipts(await self._numbered("enqueue", call, now, args, packed), ids)

    def packed(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """Return the same, with all done that can be before their call; see ``packed_for``."""
        checks.check_submissions(submissions)
        try:
            return codec.PackedSubmissions(submissions)
        except UnicodeEncodeError:
            return submissions  # the call says what is wrong

    async def fire(
        self, call: Call, firings: Sequence[Firing], *, now: float | None = None
    ) -> list[Receipt]:
        checks.check_submissions([firing.submission for firing in firings])
        checks.check_slots(firings)
        ids = [firing.submission.message.id for firing in firings]
        if self._closed:
            return self._refuse(now, ids)
        args = codec.firing_args(firings)
        return answers.receipts(await self._numbered("fire", call, now, args), ids)

    def _refuse(self, now: float | None, ids: Sequence[str]) -> list[Receipt]:
        self._clock(now)
        return [Receipt(id=id, code="closed") for id in ids]

    async def exchange(
        self,
        call: Call,
        settlements: Sequence[Settlement] = (),
        *,
        started: Sequence[LeaseRef] = (),
        fetch: Fetch | None = None,
        now: float | None = None,
    ) -> ExchangeReply:
        checks.check_exchange(settlements, started, fetch)
        if self._closed:
            fetch = None
        held, self._alarm_held = self._alarm_held, False
        taker = self._takers.get(call.incarnation)
        if taker is not None:  # this ends its offer, and passes its alarm on
            taker.leaves = True
            held, taker.alarm = held or taker.alarm is not None, None
        args = codec.exchange_args(settlements, started, fetch, held_alarm=held)
        try:
            reply = await self._numbered("exchange", call, now, args)
        except BaseException:
            self._alarm_held = self._alarm_held or held  # the next call passes it on
            raise
        if taker is not None:
            taker.finish()
        return answers.exchange_reply(reply)

    async def beat(
        self,
        incarnation: str,
        held: Sequence[LeaseRef] = (),
        *,
        answered: int | None = None,
        worker: WorkerRecord | None = None,
        lease: float = LEASE,
        now: float | None = None,
    ) -> BeatReply:
        checks.check_lease("lease", lease)
        queues = () if worker is None else worker.queues
        record = worker_bytes(worker, incarnation)
        order = "" if worker is None else _ORDERS.get(worker.order, "")
        first: list[Value] = [self._clock(now), incarnation, lease, record, order]
        first += (len(queues), *queues)
        first.append(-1 if answered is None else answered)
        replies = [
            answers.beat_reply(await self._run("beat", first + part), incarnation)
            for part in codec.held_args(held)
        ]
        lost = {ref for reply in replies for ref in reply.lost}
        return BeatReply(
            now=replies[-1].now,
            lost=[ref for ref in held if LeaseRef(ref.id, incarnation, ref.token) in lost],
            cancelled=replies[-1].cancelled,
            paused=replies[-1].paused,
            unclaimed=sum(reply.unclaimed for reply in replies),
            more=any(reply.more for reply in replies),
            order=replies[-1].order,
        )

    async def order_worker(
        self, call: Call, incarnation: str, order: WorkerOrder, *, now: float | None = None
    ) -> bool:
        checks.check_worker_order(order)
        args: list[Value] = [incarnation, _ORDERS.get(order, "")]
        reply: bytes = await self._numbered("order_worker", call, now, args)
        return reply == b"1"

    async def give_back(
        self,
        incarnation: str,
        started: Sequence[str] | None = None,
        *,
        blocked: Sequence[str] = (),
        now: float | None = None,
    ) -> Moved:
        count = -1 if started is None else len(started)
        args: list[Value] = [incarnation, count, *(started or ()), *blocked]
        reply = await self._own("give_back", now, *args)
        return answers.moved(reply)

    async def transfer(
        self,
        refs: Sequence[LeaseRef],
        to: str,
        *,
        room: int,
        lease: float = LEASE,
        now: float | None = None,
    ) -> list[Transferred]:
        checks.check_transfer(refs, lease)
        proofs = [value for ref in refs for value in (ref.id, ref.incarnation, ref.token)]
        return answers.transferred(await self._own("transfer", now, to, room, lease, *proofs))

    async def sweep(self, *, now: float | None = None) -> Moved:
        return answers.moved(await self._own("sweep", now))

    async def promote(self, *, now: float | None = None) -> Moved:
        return answers.promoted(await self._own("promote", now))

    async def deliver(self, *, now: float | None = None) -> Moved:
        return answers.moved(await self._own("deliver", now))

    async def tidy(self, *, now: float | None = None) -> Moved:
        return answers.moved(await self._own("tidy", now))

    async def watch(
        self, incarnation: str, ids: Sequence[str], *, now: float | None = None
    ) -> list[Watched]:
        digits = await self._run("watch", [self._clock(now), incarnation, *ids])
        return [Watched(id, STATES[digit - _ZERO]) for id, digit in zip(ids, digits, strict=True)]

    async def write(
        self, call: Call, writes: Sequence[Write], *, now: float | None = None
    ) -> list[Settled]:
        checks.check_writes(writes)
        return answers.settled(await self._numbered("write", call, now, codec.write_args(writes)))

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        return list(await self._run("pull", [self._clock(now), tenant, *keys]))

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        checks.check_orders(orders)
        reply = await self._numbered("alter", call, now, codec.order_args(orders))
        return answers.altered(reply, orders)

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        checks.check_changes(changes)
        await self._numbered("configure", call, now, codec.change_args(changes))

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        return answers.moved(await self._numbered("purge", call, now, [queue, tenant or ""]))

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        return answers.deleted_queue(await self._numbered("delete_queue", call, now, [queue]))

    async def write_documents(
        self, call: Call, changes: Sequence[DocumentChange], *, now: float | None = None
    ) -> list[DocumentChanged]:
        docs.check_document_changes(changes)
        only_deletes = all(change.value is None for change in changes)
        verb = "delete_documents" if only_deletes else "write_documents"
        reply = await self._numbered(verb, call, now, stored.document_args(changes))
        return stored.changed(reply)

    async def documents(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> DocumentPage:
        docs.check_document_page(kind, names, cursor, limit)
        clock = self._clock(now)
        if names is None:
            reply = await self._run("documents", [clock, kind, limit, cursor or ""])
            time, _, more, last, *told = reply
            found = stored.documents(kind, told)
            after = last.decode() if more else None
            return DocumentPage(now=float(time), documents=found, cursor=after)
        found, wanted = [], sorted(set(names))
        while True:  # a call ends when it has told enough
            time, looked, _, _, *told = await self._run("documents", [clock, kind, 0, "", *wanted])
            found += stored.documents(kind, told)
            wanted = wanted[looked:]
            if not wanted:
                return DocumentPage(now=float(time), documents=found)

    async def note(
        self, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
    ) -> None:
        docs.check_notes(trail, values)
        await self._numbered("note", call, now, [trail, *values])

    async def notes(
        self,
        trail: str,
        *,
        before: int | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> list[Note]:
        docs.check_trail(trail, before, limit)
        below: Value = "" if before is None else before
        told = await self._run("notes", [self._clock(now), trail, below, limit])
        return [stored.note(each) for each in told]

    async def lead(
        self,
        name: str,
        holder: str,
        *,
        ttl: float = LEADERSHIP,
        release: bool = False,
        now: float | None = None,
    ) -> Leadership:
        check_leadership(name, holder, ttl)
        args: list[Value] = [self._clock(now), name, holder, "" if release else ttl]
        term, leader, till, time = await self._run("lead", args)
        return Leadership(
            term=int(term), holder=leader.decode(), until=float(till), now=float(time)
        )
