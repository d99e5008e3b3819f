"""One task of each of many tenants is lent in one go, and stores what the engine stores for it.

As in ``test_straight_small``, two brokers are asked the same, and every key of both must be the
same after each step.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from fairlead.broker.requests import Alter, QueueChange, Submission, TenantChange
from fairlead.model.errors import FairleadError
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from tests.broker.redis.straight_pair import PREFIX, Pair, made
from tests.broker.redis.test_straight_small import exchanged
from tests.support.long_way import ONCE
from tests.support.store import NOW, completed, submit

QUEUE = "wide"
NAMES = [f"tenant-{n}" for n in range(12)]


class Wide:
    """A pair whose queue has tenants that have ended a task each."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.number, self.now = 0, NOW + 1
        self.held: list[Leased] = []

    async def enqueue(self, *names: str, queue: str = QUEUE, **options: Any) -> list[str]:
        tasks = [self._task(name, queue, options) for name in names]
        await self.pair.enqueue(*tasks, now=self.now)
        return [task.message.id for task in tasks]

    def _task(self, name: str, queue: str, options: dict[str, Any]) -> Submission:
        self.number += 1
        return submit(made(self.number), name, queue, **options)

    async def configure(self, change: TenantChange | QueueChange) -> None:
        await self.pair.do(lambda client: client.configure(change))

    async def known(self, *names: str, queue: str = QUEUE) -> None:
        for _ in range(2):
            await self.enqueue(*names, queue=queue)
            await self.turn(len(names), queues=(queue,))
            await self.turn(0, queues=(queue,))

    async def turn(
        self,
        wanted: int,
        *,
        start: int | None = None,
        queues: tuple[str, ...] = (QUEUE,),
        end: Callable[[Leased], Settlement] = completed,
    ) -> tuple[int, int, bool]:
        """End what is held and fetch: how many, how often in one go, whether it went straight."""
        before, self.now = self.pair.count(ONCE), self.now + 1
        self.held, straight = await exchanged(
            self.pair, list(map(end, self.held)), wanted, start=start, now=self.now, queues=queues
        )
        return len(self.held), self.pair.count(ONCE) - before, straight


@pytest.fixture
async def wide() -> AsyncIterator[Wide]:
    made_wide = Wide()
    try:
        await made_wide.known(*NAMES)
        yield made_wide
        for client in made_wide.pair.clients:
            assert await client.broker.audit() == []
    finally:
        await made_wide.pair.close()


# -- in one go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("start", [None, 0, 5])
async def test_one_task_of_each_is_lent_in_one_go(
    wide: Wide, level: int, start: int | None
) -> None:
    for _ in range(5):
        await wide.enqueue(*NAMES, level=level)
    for _ in range(5):  # the last of them is the last task of each
        assert await wide.turn(len(NAMES), start=start) == (len(NAMES), 1, True)
    assert await wide.turn(0) == (0, 0, True)


async def test_a_call_may_begin_in_one_round_and_end_in_the_next(wide: Wide) -> None:
    for _ in range(4):
        await wide.enqueue(*NAMES)
    for _ in range(6):
        assert await wide.turn(7, start=3) == (7, 1, True)


async def test_those_of_several_queues_are(wide: Wide) -> None:
    await wide.known(*NAMES[:5], queue="other")
    for _ in range(4):
        await wide.enqueue(*NAMES)
    for start in (14, 3, None):
        await wide.enqueue(*NAMES[:5], queue="other")
        found = await wide.turn(5 + len(NAMES), start=start, queues=("other", QUEUE))
        assert found == (5 + len(NAMES), 2, True)
    for _ in range(2):
        await wide.enqueue(*NAMES[:5], queue="other")
    found = await wide.turn(10 + len(NAMES), queues=("other", QUEUE))
    assert found == (10 + len(NAMES), 1, True)  # of the first queue, each is served twice


async def test_results_and_unlike_sizes_are(wide: Wide) -> None:
    for n in range(4):
        await wide.enqueue(*NAMES[:6], body=b"x" * n)
        await wide.enqueue(*NAMES[6:], body=b"y" * 10 * n)

    def end(lease: Leased) -> Settlement:
        return completed(lease, result=b"r" * (wide.number % 3))

    for _ in range(4):
        assert await wide.turn(len(NAMES), end=end) == (len(NAMES), 1, True)


