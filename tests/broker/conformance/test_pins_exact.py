"""Whatever happens in whatever order, pins are exact: nothing is lost, nothing stays for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.requests import QueueChange
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.message import Leased
from tests.support import fair
from tests.support.store import (
    NOW,
    Client,
    completed,
    dead,
    drain,
    failed,
    released,
    states,
    submit,
)

MADE = {f"made-{n}".ljust(32, "-") for n in range(8)}  # as long as those that Fairlead makes
IDS = [f"t{n}" for n in range(8)] + sorted(MADE)
DAY = 86_400.0

numbers = st.integers(0, len(IDS) - 1)
enqueue = st.tuples(st.just("enqueue"), st.lists(numbers, min_size=1, max_size=3), st.booleans())
fetch = st.tuples(st.just("fetch"), st.integers(1, 3))
ends = ("done", "kept", "gone", "dead", "dead", "dead", "retry", "back")
settle = st.tuples(st.just("settle"), numbers, st.sampled_from(ends))
order = st.tuples(st.sampled_from(("cancel", "requeue", "requeue", "requeue", "delete")), numbers)
time = st.tuples(st.just("pass"), st.sampled_from((1.0, 50.0, 4_000.0)))
steps = st.one_of(enqueue, enqueue, fetch, settle, settle, order, time, st.just(("crash",)))


class Story:
    """Applies steps, and knows who still has to read whom."""

    def __init__(self, broker: Store) -> None:
        self.broker = broker
        self.c = Client(broker)
        self.now = NOW
        self.leases: dict[str, Leased] = {}
        self.uses: dict[str, set[str]] = {}  # by the child: what it pins
        self.failed: set[str] = set()  # dead or cancelled when last seen: pins do not keep those

    async def apply(self, step: tuple[object, ...]) -> None:
        await getattr(self, f"_{step[0]}")(*step[1:])
        self.now += 1.0
        await self._check()

    async def _of(self, *wanted: State) -> list[str]:
        """What there is in these states, so that most steps find something to do."""
        found = zip(IDS, await states(self.broker, *IDS, now=self.now), strict=True)
        return [id for id, state in found if state in wanted]

    async def _enqueue(self, after: list[int], uses: bool) -> None:
        known = await self._of(*State)
        parents = [known[n % len(known)] for n in after] if known else []
        spent = MADE & self.uses.keys()  # such an id never comes twice
        free = [id for id in IDS if id not in known and id not in spent]
        if not free:
            return
        id = free[len(self.uses) % len(free)]
        (receipt,) = await self.c.enqueue(
            submit(id, after=parents, policy="run", uses=uses), now=self.now
        )
        assert receipt.code == "accepted"
        self.uses[id] = set(parents) if uses else set()

    async def _fetch(self, count: int) -> None:
        for lease in await self.c.fetch(count, now=self.now):
            self.leases[lease.message.id] = lease

    async def _settle(self, number: int, how: str) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(sorted(self.leases)[number % len(self.leases)])
        settlement = {
            "done": completed(lease),
            "kept": completed(lease, b"result", keep=10.0),
            "gone": completed(lease, keep=0.0),
            "dead": dead(lease),
            "retry": failed(lease, delay=1.0),
            "back": released(lease),
        }[how]
        await self.c.settle(settlement, now=self.now)

    async def _cancel(self, number: int) -> None:
        if known := await self._of(*set(State) - FINAL):
            await self.c.cancel(known[number % len(known)], now=self.now)

    async def _requeue(self, number: int) -> None:
        if not (gone := await self._of(State.DEAD)):
            return
        id, known = gone[number % len(gone)], await self._of(*State)
        assert (await self.c.requeue(id, now=self.now)).code == "done"
        self.uses[id].intersection_update(known)

    async def _delete(self, number: int) -> None:
        if known := await self._of(*FINAL):
            id = known[number % len(known)]
            assert (await self.c.delete(id, now=self.now)).code == "done"
            for parents in self.uses.values():
                parents.discard(id)

    async def _crash(self) -> None:
        await self.broker.give_back("w1", now=self.now)
        self.leases.clear()

    async def _pass(self, seconds: float) -> None:
        self.now += seconds
        await self.broker.promote(now=self.now)
        await self.broker.tidy(now=self.now)
        await drain(self.broker, now=self.now)

    async def _check(self) -> None:
        found = dict(zip(IDS, await states(self.broker, *IDS, now=self.now), strict=True))
        forgotten = {id for id in self.failed if found[id] is None}
        self.failed = {id for id in IDS if found[id] in (State.DEAD, State.CANCELLED)}
        for parents in self.uses.values():
            parents.difference_update(forgotten)
        for child, parents in self.uses.items():
            if found[child] is None:
                parents.clear()
            elif found[child] in FINAL:  # what it would read when it is requeued may go
                if found[child] is not State.DEAD:
                    parents.clear()
            else:
                lost = {parent for parent in parents if found[parent] is None}
                assert not lost, f"{child} is {found[child]} and will read {lost}, which are gone"
        assert await self.broker.audit(now=self.now) == []

    async def end(self) -> None:
        """Let everything end; then nothing may be left but what the retention keeps."""
        while self.leases:
            await self._settle(0, "done")
        while True:
            await self._pass(10.0)
            leases = await self.c.fetch(20, now=self.now)
            if not leases:
                break
            await self.c.settle(*map(completed, leases), now=self.now)
        await self._check()
        for id, state in zip(IDS, await states(self.broker, *IDS, now=self.now), strict=True):
            assert state is None or state in FINAL, f"{id} is {state}"
        self.now += 8 * DAY
        while (await self.broker.tidy(now=self.now)).more:
            pass
        assert await states(self.broker, *IDS, now=self.now) == [None] * len(IDS)
        assert await self.broker.audit(now=self.now) == []


@pytest.mark.timeout(120 * fair.LONGER)
@pytest.mark.parametrize("name", fair.WITH_TEST_CLOCK)
@fair.examples(40)
@given(story=st.lists(steps, min_size=30, max_size=60), caps=st.booleans())
def test_nothing_that_will_be_read_is_forgotten_and_nothing_is_kept_for_good(
    name: str, story: list[tuple[object, ...]], caps: bool
) -> None:
    asyncio.run(_tell(fair.WITH_TEST_CLOCK[name], story, caps))


async def _tell(opener: Callable[[], Store], story: list[tuple[object, ...]], caps: bool) -> None:
    broker = opener()
    try:
        told = Story(broker)
        if caps:
            await told.c.configure(
                QueueChange(queue="default", keep_completed_count=1, keep_dead_bytes=300)
            )
        for step in story:
            await told.apply(step)
        await told.end()
    finally:
        await broker.close()
