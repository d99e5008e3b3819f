"""The in-memory broker: complete, for tests and for programs that are one process.

One lock, one shard, one verb at a time: verbs may be awaited from event loops of several threads.
Everything lives and dies with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from fairlead.broker import checks
from fairlead.broker.documents import (
    DocumentChange,
    DocumentChanged,
    check_document_changes,
    check_notes,
)
from fairlead.broker.leadership import LEADERSHIP, Leadership, check_leadership
from fairlead.broker.memory import audit as auditing
from fairlead.broker.memory import (
    dependencies,
    flows,
    maintenance,
    pins,
    reads,
    recovery,
    schedules,
    standing,
    waits,
)
from fairlead.broker.memory import enqueue as entry
from fairlead.broker.memory import exchange as exchanging
from fairlead.broker.memory import operator_verbs as ordering
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.session import Session
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.records import Hello, Library, Mended, WorkerRecord
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
from fairlead.broker.transfers import Transferred
from fairlead.model.lifecycle import Settlement


class MemoryBroker(Session):
    """A Broker and an Inspector; ``fairlead.broker.protocol`` says what its verbs do."""

    # Verbs with a module of their own are functions there, of the session that the broker is.

    wait, take, collect, events = waits.wait, waits.take, waits.collect, waits.events
    snapshot, find, page, workers = reads.snapshot, reads.find, reads.page, reads.workers
    settings, documents, notes = reads.settings, reads.documents, reads.notes
    layouts, diagnose = reads.layouts, reads.diagnose
    stats, forget_reader, standing = standing.stats, standing.forget_reader, standing.standing
    stage, commit, alter_flow, members = flows.stage, flows.commit, flows.alter_flow, flows.members
    graph, flows = flows.graph, flows.flows
    plan, tick, schedules = schedules.plan, schedules.tick, schedules.schedules

    async def hello(self) -> Hello:
        return self.do(
            None,
            lambda shard: Hello(
                now=shard.now,
                generation=self.generation,
                replication=self.generation,
                ahead=self.ahead,
            ),
        )

    async def enqueue(
        self, call: Call, submissions: Sequence[Submission], *, now: float | None = None
    ) -> list[Receipt]:
        check_submissions(submissions)
        return self.numbered("enqueue", call, now, lambda shard: entry.enqueue(shard, submissions))

    async def fire(
        self, call: Call, firings: Sequence[Firing], *, now: float | None = None
    ) -> list[Receipt]:
        check_submissions([firing.submission for firing in firings])
        checks.check_slots(firings)
        return self.numbered("fire", call, now, lambda shard: entry.fire(shard, firings))

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
        self.takes.end(call)
        incarnation = call.incarnation
        taken: list[Task] | None = None  # in this call; None: it repeats one

        def step(shard: Shard) -> tuple[ExchangeReply, list[str], int]:
            nonlocal taken
            settled = exchanging.settle(shard, incarnation, settlements)
            marked = exchanging.start(shard, incarnation, started)
            taken = []
            more = False
            if fetch is not None and not shard.closed:
                _, left = maintenance.promote(shard)
                taken, more = exchanging.fetch(shard, call, fetch)
                more = more or left
                for name in shard.queues.keys() & fetch.queues:
                    shard.rung.add(name)  # whoever leaves work behind wakes the next
                    shard.set_alarm(shard.queues[name])
            reply = ExchangeReply(
                now=shard.now, settled=settled, started=marked, more=more, due_in=shard.next_due()
            )
            token = taken[0].token if taken else 0  # it is that of all
            return reply, [task.id for task in taken], token

        def answer(shard: Shard) -> ExchangeReply:
            # Answers are kept without bodies; a repeated call reads them anew.
            reply, lent, token = self.once(shard, "exchange", call, step)
            held = taken
            if held is None:
                held = [
                    task
                    for id in lent
                    if (task := shard.tasks.get(id)) is not None
                    and task.leased_as(incarnation, token)
                ]
            loans = [exchanging.leased(task) for task in held]
            return msgspec.structs.replace(
                reply, settled=list(reply.settled), started=list(reply.started), leased=loans
            )

        return self.do(now, answer)

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
        return self.do(
            now,
            lambda shard: recovery.beat(shard, incarnation, held, answered, worker, lease),
        )

    async def order_worker(
        self, call: Call, incarnation: str, order: WorkerOrder, *, now: float | None = None
    ) -> bool:
        checks.check_worker_order(order)
        return self.numbered(
            "order_worker", call, now, lambda s: recovery.order_worker(s, incarnation, order)
        )

    async def give_back(
        self,
        incarnation: str,
        started: Sequence[str] | None = None,
        *,
        blocked: Sequence[str] = (),
        now: float | None = None,
    ) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more = recovery.give_back(shard, incarnation, started, blocked=blocked)
            if not more:
                shard.dismiss(incarnation)
            return Moved(now=shard.now, count=count, more=more)

        return self.do(now, step)

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
        return self.do(now, lambda shard: recovery.transfer(shard, refs, to, room, lease))

    async def sweep(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more, guarded = recovery.sweep(shard)
            return Moved(now=shard.now, count=count, more=more, guarded=guarded)

        return self.do(now, step)

    async def promote(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more = maintenance.promote(shard)
            return Moved(now=shard.now, count=count, more=more, ticks=schedules.ticks_due(shard))

        return self.do(now, step)

    async def deliver(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count = dependencies.deliver(shard) + pins.settle_pins(shard)
            if not count:
                count = flows.see_to(shard)
            shard.trim_ended()
            more = bool(shard.releases or shard.unpins or shard.layouts)
            return Moved(now=shard.now, count=count, more=more)

        return self.do(now, step)

    async def tidy(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more = maintenance.tidy(shard)
            return Moved(now=shard.now, count=count, more=more)

        return self.do(now, step)

    async def watch(
        self, incarnation: str, ids: Sequence[str], *, now: float | None = None
    ) -> list[Watched]:
        return self.do(now, lambda shard: ordering.watch(shard, incarnation, ids))

    async def write(
        self, call: Call, writes: Sequence[Write], *, now: float | None = None
    ) -> list[Settled]:
        checks.check_writes(writes)
        return self.numbered("write", call, now, lambda shard: ordering.write(shard, writes))

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        return self.do(now, lambda shard: ordering.pull(shard, tenant, keys))

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        checks.check_orders(orders)
        return self.numbered("alter", call, now, lambda shard: ordering.alter(shard, orders))

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        checks.check_changes(changes)
        self.numbered("configure", call, now, lambda shard: ordering.configure(shard, changes))

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        def step(shard: Shard) -> Moved:
            if queue not in shard.queues:
                return Moved(now=shard.now)
            count, more = maintenance.purge(shard, shard.queues[queue], tenant)
            return Moved(now=shard.now, count=count, more=more)

        return self.numbered("purge", call, now, step)

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        return self.numbered(
            "delete_queue", call, now, lambda s: maintenance.delete_queue(s, queue)
        )

    async def write_documents(
        self, call: Call, changes: Sequence[DocumentChange], *, now: float | None = None
    ) -> list[DocumentChanged]:
        check_document_changes(changes)
        return self.numbered(
            "write_documents", call, now, lambda shard: ordering.write_documents(shard, changes)
        )

    async def note(
        self, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
    ) -> None:
        check_notes(trail, values)
        self.numbered("note", call, now, lambda shard: ordering.note(shard, trail, values))

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
        seconds = None if release else ttl
        return self.do(now, lambda shard: ordering.lead(shard, name, holder, seconds))

    async def close(self) -> None:
        with self.lock:
            self.shard.closed = True
            self.bell.ring_all()
            for box in self.shard.mailboxes.values():
                for sleeper in box.sleepers:
                    sleeper.wake()
            for sleeper in self.event_sleepers:
                sleeper.wake()

    # -- for people ----------------------------------------------------------------------------

    async def audit(
        self, *, now: float | None = None, progress: Callable[[int], None] | None = None
    ) -> list[str]:
        return self.do(now, auditing.audit)

    async def libraries(self) -> list[Library]:
        return []

    async def load_libraries(self) -> list[str]:
        return []

    async def delete_library(self, name: str) -> None:
        """There is none."""

    async def migrate(
        self, *, discard: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        """What lives in a process is always that of its release."""

    async def repair(
        self,
        *,
        apply: bool = False,
        now: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Mended]:
        # Nothing but its own code reaches what it holds.
        return self.do(now, lambda _: [])