async def test_those_of_whom_others_are_forgotten_are(wide: Wide) -> None:
    """Some are forgotten of tenants that end tasks, some of others, until these have nothing."""
    many = [f"tenant-{n}" for n in range(160)]
    change = QueueChange(queue="room", keep_completed_count=130)
    await wide.configure(change)
    for _ in range(4):
        await wide.enqueue(*many, queue="room")
    ways = []
    for _ in range(7):
        ways.append(await wide.turn(80, start=40, queues=("room",)))
        await wide.pair.do(lambda client: client.broker.tidy(now=NOW))  # looks at what is kept
    assert ways.count((80, 1, True)) > 3, ways


async def test_cancelled_ones_stand_beside_what_ends(wide: Wide) -> None:
    lost = await wide.enqueue(*NAMES)
    for _ in range(3):
        await wide.enqueue(*NAMES)
    orders = [Alter(id=id, action="cancel") for id in lost[:6]]
    await wide.pair.do(lambda client: client.alter(*orders, now=wide.now))
    assert (await wide.turn(len(NAMES)))[0] == len(NAMES)
    assert await wide.turn(len(NAMES)) == (len(NAMES), 1, True)
    assert await wide.turn(len(NAMES)) == (len(NAMES), 1, True)


# -- as ever -----------------------------------------------------------------------------------


async def test_who_has_weight_may_be_served_twice(wide: Wide) -> None:
    change = TenantChange(tenant=NAMES[3], weight=3.0)
    await wide.configure(change)
    for _ in range(6):
        await wide.enqueue(*NAMES)
    await wide.turn(len(NAMES))  # which looks for what is due next
    served = 0
    for _ in range(4):
        assert (await wide.turn(len(NAMES), start=5))[::2] == (len(NAMES), True)
        served += sum(lease.message.tenant == NAMES[3] for lease in wide.held)
    assert served > 4


async def test_a_task_that_costs_little_may_be_followed_by_another(wide: Wide) -> None:
    """That is known when lines have been taken from, and some tenants been served."""
    in_order = sorted(NAMES)
    for _ in range(6):
        await wide.enqueue(*in_order[:9])
        await wide.enqueue(*in_order[9:], cost=0.25)
    assert await wide.turn(7, start=3) == (7, 1, True)
    assert await wide.turn(8, start=3) == (8, 0, True)
    served = [lease.message.tenant for lease in wide.held]
    assert served[:3] == in_order[7:10]
    assert served.count(in_order[9]) > 1
    for _ in range(4):
        assert (await wide.turn(len(NAMES), start=5))[::2] == (len(NAMES), True)


async def test_a_tenant_that_comes_later_may_be_served_before_its_round_ends(wide: Wide) -> None:
    for _ in range(4):
        await wide.enqueue(*NAMES)
    await wide.known("a")
    await wide.turn(7)
    for _ in range(3):
        await wide.enqueue("a")
    for _ in range(3):
        assert (await wide.turn(8, start=5))[::2] == (8, True)


async def test_the_first_level_is_lent_by_the_others(wide: Wide) -> None:
    for _ in range(4):
        await wide.enqueue(*NAMES, level=0)
    for _ in range(4):
        assert await wide.turn(len(NAMES)) == (len(NAMES), 0, True)


@pytest.mark.parametrize("levels", [(2, 1), (0, 2)])
async def test_several_levels_are(wide: Wide, levels: tuple[int, int]) -> None:
    for level in levels * 2:
        await wide.enqueue(*NAMES, level=level)
    assert (await wide.turn(len(NAMES)))[:2] == (len(NAMES), 0)
    for _ in range(3):  # of some only one level is left by then
        assert (await wide.turn(len(NAMES)))[0] == len(NAMES)


@pytest.mark.parametrize(
    "change",
    [
        TenantChange(tenant=NAMES[5], concurrency=2),
        TenantChange(tenant=NAMES[5], paused=True),
    ],
)
async def test_a_limit_or_a_pause_of_one_tenant_holds(wide: Wide, change: TenantChange) -> None:
    for _ in range(4):
        await wide.enqueue(*NAMES)
    await wide.turn(len(NAMES))
    await wide.configure(change)
    first, wide.held = wide.held, []  # which run on
    assert (await wide.turn(len(NAMES)))[:2] == (len(NAMES), 0)
    second, wide.held = wide.held, []
    await wide.turn(len(NAMES))
    of_one = [lease for lease in (*first, *second, *wide.held) if lease.message.tenant == NAMES[5]]
    assert len(of_one) == (change.concurrency or 1)


