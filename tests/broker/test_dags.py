"""Random graphs under random fates, in memory and on a server side by side.

Whatever fails, is cancelled, crashes, is put back or retried: nobody is let go early or twice, the
flow counts what became of its members, and in the end each task is finished or names a task that
it waits for, which explains why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.broker.flows import FlowOrder, FlowPart, FlowRecord, Share
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import LeaseRef
from fairlead.model.lifecycle import FINAL, DependencyPolicy, Settlement, State
from fairlead.model.message import Leased
from tests.support.fair import EXAMPLES, examples
from tests.support.store import ERROR, NOW, Client, submit
from tests.support.twins import on_server, twins

FLOW = "a:flow"
LEASE = 30.0
LARGE = 70  # more than one step lays out


class Member(NamedTuple):
    """One task of a graph: after which others, what if one fails, and for how long it sleeps."""

    after: tuple[int, ...]
    policy: DependencyPolicy
    delay: float


@st.composite
def graphs(draw: st.DrawFn) -> list[Member]:
    """Members, each behind those it depends on."""
    size = draw(st.integers(1, 8) | st.just(LARGE))
    policies: st.SearchStrategy[DependencyPolicy] = st.sampled_from(
        ["dead", "dead", "cancel", "wait", "run"]
    )
    return [
        Member(
            tuple(draw(st.sets(st.integers(max(0, number - 6), number - 1), max_size=3)))
            if number
            else (),
            draw(policies),
            draw(st.sampled_from([0.0, 0.0, 0.0, 5.0])),
        )
        for number in range(size)
    ]


# The last still waits for the second when the first fails and takes the third with it.
PASSED_BY = [
    Member((), "dead", 0.0),
    Member((), "dead", 0.0),
    Member((0,), "dead", 0.0),
    Member((0, 1, 2), "run", 0.0),
]


def name(number: int) -> str:
    return f"a:t{number}" if number % 3 == 0 else f"{number:032x}"


ACTIONS = st.one_of(
    st.tuples(
        st.just("work"),
        st.integers(1, 4),
        st.sampled_from(["completed", "completed", "dead", "retrying", "hold"]),
    ),
    st.tuples(st.just("crash")),
    st.tuples(st.just("cancel"), st.integers(0, LARGE - 1)),
    st.tuples(st.just("requeue"), st.integers(0, LARGE - 1)),
    st.tuples(st.just("cancel_flow")),
    st.tuples(st.just("retry_flow")),
    st.tuples(st.just("deliver")),
    st.tuples(st.just("wait")),
)


class Run:
    """One graph, from its commit to its end."""

    def __init__(self, graph: list[Member]) -> None:
        members = [
            submit(
                name(number),
                after=[name(parent) for parent in member.after],
                policy=member.policy,
                delay=member.delay,
            )
            for number, member in enumerate(graph)
        ]
        self.store = twins(MemoryBroker(test_clock=True), on_server("valkey"))
        self.c = Client(self.store)
        self.members = members
        self.ids = [member.message.id for member in members]
        self.waits = {m.message.id: [d.id for d in m.depends_on] for m in members}
        self.policy = {m.message.id: m.on_dependency_failure for m in members}
        self.held: list[Leased] = []
        self.requeued: set[str] = set()
        self.released: Counter[tuple[str, int]] = Counter()
        self.records: dict[str, TaskRecord | None] = dict.fromkeys(self.ids)
        self.now = NOW
        self.incarnation = 1

    async def begin(self) -> None:
        shares = (Share("default", "a", len(self.members)),)
        part = FlowPart(flow=FLOW, number=0, tenant="a", shares=shares, members=tuple(self.members))
        assert (await self.store.stage(self.c.call(), part, now=self.now)).code == "staged"
        assert (await self.store.commit(self.c.call(), FLOW, now=self.now)).code == "committed"
        await self.look()

    # -- what may happen ----------------------------------------------------------------------

    async def act(self, action: tuple[Any, ...]) -> None:
        kind, *rest = action
        await getattr(self, f"_{kind}")(*rest)
        await self.look()

    async def _work(self, count: int, end: str) -> None:
        self.held += await self.c.fetch(count, now=self.now, lease=LEASE)
        if end != "hold" and self.held:
            lease = self.held.pop(0)
            await self.look()  # as it runs
            await self.c.settle(self.ended(lease, State(end)), now=self.now)

    def ended(self, lease: Leased, to: State) -> Settlement:
        return Settlement(
            id=lease.message.id,
            token=lease.token,
            to=to,
            delay=3.0 if to is State.RETRYING else 0.0,
            error=None if to is State.COMPLETED else ERROR,
            reason="exhausted" if to is State.DEAD else "",
        )

    async def _crash(self) -> None:
        await self.store.give_back(self.c.incarnation, now=self.now)
        self.held.clear()
        self.incarnation += 1
        self.c = Client(self.store, f"w{self.incarnation}")

    async def _cancel(self, number: int) -> None:
        await self.c.cancel(self.ids[number % len(self.ids)], now=self.now)

    async def _requeue(self, number: int) -> None:
        id = self.ids[number % len(self.ids)]
        if (await self.c.requeue(id, now=self.now)).code == "done":
            self.requeued.add(id)

    async def _cancel_flow(self) -> None:
        order = FlowOrder(flow=FLOW, action="cancel")
        await self.store.alter_flow(self.c.call(), order, now=self.now)

    async def _retry_flow(self) -> None:
        order = FlowOrder(flow=FLOW, action="retry")
        await self.store.alter_flow(self.c.call(), order, now=self.now)

    async def _deliver(self) -> None:
        await self.store.deliver(now=self.now)

    async def _wait(self) -> None:
        self.now += 4.0
        held = [LeaseRef(each.message.id, self.c.incarnation, each.token) for each in self.held]
        await self.store.beat(self.c.incarnation, held, lease=LEASE, now=self.now)
        await self.store.promote(now=self.now)

    # -- what must hold -----------------------------------------------------------------------

    async def look(self) -> None:
        """Compare with what was before: has anybody been let go who should not be?"""
        before = self.records
        found = await self.store.find(self.ids, now=self.now)
        self.records = dict(zip(self.ids, found, strict=True))
        for id, record in self.records.items():
            old = before[id]
            if record is None or old is None:
                continue
            if old.state is State.DEFERRED and record.state not in (State.DEFERRED, *FINAL):
                self.let_go(id, record, before)
        ended = {
            id for id, each in self.records.items() if each is not None and each.state in FINAL
        }
        self.requeued -= ended
        flow = await self.flow()
        states = Counter(each.state for each in self.records.values() if each is not None)
        assert flow.completed == states[State.COMPLETED]
        assert flow.dead == states[State.DEAD]
        assert flow.cancelled == states[State.CANCELLED]
        assert flow.laid_out == sum(each is not None for each in self.records.values())
        assert flow.state is self.expected(states)

    def let_go(self, id: str, record: TaskRecord, before: dict[str, TaskRecord | None]) -> None:
        self.released[id, record.generation] += 1
        assert self.released[id, record.generation] == 1, f"{id} was released twice"
        for parent in self.waits[id]:
            now, then = self.records[parent], before[parent]
            assert now is not None
            if self.policy[id] == "run":
                if parent in self.requeued:  # alone: its end stays counted, see ``alter``
                    continue
                assert now.state in FINAL or (then is not None and then.state in FINAL), id
            else:
                assert now.state is State.COMPLETED, f"{id} was released before {parent}"

    def expected(self, states: Counter[State]) -> State:
        if sum(states[final] for final in FINAL) < len(self.ids):
            return State.RUNNING
        if states[State.DEAD]:
            return State.DEAD
        return State.CANCELLED if states[State.CANCELLED] else State.COMPLETED

    async def flow(self) -> FlowRecord:
        (record,) = await self.store.flows([FLOW], now=self.now)
        assert record is not None
        return record

    async def heal(self) -> None:
        """No more bad luck: everything that can run does so, and well."""
        for _ in range(20 * len(self.ids) + 50):
            while self.held:
                lease = self.held.pop(0)
                await self.c.settle(self.ended(lease, State.COMPLETED), now=self.now)
            await self._deliver()
            await self._wait()
            await self.look()
            self.held = await self.c.fetch(20, now=self.now, lease=LEASE)
            moved = await self.store.deliver(now=self.now)
            waiting = {each.state for each in self.records.values() if each is not None}
            if not (self.held or moved.more or waiting - {*FINAL, State.DEFERRED}):
                return
        raise AssertionError("it does not come to an end")

    async def verdict(self) -> None:
        await self.look()
        for id, record in self.records.items():
            assert record is not None, f"{id} was never laid out"
            if record.state in FINAL:
                continue
            assert record.state is State.DEFERRED, (id, record.state)
            assert record.waiting_for, f"{id} waits for nothing that it could name"
            for parent in record.waiting_for:
                why = self.records[parent]
                assert why is not None, f"{id} waits for {parent}, which is unknown"
                assert why.state in (State.DEAD, State.CANCELLED, State.DEFERRED)
        assert await self.store.audit(now=self.now) == []


@pytest.mark.timeout(120 * EXAMPLES)
@examples(60)
@given(graphs(), st.lists(ACTIONS, max_size=30))
@example(PASSED_BY, [("work", 1, "dead"), ("retry_flow",)])
@example(PASSED_BY, [("work", 1, "dead"), ("requeue", 0), ("work", 1, "completed")])
def test_random_graphs_come_to_an_end_that_can_be_explained(
    graph: list[Member], actions: list[tuple[Any, ...]]
) -> None:
    async def live() -> None:
        run = Run(graph)
        try:
            await run.begin()
            for action in actions:
                await run.act(action)
            await run.heal()
            await run.verdict()
        finally:
            await run.store.close()

    asyncio.run(live())
