"""Short forms for tests of flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from fairlead.broker import Store
from fairlead.broker.flows import FlowOrder, FlowPart, FlowRecord, Share, Staged
from fairlead.broker.requests import Moved, Submission
from tests.support.store import NOW, Client, drain

__all__ = (
    "alter_flow",
    "commit",
    "flow_record",
    "make",
    "ordered",
    "parts_of",
    "shares_of",
    "stage",
)


def shares_of(members: Sequence[Submission]) -> tuple[Share, ...]:
    """How many of the members belong to each tenant of each queue."""
    many = Counter((member.message.queue, member.message.tenant) for member in members)
    return tuple(Share(queue, tenant, count) for (queue, tenant), count in many.items())


def parts_of(
    flow: str, *members: Submission, tenant: str = "a", name: str = "", size: int = 500
) -> list[FlowPart]:
    """A flow, cut into parts of some size."""
    return [
        FlowPart(
            flow=flow,
            number=number,
            tenant=tenant,
            name=name,
            shares=() if number else shares_of(members),
            members=tuple(members[start : start + size]),
        )
        for number, start in enumerate(range(0, len(members), size))
    ]


async def stage(c: Client, *parts: FlowPart, now: float = NOW) -> list[str]:
    """Write parts, and say what became of each."""
    return [(await c.broker.stage(c.call(), part, now=now)).code for part in parts]


async def commit(c: Client, flow: str, *, now: float = NOW) -> Staged:
    return await c.broker.commit(c.call(), flow, now=now)


async def make(
    c: Client,
    flow: str,
    *members: Submission,
    tenant: str = "a",
    name: str = "",
    size: int = 500,
    now: float = NOW,
) -> None:
    """Write a flow, commit it, and lay it out to its end."""
    parts = parts_of(flow, *members, tenant=tenant, name=name, size=size)
    assert set(await stage(c, *parts, now=now)) == {"staged"}
    assert (await commit(c, flow, now=now)).code == "committed"
    await drain(c.broker, now=now)


async def flow_record(broker: Store, flow: str, *, now: float = NOW) -> FlowRecord:
    """What is known of one flow that must be known."""
    (found,) = await broker.flows([flow], now=now)
    assert found is not None, f"flow {flow} is unknown"
    return found


async def alter_flow(
    c: Client,
    flow: str,
    action: Literal["cancel", "retry"],
    *,
    tenant: str | None = None,
    now: float = NOW,
) -> Moved | None:
    order = FlowOrder(flow=flow, action=action, tenant=tenant)
    return await c.broker.alter_flow(c.call(), order, now=now)


async def ordered(
    c: Client, flow: str, action: Literal["cancel", "retry"], *, now: float = NOW
) -> tuple[int, bool]:
    """Order something about a flow that must be known: how many moved, and whether more will."""
    moved = await alter_flow(c, flow, action, now=now)
    assert moved is not None, f"flow {flow} is unknown"
    return moved.count, moved.more
