"""Random flows and random steps on two brokers side by side: both are alike after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.broker import Store
from fairlead.broker.flows import FlowOrder
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Alter, Submission
from fairlead.model.lifecycle import DependencyPolicy, Settlement
from fairlead.model.message import Leased
from fairlead.model.options import Dependency
from tests.support.fair import examples
from tests.support.flows import commit, parts_of, stage
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, dead, drain, failed, ids, submit

FLOWS = ("f0", "f1")
OUTSIDE = ("out0", "out1", "out2")
POLICIES: tuple[DependencyPolicy, ...] = ("dead", "cancel", "wait", "run")


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


# One member: tenant, how far before it what it depends on stands, tasks outside that it depends on,
# policy, delay, deadline. A flow is such a pattern, several times; perhaps the last waits for all.
MEMBERS = st.tuples(
    st.sampled_from("ab"),
    st.lists(st.integers(1, 6), max_size=3, unique=True),
    st.lists(st.sampled_from(OUTSIDE), max_size=1),
    st.sampled_from(POLICIES),
    st.sampled_from([0.0, 0.0, 0.0, 5.0]),
    st.sampled_from([None, None, None, 8.0]),
)
Shape = tuple[list[Any], int, DependencyPolicy | None]
SHAPES = st.tuples(
    st.lists(MEMBERS, min_size=1, max_size=12),
    st.sampled_from([1, 1, 3, 12]),
    st.none() | st.sampled_from(POLICIES),
)


def built(flow: str, shape: Shape) -> list[Submission]:
    """The members of a flow, each behind what it depends on."""
    pattern, times, last = shape
    members: list[Submission] = []
    for n, (tenant, back, outside, policy, delay, deadline) in enumerate(pattern * times):
        parents = [f"{flow}-{n - k}" for k in back if k <= n] + outside
        members.append(
            submit(
                f"{flow}-{n}",
                tenant,
                after=[Dependency(id, known=True) for id in parents],
                policy=policy,
                delay=delay,
                deadline=deadline,
            )
        )
    if last is not None:
        members.append(
            submit(f"{flow}-all", after=[each.message.id for each in members], policy=last)
        )
    return members


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 20), st.lists(st.integers(0, 5), max_size=20)),
        st.tuples(st.just("run"), st.just(128), st.just([])),
        st.tuples(
            st.just("alter"),
            st.sampled_from(["cancel", "requeue", "delete"]),
            st.integers(0, 200),
        ),
        st.tuples(st.just("flow"), st.sampled_from(["cancel", "retry"]), st.sampled_from(FLOWS)),
        st.tuples(st.just("outside"), st.sampled_from(OUTSIDE)),
        st.tuples(st.just("commit"), st.sampled_from(FLOWS)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 9.0, 700.0, 3600.0])),
        st.tuples(st.just("deliver")),
    ),
    max_size=25,
)


class Side:
    """One of the two brokers, and what was asked of it."""

    def __init__(self, store: Store) -> None:
        self.store, self.c = store, Client(store, "w1")
        self.now = NOW
        self.leases: list[Leased] = []

    async def do(self, step: tuple[Any, ...], members: list[str]) -> Any:
        """Take a step; what was answered."""
        c, now = self.c, self.now
        match step:
            case ("run", most, outcomes):
                leases = await c.fetch(most, now=now)
                ends = [
                    _end(lease, outcomes[i] if i < len(outcomes) else 0)
                    for i, lease in enumerate(leases)
                ]
                return ids(leases), await c.settle(*ends, now=now)
            case ("alter", action, place):
                order = Alter(id=members[place % len(members)], action=action)
                return await c.alter(order, now=now)
            case ("flow", action, flow):
                whole = FlowOrder(flow=flow, action=action)
                return await self.store.alter_flow(c.call(), whole, now=now) is None
            case ("outside", id):
                return await c.enqueue(submit(id), now=now)
            case ("commit", flow):
                return await commit(c, flow, now=now)
            case ("wait", seconds):
                self.now += seconds
                await self.store.promote(now=self.now)
                return await self.tidied()
            case _:
                return (await self.store.deliver(now=now)).more

    async def tidied(self) -> None:
        while (await self.store.tidy(now=self.now)).more:
            pass

    async def seen(self, members: list[str]) -> list[Any]:
        """All that anybody can see of the flows and their members."""
        assert await self.store.audit(now=self.now) == []
        await drain(self.store, now=self.now)
        assert await self.store.audit(now=self.now) == []
        records = await self.store.find(members, now=self.now)
        tasks = [
            None
            if record is None
            else (
                *(record.message.id, record.state, record.flow),
                # A server sees only after a retry that one of very many dependencies had failed.
                0 if record.message.id.endswith("-all") else record.generation,
                *(record.attempts, record.due_at, record.deadline_at),
                *(record.message.body, frozenset(record.waiting_for), record.dependents),
                record.reason.partition(":")[0],
            )
            for record in records
        ]
        flows = await self.store.flows(FLOWS, now=self.now)
        written = [await self.store.members(flow, now=self.now) for flow in FLOWS]
        counts = await self.store.snapshot(now=self.now)
        # Whether a server answered is the one thing in which they have to differ.
        return [tasks, flows, written, replace(counts, redis_active=False)]


def _end(lease: Leased, outcome: int) -> Settlement:
    if outcome == 1:
        return dead(lease)
    return failed(lease, 3.0) if outcome == 2 else completed(lease)


@examples(30)
@given(first=SHAPES, second=SHAPES, steps=STEPS)
def test_two_brokers_do_the_same_to_the_same_flows(
    valkey: Running, first: Shape, second: Shape, steps: list[Any]
) -> None:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        client.flushall()
    asyncio.run(_compare(valkey.url, built("f0", first), built("f1", second), steps))


async def _compare(
    url: str, first: list[Submission], second: list[Submission], steps: list[Any]
) -> None:
    sides = [Side(MemoryBroker(test_clock=True)), Side(RedisBroker(url, test_clock=True))]
    members = [*OUTSIDE, *(member.message.id for member in (*first, *second))]
    for side in sides:
        await side.c.enqueue(submit("out0"), now=NOW)
        for flow, written in (("f0", first), ("f1", second)):
            codes = await stage(side.c, *parts_of(flow, *written, size=20))
            assert set(codes) == {"staged"}
    try:
        for step in [("commit", "f0"), *steps]:
            answers = [await side.do(step, members) for side in sides]
            assert answers[0] == answers[1], step
            seen = [await side.seen(members) for side in sides]
            for one, other in zip(*seen, strict=True):
                assert one == other, step
    finally:
        for side in sides:
            await side.store.close()
