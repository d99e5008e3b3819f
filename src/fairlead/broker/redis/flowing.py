"""Flows on a server: written in parts, committed by one write, seen to in steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.broker.flow_checks import check_flow_order, check_members, check_part
from fairlead.broker.flows import FlowMember, FlowOrder, FlowPart, FlowRecord, Staged
from fairlead.broker.redis import answers, flow_codec
from fairlead.broker.redis.frame import Frame
from fairlead.broker.verbs import Call, Moved

__all__ = ("Flowing",)

_ACTIONS = {"cancel": "c", "retry": "r"}


class Flowing(Frame):
    """The part of the broker that takes flows in."""

    async def stage(self, call: Call, part: FlowPart, *, now: float | None = None) -> Staged:
        return await self.stage_from(call, part, {}, now=now)

    async def stage_from(
        self, call: Call, part: FlowPart, elsewhere: Mapping[str, str], *, now: float | None = None
    ) -> Staged:
        """``stage``, with dependencies that live in the shards of ``elsewhere``."""
        check_part(part)
        if self._closed:
            self._clock(now)
            return Staged(code="closed")
        args = flow_codec.part_args(part, elsewhere)
        return flow_codec.staged(await self._numbered("stage", call, now, args))

    async def commit(self, call: Call, flow: str, *, now: float | None = None) -> Staged:
        if self._closed:
            self._clock(now)
            return Staged(code="closed")
        return flow_codec.staged(await self._numbered("commit", call, now, [flow]))

    async def alter_flow(
        self, call: Call, order: FlowOrder, *, now: float | None = None
    ) -> Moved | None:
        check_flow_order(order)
        args = [order.flow, _ACTIONS[order.action], order.tenant or ""]
        reply = await self._numbered("alter_flow", call, now, args)
        return answers.moved(reply) if reply else None

    async def flows(
        self, ids: Sequence[str], *, now: float | None = None
    ) -> list[FlowRecord | None]:
        rows = await self._run("flows", [self._clock(now), *ids])
        return [
            None if row is None else flow_codec.read_flow(id, row)
            for id, row in zip(ids, rows, strict=True)
        ]

    async def members(
        self, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
    ) -> list[str]:
        check_members(start, limit)
        found = await self._run("members", [self._clock(now), flow, start, limit])
        return [id.decode() for id in found]

    async def graph(
        self, flow: str, *, start: int = 0, limit: int = 500, now: float | None = None
    ) -> list[FlowMember]:
        check_members(start, limit)
        found = await self._run("members", [self._clock(now), flow, start, limit, "1"])
        return [flow_codec.member(found[i], found[i + 1]) for i in range(0, len(found), 2)]