@pytest.mark.parametrize(("cancelled", "straight"), [(6, True), (7, False)])
async def test_what_is_cancelled_counts_for_an_order_of_its_own(
    wide: Wide, cancelled: int, straight: bool
) -> None:
    """Two are completed; with seven that were cancelled one more makes a 64th of the room."""
    await wide.configure(QueueChange(queue=QUEUE, keep_completed_count=640))
    lost = await wide.enqueue(*[NAMES[0]] * cancelled)
    orders = [Alter(id=id, action="cancel") for id in lost]
    await wide.pair.do(lambda client: client.alter(*orders, now=wide.now))
    await wide.enqueue(*NAMES)
    await wide.turn(len(NAMES))
    await wide.pair.do(lambda client: client.broker.tidy(now=NOW))  # looks at what is kept
    assert await wide.turn(0) == (0, 0, straight)


async def test_ends_in_another_hour_are_the_engines(wide: Wide) -> None:
    for _ in range(2):
        await wide.enqueue(*NAMES)
    assert await wide.turn(len(NAMES)) == (len(NAMES), 1, True)
    wide.now += 3600 - wide.now % 3600
    held, wide.held = wide.held[6:], wide.held[:6]
    assert await wide.turn(0) == (0, 0, False)
    wide.held = held
    assert await wide.turn(0) == (0, 0, False)


async def test_a_message_that_is_lost_puts_lines_back(wide: Wide) -> None:
    await wide.enqueue(*NAMES)
    lost = (await wide.enqueue(*NAMES))[7]
    await wide.turn(len(NAMES))
    wide.pair.spoil("HDEL", PREFIX + "tasks", lost)
    assert (await wide.turn(len(NAMES)))[1:] == (0, False)
    wide.pair.spoil("FLUSHALL")


async def test_a_line_of_another_type_puts_others_back(wide: Wide) -> None:
    for _ in range(3):
        await wide.enqueue(*NAMES)
    await wide.turn(len(NAMES))
    wide.pair.spoil("SET", f"{PREFIX}line:{QUEUE}:2:{NAMES[9]}", "odd")
    error, _ = await wide.pair.do(
        lambda client: client.fetch(len(NAMES), queues=(QUEUE,), now=wide.now)
    )
    assert issubclass(error, FairleadError)
    wide.pair.spoil("FLUSHALL")


# -- histories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
async def test_histories_of_many_tenants_leave_the_same(seed: int) -> None:
    draw, wide = random.Random(seed), Wide()
    size = draw.choice((6, 25, 100, 160))
    names = [f"tenant-{n}" for n in range(size)]
    odd = draw.random() < 0.5  # costs, weights and levels
    wide.now += draw.choice((0, 3600 - wide.now % 3600 - 60))  # in one of two another hour begins
    try:
        if draw.random() < 0.7:
            change = QueueChange(queue=QUEUE, keep_completed_count=draw.choice((130, 250)))
            await wide.configure(change)
        if odd:
            for name in draw.sample(names, 3):
                heavy = TenantChange(tenant=name, weight=draw.choice((0.5, 2.0)))
                await wide.configure(heavy)
        for _ in range(40):
            for _ in range(draw.choice((0, 1, 1, 2))):
                some = names if draw.random() < 0.6 else draw.sample(names, draw.randint(1, 6))
                options: dict[str, Any] = {"body": b"x" * draw.randint(0, 3)}
                if odd and draw.random() < 0.4:
                    options["cost"] = draw.choice((0.25, 1.0, 2.0))
                if odd and draw.random() < 0.05:
                    options["level"] = draw.choice((0, 1, 3))
                await wide.enqueue(*some, **options)
            wide.now += draw.choice((0.0, 0.5, 8.0))
            wanted = min(draw.choice((3, size // 2, size // 2, size - 1, size, 2 * size)), 128)
            result = b"r" * draw.choice((0, 0, 4))
            await wide.turn(
                wanted,
                start=draw.choice((None, 0, wanted // 3)),
                end=partial(completed, result=result or None),
            )
            if draw.random() < 0.1:
                await wide.pair.do(lambda client: client.broker.tidy(now=wide.now))
        assert odd or size < 100 or wide.pair.count(ONCE) > 0
        for client in wide.pair.clients:
            assert await client.broker.audit() == []
    finally:
        await wide.pair.close()


@pytest.mark.parametrize("order", ["A", "ABA", "ABC", "ABABA", "ABAABB"])
async def test_ends_of_several_queues_in_any_order_go_straight(wide: Wide, order: str) -> None:
    queues = ("A", "B", "C")
    for queue in queues:
        await wide.known("a", queue=queue)
        await wide.enqueue(*"aaa", queue=queue)
    await wide.turn(9, queues=queues)
    held = {queue: [each for each in wide.held if each.message.queue == queue] for queue in queues}
    ends = [completed(held[queue].pop()) for queue in order]
    _, straight = await exchanged(wide.pair, ends, now=wide.now + 1)
    assert straight
