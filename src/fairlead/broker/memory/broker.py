"""The in-memory broker: complete, for tests and for programs that are one process.

One lock, one shard, one verb at a time: verbs may be awaited from event loops of several threads.
Everything lives and dies with the process.
"""

from __future__ import annotations

import time
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
from fairlead.broker.memory import enqueue as entry
from fairlead.broker.memory import exchange as exchanging
from fairlead.broker.memory import orders as ordering
from fairlead.broker.memory import pins, recovery, release, upkeep
from fairlead.broker.memory.bell import Sleeper
from fairlead.broker.memory.flowing import Flowing, see_to
from fairlead.broker.memory.looking import Looking
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.schedules import Planning, ticks_due
from fairlead.broker.memory.shard import Shard
from fairlead.broker.memory.waiting import Waiting
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
    Mail,
    Moved,
    Receipt,
    Settled,
    Submission,
    Watched,
    WorkerOrder,
    Write,
)
from fairlead.broker.views import EventPage, Hello, WorkerRecord
from fairlead.model.events import EventId
from fairlead.model.lifecycle import Settlement

__all__ = ("MemoryBroker",)


class MemoryBroker(Flowing, Planning, Waiting, Looking):
    """A Broker and an Inspector; ``fairlead.broker.protocol`` says what its verbs do."""

    # -- the verbs -----------------------------------------------------------------------------

    async def hello(self) -> Hello:
        return self._do(
            None,
            lambda shard: Hello(
                now=shard.now,
                generation=self._generation,
                replication=self._generation,
                ahead=self._ahead,
            ),
        )

    async def enqueue(
        self, call: Call, submissions: Sequence[Submission], *, now: float | None = None
    ) -> list[Receipt]:
        checks.check_submissions(submissions)
        return self._numbered("enqueue", call, now, lambda shard: entry.enqueue(shard, submissions))

    async def fire(
        self, call: Call, firings: Sequence[Firing], *, now: float | None = None
    ) -> list[Receipt]:
        checks.check_submissions([firing.submission for firing in firings])
        checks.check_slots(firings)
        return self._numbered("fire", call, now, lambda shard: entry.fire(shard, firings))

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
        self._takes.end(call)
        incarnation = call.incarnation

        def step(shard: Shard) -> tuple[ExchangeReply, list[tuple[str, int]]]:
            settled = exchanging.settle(shard, incarnation, settlements)
            marked = exchanging.start(shard, incarnation, started)
            taken: list[Task] = []
            more = False
            if fetch is not None and not shard.closed:
                _, left = upkeep.promote(shard)
                taken, more = exchanging.fetch(shard, call, fetch)
                more = more or left
                for name in shard.queues.keys() & fetch.queues:
                    shard.rung.add(name)  # whoever leaves work behind wakes the next
                    shard.set_alarm(shard.queues[name])
            reply = ExchangeReply(
                now=shard.now, settled=settled, started=marked, more=more, due_in=shard.next_due()
            )
            return reply, [(task.id, task.token) for task in taken]

        def answer(shard: Shard) -> ExchangeReply:
            # Answers are kept without bodies; a repeated call reads them anew.
            reply, lent = self._once(shard, "exchange", call, step)
            loans = [
                exchanging.leased(task)
                for id, token in lent
                if (task := shard.tasks.get(id)) is not None and task.leased_as(incarnation, token)
            ]
            return msgspec.structs.replace(
                reply, settled=list(reply.settled), started=list(reply.started), leased=loans
            )

        return self._do(now, answer)

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
        return self._do(
            now,
            lambda shard: recovery.beat(shard, incarnation, held, answered, worker, lease),
        )

    async def order_worker(
        self, call: Call, incarnation: str, order: WorkerOrder, *, now: float | None = None
    ) -> bool:
        checks.check_worker_order(order)
        return self._numbered(
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

        return self._do(now, step)

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
        return self._do(now, lambda shard: recovery.transfer(shard, refs, to, room, lease))

    async def sweep(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more, guarded = recovery.sweep(shard)
            return Moved(now=shard.now, count=count, more=more, guarded=guarded)

        return self._do(now, step)

    async def promote(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more = upkeep.promote(shard)
            return Moved(now=shard.now, count=count, more=more, ticks=ticks_due(shard))

        return self._do(now, step)

    async def deliver(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count = release.deliver(shard) + pins.settle_pins(shard)
            if not count:
                count = see_to(shard)
            shard.trim_ended()
            more = bool(shard.releases or shard.unpins or shard.layouts)
            return Moved(now=shard.now, count=count, more=more)

        return self._do(now, step)

    async def tidy(self, *, now: float | None = None) -> Moved:
        def step(shard: Shard) -> Moved:
            count, more = upkeep.tidy(shard)
            return Moved(now=shard.now, count=count, more=more)

        return self._do(now, step)

    async def watch(
        self, incarnation: str, ids: Sequence[str], *, now: float | None = None
    ) -> list[Watched]:
        return self._do(now, lambda shard: ordering.watch(shard, incarnation, ids))

    async def collect(self, incarnation: str, after: int, timeout: float) -> list[Mail]:
        ends = time.monotonic() + timeout
        while True:
            with self._lock:
                self._set_clock(None)
                self._shard.touch(incarnation)
                box = self._shard.mailbox(incarnation)
                box.confirm(after)
                left = ends - time.monotonic()
                if box.letters or left <= 0.0 or self._shard.closed:
                    return list(box.letters)
                sleeper = Sleeper()
                box.sleepers.append(sleeper)
            await self._slept(sleeper, left, box.sleepers)

    async def write(
        self, call: Call, writes: Sequence[Write], *, now: float | None = None
    ) -> list[Settled]:
        checks.check_writes(writes)
        return self._numbered("write", call, now, lambda shard: ordering.write(shard, writes))

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        return self._do(now, lambda shard: ordering.pull(shard, tenant, keys))

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        checks.check_orders(orders)
        return self._numbered("alter", call, now, lambda shard: ordering.alter(shard, orders))

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        checks.check_changes(changes)
        self._numbered("configure", call, now, lambda shard: ordering.configure(shard, changes))

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        def step(shard: Shard) -> Moved:
            if queue not in shard.queues:
                return Moved(now=shard.now)
            count, more = upkeep.purge(shard, shard.queues[queue], tenant)
            return Moved(now=shard.now, count=count, more=more)

        return self._numbered("purge", call, now, step)

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        return self._numbered("delete_queue", call, now, lambda s: upkeep.delete_queue(s, queue))

    async def write_documents(
        self, call: Call, changes: Sequence[DocumentChange], *, now: float | None = None
    ) -> list[DocumentChanged]:
        check_document_changes(changes)
        return self._numbered(
            "write_documents", call, now, lambda shard: ordering.write_documents(shard, changes)
        )

    async def note(
        self, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
    ) -> None:
        check_notes(trail, values)
        self._numbered("note", call, now, lambda shard: ordering.note(shard, trail, values))

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
        return self._do(now, lambda shard: ordering.lead(shard, name, holder, seconds))

    async def events(
        self,
        *,
        after: EventId | None = None,
        reader: str | None = None,
        limit: int = 500,
        timeout: float = 0.0,
        latest: bool = False,
    ) -> EventPage:
        checks.check_reader(reader, limit)
        ends = time.monotonic() + timeout
        while True:
            with self._lock:
                self._set_clock(None)
                stream = self._shard.stream
                if latest:
                    return EventPage(now=self._shard.now, last=stream.latest())
                events, gap, last = stream.read(stream.start(reader, after, self._shard.now), limit)
                left = ends - time.monotonic()
                if events or gap or left <= 0.0 or self._shard.closed:
                    return EventPage(now=self._shard.now, events=events, gap=gap, last=last)
                sleeper = Sleeper()
                self._event_sleepers.append(sleeper)
            await self._slept(sleeper, left, self._event_sleepers)

    async def _slept(self, sleeper: Sleeper, seconds: float, among: list[Sleeper]) -> None:
        """Sleep, and leave the list again, unless thrown away: then ``wake`` finds it gone."""
        try:
            await sleeper.sleep(seconds)
        except GeneratorExit:
            sleeper.gone = True
            raise
        finally:
            if not sleeper.gone:
                with self._lock:
                    if sleeper in among:
                        among.remove(sleeper)

    async def close(self) -> None:
        with self._lock:
            self._shard.closed = True
            self._bell.ring_all()
            for box in self._shard.mailboxes.values():
                for sleeper in box.sleepers:
                    sleeper.wake()
            for sleeper in self._event_sleepers:
                sleeper.wake()

    # -- for people ----------------------------------------------------------------------------

    async def audit(
        self, *, now: float | None = None, progress: Callable[[int], None] | None = None
    ) -> list[str]:
        return self._do(now, auditing.audit)
