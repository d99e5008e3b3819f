"""Flows over several shards: each lies in one of them as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from fairlead.broker.flow_checks import check_flow_order, check_members, check_part
from fairlead.broker.flows import FlowMember, FlowOrder, FlowPart, FlowRecord, Staged
from fairlead.broker.sharded.frame import Frame
from fairlead.broker.verbs import Call, Moved
from fairlead.model.errors import InvalidInput

__all__ = ("Flowing",)

_MOST_WRITING = 100  # flows that are being written at a time, of which members are remembered
#: What is said of a commit if shards say different things: the first of these.
_LEAST = ("committed", "incomplete", "duplicate", "closed", "unknown")


class Flowing(Frame):
    """The part of the broker that takes flows in.

    Which shard has a flow is asked of all of them, unless it was written here a moment ago; ids of
    flows, as those of tasks, are known in their own shard.
    """

    async def stage(self, call: Call, part: FlowPart, *, now: float | None = None) -> Staged:
        """Write a part into the shard of its queues. Dependencies may live in other shards."""
        check_part(part)
        shard = self._place(part)
        line = self._line("stage", call)
        if line.answer is None:
            own = self._members(call, part, shard)
            ids = [d.id for m in part.members for d in m.depends_on if d.id not in own]
            others = {name: ids for name in self._stores if name != shard}
            found = await self._known(others, now) if shard not in line.kept else {}
            elsewhere = {id: next(iter(shards)) for id, shards in found.items()}
            stage = partial(self._stores[shard].stage_from, call, part, elsewhere, now=now)
            line.answer = (await self._all({shard: stage}, line.kept))[shard]
        return cast(Staged, line.answer)

    def _members(self, call: Call, part: FlowPart, shard: str) -> set[str]:
        """What is known here of the members of the flow, with those of this part."""
        key = call.incarnation, part.flow
        with self._lock:
            place, members = self._writing.pop(key, (shard, set()))
            if part.number == 0 or place != shard:
                members = set()
            members.update(member.message.id for member in part.members)
            self._writing[key] = shard, members
            if len(self._writing) > _MOST_WRITING:  # of the others all shards are asked
                del self._writing[next(iter(self._writing))]
            return members

    def _place(self, part: FlowPart) -> str:
        """The shard of all queues of a part, or ``InvalidInput``."""
        places: dict[str, str] = {}
        for queue in [share.queue for share in part.shares]:
            places.setdefault(self.shard_of(queue), queue)
        for member in part.members:
            places.setdefault(self.shard_of(member.message.queue), member.message.queue)
        if len(places) > 1:
            (one, first), (other, second) = list(places.items())[:2]
            raise InvalidInput(
                f"flow {part.flow} has tasks of queue {first} in shard {one} and of queue {second} "
                f"in shard {other}; put its queues into one shard, or make it several flows"
            )
        return next(iter(places), self._default)

    async def commit(self, call: Call, flow: str, *, now: float | None = None) -> Staged:
        line = self._line("commit", call)
        if line.answer is None:
            with self._lock:
                written = self._writing.get((call.incarnation, flow))
            works = {
                shard: partial(store.commit, call, flow, now=now)
                for shard, store in self._stores.items()
                if written is None or shard == written[0]
            }
            answers = list((await self._all(works, line.kept)).values())
            line.answer = min(answers, key=lambda each: _LEAST.index(each.code))
            with self._lock:
                self._writing.pop((call.incarnation, flow), None)
            self._carrier.soon(self._stores)
        return cast(Staged, line.answer)

    async def alter_flow(
        self, call: Call, order: FlowOrder, *, now: float | None = None
    ) -> Moved | None:
        check_flow_order(order)
        line = self._line("alter_flow", call)
        if line.answer is None:
            works = {
                shard: partial(store.alter_flow, call, order, now=now)
                for shard, store in self._stores.items()
            }
            answers = (await self._all(works, line.kept)).values()
            line.answer = (next((each for each in answers if each is not None), None),)
            self._carrier.soon(self._stores)
        (moved,) = cast(tuple[Moved | None], line.answer)
        return moved

    async def flows(
        self, ids: Sequence[str], *, now: float | None = None
    ) -> list[FlowRecord | None]:
        works = {shard: partial(store.flows, ids, now=now) for shard, store in self._stores.items()}
        answers = await self._all(works)
        return [
            next((found for found in each if found is not None), None)
            for each in zip(*answers.values(), strict=True)
        ]

    async def members(
        self, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
    ) -> list[str]:
        check_members(start, limit)
        works = {
            shard: partial(store.members, flow, start=start, limit=limit, now=now)
            for shard, store in self._stores.items()
        }
        answers = await self._all(works)
        return next((found for found in answers.values() if found), [])

    async def graph(
        self, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
    ) -> list[FlowMember]:
        check_members(start, limit)
        works = {
            shard: partial(store.graph, flow, start=start, limit=limit, now=now)
            for shard, store in self._stores.items()
        }
        answers = await self._all(works)
        return next((found for found in answers.values() if found), [])
