"""Several shards behind one broker.

Each queue lives in one shard, and all that the contract says of a task, a queue, a tenant's part of
it, a limit, a unique key or an XCom value holds inside a shard. What holds between them is in
docs/internals/shards.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec

from fairlead.broker import checks
from fairlead.broker.documents import (
    DocumentChange,
    DocumentChanged,
    check_document_changes,
    check_notes,
)
from fairlead.broker.leadership import LEADERSHIP, Leadership
from fairlead.broker.records import Hello
from fairlead.broker.requests import (
    Alter,
    Altered,
    Call,
    Change,
    Declaration,
    Deleted,
    Moved,
    Settled,
    Watched,
    Write,
)
from fairlead.broker.sharded import (
    enqueue,
    exchange,
    flows,
    leases,
    reads,
    schedules,
    standing,
    waits,
)
from fairlead.broker.sharded.servers import joined_hello, register
from fairlead.broker.sharded.session import Line, Session
from fairlead.broker.sharded.shard_store import ShardStore

T = TypeVar("T")
H = TypeVar("H")


class ShardedBroker(Session):
    """A Broker and an Inspector; ``fairlead.broker.protocol`` says what its verbs do."""

    # Verbs with a module of their own are functions there, of the session that the broker is.

    fire, enqueue = enqueue.fire, enqueue.enqueue
    exchange = exchange.exchange
    beat, give_back, transfer = leases.beat, leases.give_back, leases.transfer
    order_worker = leases.order_worker
    wait, take, collect, events = waits.wait, waits.take, waits.collect, waits.events
    audit, delete_library, diagnose = reads.audit, reads.delete_library, reads.diagnose
    find, layouts, libraries = reads.find, reads.layouts, reads.libraries
    load_libraries, migrate, page = reads.load_libraries, reads.migrate, reads.page
    repair, settings, snapshot = reads.repair, reads.settings, reads.snapshot
    workers = reads.workers
    stats, forget_reader, documents = standing.stats, standing.forget_reader, standing.documents
    notes, standing = standing.notes, standing.standing
    stage, commit, alter_flow, members = flows.stage, flows.commit, flows.alter_flow, flows.members
    graph, flows = flows.graph, flows.flows
    plan, tick, schedules = schedules.plan, schedules.tick, schedules.schedules

    async def hello(self) -> Hello:
        """Say who the broker is; its generation changes with that of any shard."""
        answers, _ = await self.reachable(self.each(lambda store: store.hello()))
        self.met.update(answers)
        if self.default in answers and not self.is_registered:
            self.is_registered = await register(self.first, self.addresses)
        return joined_hello(answers, [self.met.get(shard) for shard in self.stores], self.default)

    async def sweep(self, *, now: float | None = None) -> Moved:
        works = self.each(lambda store: store.sweep(now=now))
        return self.moved((await self.most(works)).values())

    async def promote(self, *, now: float | None = None) -> Moved:
        works = self.each(lambda store: store.promote(now=now))
        return self.moved((await self.most(works)).values())

    async def tidy(self, *, now: float | None = None) -> Moved:
        works = self.each(lambda store: store.tidy(now=now))
        return self.moved((await self.most(works)).values())

    async def deliver(self, *, now: float | None = None) -> Moved:
        """Go on with releasing dependents, and carry what is in the outboxes by one step."""
        works = self.each(lambda store: store.deliver(now=now))
        moved = await self.most(works)
        carried = await self.most(
            {shard: partial(self.carrier.carry, shard, now) for shard in moved}
        )
        count = sum(answer.count for answer in moved.values())
        return Moved(
            now=max(answer.now for answer in moved.values()),
            count=count + sum(told for told, _ in carried.values()),
            more=any(answer.more for answer in moved.values())
            or any(reached for _, reached in carried.values()),
        )

    async def watch(
        self, incarnation: str, ids: Sequence[str], *, now: float | None = None
    ) -> list[Watched]:
        """Watch in every shard; raise if one is away and the others do not know all tasks."""
        works = self.each(lambda store: store.watch(incarnation, ids, now=now))
        answers, away = await self.reachable(works)
        found = [
            next((watched for watched in each if watched.state is not None), each[0])
            for each in zip(*answers.values(), strict=True)
        ]
        if away and any(watched.state is None for watched in found):
            raise next(iter(away.values()))
        return found

    async def write(
        self, call: Call, writes: Sequence[Write], *, now: float | None = None
    ) -> list[Settled]:
        checks.check_writes(writes)
        line = self.line("write", call)
        if line.answer is not None:
            return cast(list[Settled], line.answer)
        if line.plan is None:
            leases = [(w.lease.id, w.lease.incarnation, w.lease.token) for w in writes]
            places = await self.locate(leases, now)
            line.plan = _grouped([places[w.lease.id] for w in writes], self.default)
        return await self._spread(
            line, writes, lambda store, part: store.write(call, part, now=now)
        )

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        """XCom values; of one that two shards have, the first shard's."""
        answers = await self.all(self.each(lambda store: store.pull(tenant, keys, now=now)))
        return [
            next((value for value in each if value is not None), None)
            for each in zip(*answers.values(), strict=True)
        ]

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        checks.check_orders(orders)
        line = self.line("alter", call)
        if line.answer is not None:
            return cast(list[Altered], line.answer)
        if line.plan is None:
            ids = [order.id for order in orders]
            known = await self.known(dict.fromkeys(self.stores, ids), now)
            places = [next(iter(known.get(id, {})), self.default) for id in ids]
            for order, place in zip(orders, places, strict=True):
                if order.action == "prioritize" and order.level is not None:
                    self.places.check_level(order.id, order.level, place, self.addresses)
            line.plan = _grouped(places, self.default)
        answers = await self._spread(
            line, orders, lambda store, part: store.alter(call, part, now=now)
        )
        self.carrier.soon(line.plan)
        return answers

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        checks.check_changes(changes)
        line = self.line("configure", call)
        if line.answer:
            return
        if not changes:
            await self.end_older_calls(call, now)
            line.answer = True
            return
        parts = self.places.split_changes(changes)
        if all(isinstance(change, Declaration) for change in changes):
            self.refuse_away(parts)  # a worker tries again, and has other things to do
        await self.all(
            {
                shard: partial(self.stores[shard].configure, call, part, now=now)
                for shard, part in parts.items()
            },
            line.kept,
        )
        line.answer = True

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        line = self.line("purge", call)
        if line.answer is None:
            works = {
                shard: partial(self.stores[shard].purge, call, queue, tenant, now=now)
                for shard in self.places.shards_of(queue)
            }
            line.answer = self.moved((await self.all(works, line.kept)).values())
        self.carrier.soon(self.places.shards_of(queue))
        return cast(Moved, line.answer)

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        """Delete it in its shards one by one, unless it is in use in any; the home goes last."""
        line = self.line("delete_queue", call)
        if line.answer is None:
            home = self.shard_of(queue)
            shards = [each for each in self.places.shards_of(queue) if each != home]
            if shards and not line.kept:
                counts = await reads.snapshot(self, queue, tenants=False, now=now)
                if counts.depth or counts.running:
                    return Deleted(now=counts.now, waiting=counts.depth, running=counts.running)
            answers: list[Deleted] = []
            for shard in (*shards, home):
                work = partial(self.stores[shard].delete_queue, call, queue, now=now)
                answers.append((await self.all({shard: work}, line.kept))[shard])
                if answers[-1].refused or answers[-1].more:
                    break
            count = sum(answer.count for answer in answers)
            line.answer = msgspec.structs.replace(answers[-1], count=count)
        return cast(Deleted, line.answer)

    # Documents and trails live in the first shard.

    async def write_documents(
        self, call: Call, changes: Sequence[DocumentChange], *, now: float | None = None
    ) -> list[DocumentChanged]:
        check_document_changes(changes)
        line = self.line("write_documents", call)
        if line.answer is None:
            line.answer = await self.first.write_documents(call, changes, now=now)
        return list(line.answer)

    async def note(
        self, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
    ) -> None:
        check_notes(trail, values)
        line = self.line("note", call)
        if not line.answer:
            await self.first.note(call, trail, values, now=now)
            line.answer = True

    async def lead(
        self,
        name: str,
        holder: str,
        *,
        ttl: float = LEADERSHIP,
        release: bool = False,
        now: float | None = None,
    ) -> Leadership:
        return await self.first.lead(name, holder, ttl=ttl, release=release, now=now)

    async def close(self) -> None:
        """Take in and lend nothing more, and wake everyone who waits."""
        await self.carrier.close()
        await self.away.close()
        await self.all(self.each(lambda store: store.close()))

    # -- several shards ------------------------------------------------------------------------

    async def _spread(
        self,
        line: Line,
        items: Sequence[H],
        verb: Callable[[ShardStore, Sequence[H]], Awaitable[list[T]]],
    ) -> list[T]:
        """Send each shard its part of a batch; the answers in the order of the batch."""
        plan: dict[str, list[int]] = line.plan
        answers = await self.all(
            {
                shard: partial(verb, self.stores[shard], [items[i] for i in places])
                for shard, places in plan.items()
            },
            line.kept,
        )
        if len(plan) == 1:
            (whole,) = answers.values()  # perhaps those to another batch: see the contract
            placed = dict(enumerate(whole))
        else:
            placed = {
                i: answer
                for shard, places in plan.items()
                for i, answer in zip(places, answers[shard], strict=True)
            }
        line.answer = answer = [placed[i] for i in range(len(placed))]
        return answer


def _grouped(places: Sequence[str], default: str) -> dict[str, list[int]]:
    """Which items of a batch go to which shard."""
    found: dict[str, list[int]] = {} if places else {default: []}
    for i, shard in enumerate(places):
        found.setdefault(shard, []).append(i)
    return found
