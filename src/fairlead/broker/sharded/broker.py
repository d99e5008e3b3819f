"""Several shards behind one broker.

Each queue lives in one shard, and all that the contract says of a task, a queue, a tenant's part of
it, a limit, a unique key or an XCom value holds inside a shard. Between shards:

* **Batches** are split by shard and carried out shard by shard. Where some shards have carried out
  their part and another could not be reached, the call is ``Ambiguous`` and has to be repeated.
* **Fetch** asks the shards in the order of their first queue, and as many as it takes.
* **Dependencies** cross shards by durable outboxes: the child is stored first, ``deferred``; then
  its links go to the shards of its parents, whose answers come back. What is in an outbox is
  carried at once by whoever wrote it, otherwise by ``deliver``.
* **Flows** lie in one shard as a whole: all their queues have to. Members may depend on tasks of
  other shards.
* **A fence** on a task of another shard than the lease is looked at just before, not in one step.
* **Limits**: a tenant's settings for all queues, and named limiters, hold in each shard for itself.
* **Ids** are known in their own shard: the same chosen id in two shards is two tasks.
* **Schedules** lie in the shard of their queue; a name is looked for in all of them.
* **Documents**, trails, leaders and orders to workers lie in the first; workers are known in all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from fairlead.broker.sharded.changes import split_changes
from fairlead.broker.sharded.entering import Entering
from fairlead.broker.sharded.exchanging import Exchanging
from fairlead.broker.sharded.flowing import Flowing
from fairlead.broker.sharded.frame import Line
from fairlead.broker.sharded.listening import Listening
from fairlead.broker.sharded.looking import Looking
from fairlead.broker.sharded.post import Post
from fairlead.broker.sharded.reading import Reading
from fairlead.broker.sharded.schedules import Planning
from fairlead.broker.sharded.servers import joined_hello, register
from fairlead.broker.verbs import (
    LEASE,
    Alter,
    Altered,
    BeatReply,
    Call,
    Change,
    Declaration,
    Deleted,
    LeaseRef,
    Moved,
    Settled,
    Watched,
    WorkerOrder,
    Write,
)
from fairlead.broker.views import Hello, WorkerRecord

__all__ = ("ShardedBroker",)

T = TypeVar("T")
H = TypeVar("H")


class ShardedBroker(Entering, Exchanging, Flowing, Listening, Reading, Planning, Looking):
    """A Broker and an Inspector; ``fairlead.broker.protocol`` says what its verbs do."""

    async def hello(self) -> Hello:
        """Say who the broker is; its generation changes with that of any shard."""
        answers, _ = await self._reachable(self._each(lambda store: store.hello()))
        self._met.update(answers)
        if self._default in answers and not self._is_registered:
            self._is_registered = await register(self._first, self._addresses)
        return joined_hello(
            answers, [self._met.get(shard) for shard in self._stores], self._default
        )

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
        with self._lock:
            places = [self._leases.get(ref.id) for ref in held]
        named = {
            shard: [ref for ref, place in zip(held, places, strict=True) if place in (shard, None)]
            for shard in self._stores
        }
        # Its order stands in the first shard alone: it must not bring one along to another, where
        # it would stay when the first one takes it back.
        elsewhere = None if worker is None else msgspec.structs.replace(worker, order="")
        # A shard that is away keeps nobody's leases in the others from being kept.
        answers = await self._most(
            {
                shard: partial(
                    store.beat,
                    incarnation,
                    named[shard],
                    answered=answered,
                    worker=worker if shard == self._default else elsewhere,
                    lease=lease,
                    now=now,
                )
                for shard, store in self._stores.items()
            }
        )
        kept = {
            ref
            for shard, answer in answers.items()
            for ref in set(named[shard]).difference(answer.lost)
        }
        silent = {shard: refs for shard, refs in named.items() if shard not in answers}
        kept.update(*silent.values())  # nobody can say
        queues = worker.queues if worker is not None else ()
        paused = {name for answer in answers.values() for name in answer.paused}
        first = answers.get(self._default)
        stands = "" if worker is None else worker.order  # as long as nobody can say
        return BeatReply(
            now=max(answer.now for answer in answers.values()),
            lost=[ref for ref in held if ref not in kept],
            cancelled=[ref for answer in answers.values() for ref in answer.cancelled],
            paused=[queue for queue in queues if queue in paused],
            unclaimed=sum(answer.unclaimed for answer in answers.values()),
            more=any(answer.more for answer in answers.values()),
            order=stands if first is None else first.order,
        )

    async def order_worker(
        self, call: Call, incarnation: str, order: WorkerOrder, *, now: float | None = None
    ) -> bool:
        """Order it in the first shard: an order in several could be taken back in some only."""
        checks.check_worker_order(order)
        line = self._line("order_worker", call)
        if line.answer is None:
            line.answer = await self._first.order_worker(call, incarnation, order, now=now)
        return bool(line.answer)

    async def give_back(
        self,
        incarnation: str,
        started: Sequence[str] | None = None,
        *,
        blocked: Sequence[str] = (),
        now: float | None = None,
    ) -> Moved:
        works = self._each(
            lambda store: store.give_back(incarnation, started, blocked=blocked, now=now)
        )
        # One that is away gives it back by itself, when the lease is over.
        return self._moved((await self._most(works)).values())

    async def sweep(self, *, now: float | None = None) -> Moved:
        works = self._each(lambda store: store.sweep(now=now))
        return self._moved((await self._most(works)).values())

    async def promote(self, *, now: float | None = None) -> Moved:
        works = self._each(lambda store: store.promote(now=now))
        return self._moved((await self._most(works)).values())

    async def tidy(self, *, now: float | None = None) -> Moved:
        works = self._each(lambda store: store.tidy(now=now))
        return self._moved((await self._most(works)).values())

    async def deliver(self, *, now: float | None = None) -> Moved:
        """Go on with releasing dependents, and carry what is in the outboxes by one step."""
        works = self._each(lambda store: store.deliver(now=now))
        moved = await self._most(works)
        carried = await self._most(
            {shard: partial(self._carrier.carry, shard, now) for shard in moved}
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
        works = self._each(lambda store: store.watch(incarnation, ids, now=now))
        answers, away = await self._reachable(works)
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
        line = self._line("write", call)
        if line.answer is not None:
            return cast(list[Settled], line.answer)
        if line.plan is None:
            leases = [(w.lease.id, w.lease.incarnation, w.lease.token) for w in writes]
            places = await self._locate(leases, now)
            line.plan = _grouped([places[w.lease.id] for w in writes], self._default)
        return await self._spread(
            line, writes, lambda store, part: store.write(call, part, now=now)
        )

    async def pull(
        self, tenant: str, keys: Sequence[str], *, now: float | None = None
    ) -> list[bytes | None]:
        """XCom values; of one that two shards have, the first shard's."""
        answers = await self._all(self._each(lambda store: store.pull(tenant, keys, now=now)))
        return [
            next((value for value in each if value is not None), None)
            for each in zip(*answers.values(), strict=True)
        ]

    async def alter(
        self, call: Call, orders: Sequence[Alter], *, now: float | None = None
    ) -> list[Altered]:
        checks.check_orders(orders)
        line = self._line("alter", call)
        if line.answer is not None:
            return cast(list[Altered], line.answer)
        if line.plan is None:
            ids = [order.id for order in orders]
            known = await self._known(dict.fromkeys(self._stores, ids), now)
            places = [next(iter(known.get(id, {})), self._default) for id in ids]
            for order, place in zip(orders, places, strict=True):
                if order.action == "prioritize" and order.level is not None:
                    self._places.check_level(order.id, order.level, place, self._addresses)
            line.plan = _grouped(places, self._default)
        answers = await self._spread(
            line, orders, lambda store, part: store.alter(call, part, now=now)
        )
        self._carrier.soon(line.plan)
        return answers

    async def configure(
        self, call: Call, changes: Sequence[Change], *, now: float | None = None
    ) -> None:
        checks.check_changes(changes)
        line = self._line("configure", call)
        if line.answer:
            return
        if not changes:
            await self._end_older_calls(call, now)
            line.answer = True
            return
        parts = split_changes(changes, self._places, self._stores)
        if all(isinstance(change, Declaration) for change in changes):
            self._refuse_away(parts)  # a worker tries again, and has other things to do
        await self._all(
            {
                shard: partial(self._stores[shard].configure, call, part, now=now)
                for shard, part in parts.items()
            },
            line.kept,
        )
        line.answer = True

    async def purge(
        self, call: Call, queue: str, tenant: str | None = None, *, now: float | None = None
    ) -> Moved:
        line = self._line("purge", call)
        if line.answer is None:
            works = {
                shard: partial(self._stores[shard].purge, call, queue, tenant, now=now)
                for shard in self._places.shards_of(queue)
            }
            line.answer = self._moved((await self._all(works, line.kept)).values())
        self._carrier.soon(self._places.shards_of(queue))
        return cast(Moved, line.answer)

    async def delete_queue(self, call: Call, queue: str, *, now: float | None = None) -> Deleted:
        """Delete it in its shards one by one, unless it is in use in any; the home goes last."""
        line = self._line("delete_queue", call)
        if line.answer is None:
            home = self.shard_of(queue)
            shards = [each for each in self._places.shards_of(queue) if each != home]
            if shards and not line.kept:
                counts = await self.snapshot(queue, tenants=False, now=now)
                if counts.depth or counts.running:
                    return Deleted(now=counts.now, waiting=counts.depth, running=counts.running)
            answers: list[Deleted] = []
            for shard in (*shards, home):
                work = partial(self._stores[shard].delete_queue, call, queue, now=now)
                answers.append((await self._all({shard: work}, line.kept))[shard])
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
        line = self._line("write_documents", call)
        if line.answer is None:
            line.answer = await self._first.write_documents(call, changes, now=now)
        return list(line.answer)

    async def note(
        self, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
    ) -> None:
        check_notes(trail, values)
        line = self._line("note", call)
        if not line.answer:
            await self._first.note(call, trail, values, now=now)
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
        return await self._first.lead(name, holder, ttl=ttl, release=release, now=now)

    async def close(self) -> None:
        """Take in and lend nothing more, and wake everyone who waits."""
        await self._carrier.close()
        await self._away.close()
        await self._all(self._each(lambda store: store.close()))

    # -- several shards ------------------------------------------------------------------------

    def _each(self, verb: Callable[[Post], Awaitable[T]]) -> dict[str, Callable[[], Awaitable[T]]]:
        return {shard: partial(verb, store) for shard, store in self._stores.items()}

    async def _spread(
        self,
        line: Line,
        items: Sequence[H],
        verb: Callable[[Post, Sequence[H]], Awaitable[list[T]]],
    ) -> list[T]:
        """Send each shard its part of a batch; the answers in the order of the batch."""
        plan: dict[str, list[int]] = line.plan
        answers = await self._all(
            {
                shard: partial(verb, self._stores[shard], [items[i] for i in places])
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

    def _moved(self, answers: Iterable[Moved]) -> Moved:
        """The sum of what shards moved; ends may have put something into their outboxes."""
        all = list(answers)
        count = sum(answer.count for answer in all)
        if count:
            self._carrier.soon(self._stores)
        return Moved(
            now=max(answer.now for answer in all),
            count=count,
            more=any(answer.more for answer in all),
            guarded=any(answer.guarded for answer in all),
            ticks=any(answer.ticks for answer in all),
        )


def _grouped(places: Sequence[str], default: str) -> dict[str, list[int]]:
    """Which items of a batch go to which shard."""
    found: dict[str, list[int]] = {} if places else {default: []}
    for i, shard in enumerate(places):
        found.setdefault(shard, []).append(i)
    return found
