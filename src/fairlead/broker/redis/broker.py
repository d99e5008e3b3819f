"""The broker on a Redis or Valkey server: one script per verb, one call of it per call.

A script is the whole verb, so the server carries it out as one step. Everything that may be refused
without looking at what is stored is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker import checks
from fairlead.broker.leadership import LEADERSHIP, Leadership, check_leadership
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import (
    answers,
    cross_shard,
    documents,
    encode,
    flows,
    hand_off,
    reads,
    schedules,
    settings,
    standing,
    waits,
)
from fairlead.broker.redis.decode import worker_bytes
from fairlead.broker.redis.layout import STATES
from fairlead.broker.redis.packed_submissions import PackedSubmissions
from fairlead.broker.redis.session import Session, not_text
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import (
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
from fairlead.broker.submission_checks import check_submissions
from fairlead.broker.submissions import Submissions
from fairlead.broker.transfers import Transferred
from fairlead.model.errors import Ambiguous, BrokerError
from fairlead.model.lifecycle import Settlement

_ZERO = ord("0")
_ORDERS = {"pause": "p", "stop": "s"}  # those that stand


class RedisBroker(Session):
    """A Broker and an Inspector; ``fairlead.broker.protocol`` says what its verbs do."""

    # Verbs with a module of their own are functions there, of the session that the broker is.

    wait, take = waits.wait, hand_off.take
    collect, events = waits.collect, waits.events
    snapshot, find, page, workers = reads.snapshot, reads.find, reads.page, reads.workers
    audit, repair, libraries = reads.audit, reads.repair, reads.libraries
    load_libraries, delete_library = reads.load_libraries, reads.delete_library
    layouts, migrate, diagnose = reads.layouts, reads.migrate, reads.diagnose
    stats, forget_reader, standing = standing.stats, standing.forget_reader, standing.standing
    stage, stage_from, commit = flows.stage, flows.stage_from, flows.commit
    alter_flow, members, graph, flows = flows.alter_flow, flows.members, flows.graph, flows.flows
    write_documents, note, notes = documents.write_documents, documents.note, documents.notes
    documents = documents.documents
    settings = settings.settings
    plan, tick, schedules = schedules.plan, schedules.tick, schedules.schedules
    where, enter, outbox = cross_shard.where, cross_shard.enter, cross_shard.outbox
    receive, confirm, far_edges = cross_shard.receive, cross_shard.confirm, cross_shard.far_edges

    async def enqueue(
        self, call: Call, submissions: Sequence[Submission], *, now: float | None = None
    ) -> list[Receipt]:
        if not isinstance(submissions, Submissions):
            submissions = Submissions.of(submissions)
        ids = submissions.ids
        packed = submissions if type(submissions) is PackedSubmissions else None
        if packed is None:
            check_submissions(submissions)
        if self.is_closed:
            self.clock(now)
            return [Receipt(id=id, code="closed") for id in ids]
        try:
            packed = packed or PackedSubmissions(submissions)
        except UnicodeEncodeError:
            raise not_text() from None
        return answers.receipts(await self.numbered("enqueue", call, now, tail=packed), ids)

    def packed(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """Return the same, with all done that can be before their call; see ``packed_for``."""
        check_submissions(submissions)
        try:
            return PackedSubmissions(submissions)
        except UnicodeEncodeError:
            return submissions  # the call says what is wrong

    async def fire(
        self, call: Call, firings: Sequence[Firing], *, now: float | None = None
    ) -> list[Receipt]:
        return await cross_shard.enter(self, call, firings, {}, now=now)

    async def exchange(
        self,
        call: Call,
        settlements: Sequence[Settlement] = (),
        *,
        started: Sequence[LeaseRef] = (),
        fetch: Fetch | None = None,
        now: float | None = None,
    ) -> ExchangeReply:
        checks.check_exchange_sizes(settlements, started, fetch)
        if self.is_closed:
            fetch = None
        args = encode.exchange_args(settlements, started, fetch)
        held, self.alarm_held = self.alarm_held, False
        taker = self.takers.get(call.incarnation)
        if taker is not None:  # this ends its offer, and passes its alarm on
            taker.leaves = True
            held, taker.alarm = held or taker.alarm is not None, None
        if held:
            args[encode.HOLDS_ALARM] = "1"
        try:
            reply = await self.numbered("exchange", call, now, args)
        except BaseException:
            self.alarm_held = self.alarm_held or held  # the next call passes it on
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
        first: list[Value] = [self.clock(now), incarnation, lease, record, order]
        first += (len(queues), *queues)
        first.append(-1 if answered is None else answered)
        replies = [
            answers.beat_reply(await self.run("heartbeat", first + part), incarnation)
            for part in encode.held_args(held)
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
        reply: bytes = await self.numbered("order_worker", call, now, args)
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
        reply = await self.own("give_back", now, *args)
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
        return answers.transferred(await self.own("transfer", now, to, room, lease, *proofs))

    async def sweep(self, *, now: float | None = None) -> Moved:
        return answers.moved(await self.own("recover_expired", now))

    async def promote(self, *, now: float | None = None) -> Moved:
        return answers.promoted(await self.own("promote", now))

    async def deliver(self, *, now: float | None = None) -> Moved:
        return answers.moved(await self.own("deliver", now))

    async def tidy(self, *, now: float | None = None) -> Moved:
        return answers.moved(await self.own("expire", now))

    async def watch(
        self, incarnation: str, ids: Sequence[str], *, now: float | None = None
    ) -> list[Watched]:
        digits = await self.run("watch", [self.clock(now), incarnation, *ids])
        return [Watched(id, STATES[digit - _ZERO]) for id, digit in zip(ids, digits, strict=True)]

    async def write(
        self, call: Call, writes: Sequence[Write], *, now: float | None = None
    ) -> list[Settled]:
        checks.check_writes(writes)
        return answers.settled(await self.numbered("write", call, now, encode.write_args(writes)))

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        return list(await self.run("get_xcom", [self.clock(now), tenant, *keys]))

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        checks.check_orders(orders)
        reply = await self.numbered("change_tasks", call, now, encode.order_args(orders))
        return answers.altered(reply, orders)

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        checks.check_changes(changes)
        reply: bytes = await self.numbered("configure", call, now, encode.change_args(changes))
        more = reply == b"1"
        while more:
            try:
                reply = await self.own("apply_settings", now, until=call.until)
            except BrokerError as error:
                raise Ambiguous(f"it is set, but not every queue has it yet: {error}") from error
            more = answers.moved(reply).more

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        return answers.moved(await self.numbered("purge", call, now, [queue, tenant or ""]))

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        return answers.deleted_queue(await self.numbered("delete_queue", call, now, [queue]))

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
        args: list[Value] = [self.clock(now), name, holder, "" if release else ttl]
        term, leader, till, time = await self.run("lead", args)
        return Leadership(
            term=int(term), holder=leader.decode(), until=float(till), now=float(time)
        )
