"""plan, tick, schedules over several shards: a schedule lies in the shard of its queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from fairlead.broker import checks
from fairlead.broker.schedules import Scheduled, ScheduleOrder, ScheduleRecord, Ticked
from fairlead.broker.sharded.frame import Frame
from fairlead.broker.verbs import Call
from fairlead.model.errors import BrokerError, InvalidInput
from fairlead.runtime.ids import new_id

__all__ = ("Planning",)

_TRIES = 5  # at a move, while others change the same schedule

_log = logging.getLogger(__name__)


class _Plan(msgspec.Struct):
    """How a batch is split: what has to go to another shard first, then the rest in its place."""

    leaving: dict[str, list[int]]  # by the shard that has it: put under another shard's queue
    places: dict[str, list[int]]
    strays: dict[str, list[int]]  # further copies of what is deleted
    before: dict[str, ScheduleRecord]  # those that leave, as they were


class Planning(Frame):
    """The part of the broker that keeps schedules.

    A name is looked for in all shards before anything is done with it, so it is one schedule for
    everybody, unless two clients create it in two shards at the same moment.

    A firing goes to the shard of its queue. So a schedule that lies in another one is never fired,
    whatever its queue was before: it is on its way, and ``tick`` takes it there. That is how one
    moves that is put under a queue of another shard, and one whose queue was given another route.
    Whoever dies in between leaves a schedule that moves on when it is due, or two copies, of which
    the one in the shard of its queue counts.
    """

    async def plan(
        self, call: Call, orders: Sequence[ScheduleOrder], *, now: float | None = None
    ) -> list[Scheduled]:
        checks.check_plan(orders)
        line = self._line("plan", call)
        if line.answer is not None:
            return cast(list[Scheduled], line.answer)
        if line.plan is None:
            line.plan = self._split_orders(orders, await self._look_up(orders, now))
        plan: _Plan = line.plan
        done = await self._relocate(call, orders, plan, line.kept, now)
        works: dict[tuple[str, str], Any] = {
            ("", shard): partial(
                self._stores[shard].plan, call, [orders[i] for i in indexes], now=now
            )
            for shard, indexes in plan.places.items()
        }
        for (_, shard), answers in (await self._all(works, line.kept)).items():
            done.update(zip(plan.places[shard], answers, strict=True))
        works = {}
        for shard, indexes in plan.strays.items():
            gone = [_deletion(orders[i].name) for i in indexes if done[i].code == "done"]
            works["stray", shard] = partial(self._stores[shard].plan, _once(), gone, now=now)
        await self._all(works, line.kept)
        line.answer = result = [done[i] for i in range(len(orders))]
        return result

    async def tick(self, *, now: float | None = None) -> Ticked:
        answers = await self._most(
            {shard: partial(store.tick, now=now) for shard, store in self._stores.items()}
        )
        due: list[ScheduleRecord] = []
        times: dict[str, float] = {}
        more = any(answer.more for answer in answers.values())
        for shard, answer in answers.items():
            for record in answer.due:
                if self.shard_of(record.queue) == shard:
                    due.append(record)
                    times[record.name] = answer.now
                else:
                    more = await self._take_home(shard, record, now) or more
        latest = max(answer.now for answer in answers.values())
        return Ticked(now=latest, due=due, more=more, times=times)

    async def schedules(
        self, names: Sequence[str] | None = None, *, now: float | None = None
    ) -> list[ScheduleRecord]:
        found = self._merged(await self._by_shard(names, now))
        return [found[name][1] for name in sorted(found)]

    # -- where they are ------------------------------------------------------------------------

    async def _by_shard(
        self, names: Sequence[str] | None, now: float | None
    ) -> dict[str, list[ScheduleRecord]]:
        return await self._all(
            {
                shard: partial(store.schedules, names, now=now)
                for shard, store in self._stores.items()
            }
        )

    async def _look_up(
        self, orders: Sequence[ScheduleOrder], now: float | None
    ) -> dict[str, list[ScheduleRecord]]:
        """What is known of the names, as far as it matters.

        A shard that is away does not matter to schedules that were found in their own.
        """
        names = list(dict.fromkeys(each.name for each in orders if not _is_placed(each)))
        if not names:
            return {}
        found = await self._most(
            {
                shard: partial(store.schedules, names, now=now)
                for shard, store in self._stores.items()
            }
        )
        home = {
            record.name
            for shard, records in found.items()
            for record in records
            if self.shard_of(record.queue) == shard
        }
        if len(found) < len(self._stores) and not home.issuperset(names):
            return await self._by_shard(names, now)
        return found

    def _merged(
        self, found: Mapping[str, Sequence[ScheduleRecord]]
    ) -> dict[str, tuple[str, ScheduleRecord]]:
        """By name: the shard and the record, of two the one in the shard of its queue."""
        known: dict[str, tuple[str, ScheduleRecord]] = {}
        for shard, records in found.items():
            for record in records:
                if record.name not in known or self.shard_of(record.queue) == shard:
                    known[record.name] = shard, record
        return known

    def _split_orders(
        self, orders: Sequence[ScheduleOrder], found: Mapping[str, Sequence[ScheduleRecord]]
    ) -> _Plan:
        merged = self._merged(found)
        known = {name: shard for name, (shard, _) in merged.items()}
        plan = _Plan({}, {} if orders else {self._default: []}, {}, {})
        said: set[str] = set()
        for i, order in enumerate(orders):
            shard = known.get(order.name, self._default)
            if order.action == "delete":
                for other, records in found.items():
                    if other != shard and any(each.name == order.name for each in records):
                        plan.strays.setdefault(other, []).append(i)
            if _is_placed(order) and order.name not in known:
                shard = self.shard_of(order.queue)
            if order.action == "put" or (order.action == "create" and order.name not in known):
                shard = self.shard_of(order.queue)
                if known.get(order.name, shard) != shard:
                    if order.name in said:
                        raise InvalidInput(
                            f"schedule {order.name!r} is named twice, for queues in two shards; "
                            "use two calls"
                        )
                    plan.leaving.setdefault(known[order.name], []).append(i)
                    plan.before[order.name] = merged[order.name][1]
                    known[order.name] = shard
                    said.add(order.name)
                    continue
                known[order.name] = shard
            said.add(order.name)
            plan.places.setdefault(shard, []).append(i)
        return plan

    # -- moving --------------------------------------------------------------------------------

    async def _relocate(
        self,
        call: Call,
        orders: Sequence[ScheduleOrder],
        plan: _Plan,
        kept: dict[Any, Any],
        now: float | None,
    ) -> dict[int, Scheduled]:
        """Put under its new queue where it is, so that it is fired no more; then take it there."""
        away = Call(f"{call.incarnation}/leaving", call.number, call.until)
        works: dict[tuple[str, Any], Any] = {
            ("leaving", shard): partial(
                self._stores[shard].plan, away, [orders[i] for i in indexes], now=now
            )
            for shard, indexes in plan.leaving.items()
        }
        done: dict[int, Scheduled] = {}
        moves: dict[tuple[str, Any], Any] = {}
        for (_, shard), answers in (await self._all(works, kept)).items():
            for i, answer in zip(plan.leaving[shard], answers, strict=True):
                done[i] = answer
                if answer.code in ("done", "unchanged"):
                    before = plan.before[orders[i].name]
                    moves["move", i] = partial(self._follow, shard, orders[i].queue, before, now)
        for (_, i), moved in (await self._all(moves, kept)).items():
            done[i] = moved
        return done

    async def _follow(
        self, source: str, queue: str, before: ScheduleRecord, now: float | None
    ) -> Scheduled:
        """Take a schedule to the shard of its new queue; undo that change if there is no room."""
        name, target = before.name, self._stores[self.shard_of(queue)]
        for _ in range(_TRIES):
            found = await self._stores[source].schedules([name], now=now)
            if not found:  # somebody was faster
                break
            answer = await self._move(source, found[0], now)
            if answer.code == "full":
                back = ScheduleOrder(
                    name=name,
                    action="put",
                    queue=before.queue,
                    spec=before.spec,
                    next_at=before.next_at,
                    revision=found[0].revision,
                )
                await self._stores[source].plan(_once(), [back], now=now)
            if answer.code != "stale":
                return answer
        there = await target.schedules([name], now=now)
        if there:
            return Scheduled(name=name, code="done", revision=there[0].revision)
        return Scheduled(name=name, code="stale")

    async def _take_home(self, source: str, record: ScheduleRecord, now: float | None) -> bool:
        """Move one that was found in the wrong shard; whether it went."""
        code: str
        try:
            code = (await self._move(source, record, now)).code
        except BrokerError as error:  # another time: the others do not wait for it
            code = type(error).__name__
        fields = {"schedule": record.name, "shard": self.shard_of(record.queue), "was_in": source}
        if code == "done":
            _log.info("schedule moved to the shard of its queue", extra=fields)
        else:
            _log.warning("schedule not moved; tried again", extra={**fields, "reason": code})
        return code == "done"

    async def _move(self, source: str, record: ScheduleRecord, now: float | None) -> Scheduled:
        """There first, then away from here: ``done``, ``full``, or ``stale`` if it was changed."""
        name, target = record.name, self._stores[self.shard_of(record.queue)]
        there = await target.schedules([name], now=now)
        revision = there[0].revision if there else 0
        if not there:
            arrival = ScheduleOrder(
                name=name,
                action="create",
                queue=record.queue,
                spec=record.spec,
                next_at=record.next_at,
                last_slot=record.last_slot,
            )
            pause = [ScheduleOrder(name=name, action="pause")] if record.paused else []
            made = await target.plan(_once(), [arrival, *pause], now=now)
            if made[0].code == "full":
                return made[0]
            revision = made[-1].revision
        leaving = _deletion(name, record.revision)
        [left] = await self._stores[source].plan(_once(), [leaving], now=now)
        if left.code != "stale":
            return Scheduled(name=name, code="done", revision=revision)
        if not there:
            await target.plan(_once(), [_deletion(name, revision)], now=now)
        return left


def _is_placed(order: ScheduleOrder) -> bool:
    """Whether it need not be looked for: whoever skips was handed it where it lies."""
    return order.action == "skip" and bool(order.queue)


def _deletion(name: str, revision: int | None = None) -> ScheduleOrder:
    return ScheduleOrder(name=name, action="delete", revision=revision)


def _once() -> Call:
    """A call that nobody repeats: what it did is looked at, and what is missing is done."""
    return Call(f"move-{new_id()}", 1)
