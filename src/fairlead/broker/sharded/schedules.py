"""plan, tick, schedules over several shards: a schedule lies in the shard of its queue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec

from fairlead.broker import checks
from fairlead.broker.schedules import Scheduled, ScheduleOrder, ScheduleRecord, Ticked
from fairlead.broker.sharded.frame import Frame
from fairlead.broker.verbs import Call
from fairlead.model.errors import InvalidInput

__all__ = ("Planning",)


class _Plan(msgspec.Struct):
    """How a batch is split: what has to go elsewhere first, then everything in its place."""

    leaving: dict[str, list[int]]  # by the shard that has it: replaced under another shard's queue
    places: dict[str, list[int]]
    paused: frozenset[str]  # of those that move


class Planning(Frame):
    """The part of the broker that keeps schedules.

    A name is looked for in all shards before anything is done with it, so it is one schedule for
    everybody, unless two clients create it in two shards at the same moment. ``put`` under a queue
    of another shard deletes it there and creates it here; the last slot fired is then forgotten.
    """

    async def plan(
        self, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
    ) -> list[Scheduled]:
        checks.check_plan(orders)
        line = self._line("plan", call)
        if line.answer is not None:
            return cast(list[Scheduled], line.answer)
        if line.plan is None:
            names = list(dict.fromkeys(order.name for order in orders))
            line.plan = self._split_orders(orders, await self._by_shard(names, now))
        plan: _Plan = line.plan
        left: dict[int, Scheduled] = {}
        away = Call(f"{call.incarnation}/leaving", call.number)
        works = {}
        for shard, indexes in plan.leaving.items():
            deletes = [_deletion(orders[i]) for i in indexes]
            works["leaving", shard] = partial(self._stores[shard].plan, away, deletes, now=now)
        for (_, shard), answers in (await self._all(works, line.kept)).items():
            left.update(zip(plan.leaving[shard], answers, strict=True))
        stale = {i: answer for i, answer in left.items() if answer.code == "stale"}
        parts: dict[str, list[tuple[int, ScheduleOrder]]] = {}
        for shard, indexes in plan.places.items():
            part = parts[shard] = []
            for i in indexes:
                if i in stale:
                    continue
                order = orders[i]
                if i in left:
                    order = msgspec.structs.replace(order, revision=None)
                part.append((i, order))
                if i in left and order.name in plan.paused:
                    part.append((i, ScheduleOrder(name=order.name, action="pause")))
        works = {
            ("", shard): partial(
                self._stores[shard].plan, call, [order for _, order in part], now=now
            )
            for shard, part in parts.items()
        }
        done = dict(stale)
        for (_, shard), answers in (await self._all(works, line.kept)).items():
            done.update((i, answer) for (i, _), answer in zip(parts[shard], answers, strict=True))
        line.answer = result = [done[i] for i in range(len(orders))]
        return result

    async def tick(self, *, now: float | None = None) -> Ticked:
        answers = await self._most(
            {shard: partial(store.tick, now=now) for shard, store in self._stores.items()}
        )
        return Ticked(
            now=max(answer.now for answer in answers.values()),
            due=[record for answer in answers.values() for record in answer.due],
            more=any(answer.more for answer in answers.values()),
        )

    async def schedules(
        self, names: Sequence[str] | None = None, *, now: float | None = None
    ) -> list[ScheduleRecord]:
        found = {
            record.name: record
            for records in (await self._by_shard(names, now)).values()
            for record in records
        }
        return [found[name] for name in sorted(found)]

    async def _by_shard(
        self, names: Sequence[str] | None, now: float | None
    ) -> dict[str, list[ScheduleRecord]]:
        return await self._all(
            {
                shard: partial(store.schedules, names, now=now)
                for shard, store in self._stores.items()
            }
        )

    def _split_orders(
        self, orders: Sequence[ScheduleOrder], found: dict[str, list[ScheduleRecord]]
    ) -> _Plan:
        known = {record.name: shard for shard, records in found.items() for record in records}
        paused = {each.name for records in found.values() for each in records if each.paused}
        plan = _Plan({}, {} if orders else {self._default: []}, frozenset(paused))
        said: set[str] = set()
        for i, order in enumerate(orders):
            shard = known.get(order.name, self._default)
            if order.action == "put" or (order.action == "create" and order.name not in known):
                shard = self.shard_of(order.queue)
                if known.get(order.name, shard) != shard:
                    if order.name in said:
                        raise InvalidInput(
                            f"schedule {order.name!r} is named twice, for queues in two shards; "
                            "use two calls"
                        )
                    plan.leaving.setdefault(known[order.name], []).append(i)
                known[order.name] = shard
            said.add(order.name)
            plan.places.setdefault(shard, []).append(i)
        return plan


def _deletion(order: ScheduleOrder) -> ScheduleOrder:
    return ScheduleOrder(name=order.name, action="delete", revision=order.revision)
