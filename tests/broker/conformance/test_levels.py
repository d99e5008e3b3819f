"""Four levels inside a tenant: critical first, and none of the others forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.requests import Fetch
from fairlead.model.message import LEVELS, Leased
from tests.support.fair import WITH_TEST_CLOCK, dispatches, enqueue_all, examples, opened, taken
from tests.support.store import NOW, Client, completed, failed, ids, submit

CRITICAL, HIGH, NORMAL, LOW = range(4)
EVERY_BROKER = pytest.mark.parametrize("make", WITH_TEST_CLOCK.values(), ids=WITH_TEST_CLOCK)
WINDOW = 8  # of a tenant's non-critical dispatches, each waiting lower level has one


def numbers(leases: list[Leased], level: int) -> list[int]:
    """The numbers of the tasks of one level, in the order of their dispatch."""
    return [int(id.split(".")[1]) for id in ids(leases) if id.startswith(f"{LEVELS[level]}.")]


async def fill(c: Client, counts: dict[int, int], tenant: str = "a") -> None:
    await enqueue_all(
        c,
        (
            submit(f"{LEVELS[level]}.{i}.{tenant}", tenant, level=level)
            for level, count in counts.items()
            for i in range(count)
        ),
    )


async def test_critical_goes_first_and_in_its_order(c: Client) -> None:
    await fill(c, {LOW: 20, NORMAL: 20, HIGH: 20})
    await fill(c, {CRITICAL: 20})

    leases = await taken(c, 80, 7)

    assert ids(leases)[:20] == [f"critical.{i}.a" for i in range(20)]


async def test_critical_that_comes_later_goes_before_what_waits(c: Client) -> None:
    await fill(c, {HIGH: 5, LOW: 5})
    assert len(await c.fetch(2)) == 2
    await c.enqueue(submit("now", level=CRITICAL))

    assert ids(await c.fetch(1)) == ["now"]


async def test_critical_never_overtakes_another_tenant(c: Client) -> None:
    await fill(c, {CRITICAL: 100}, "a")
    await fill(c, {LOW: 100}, "b")
    await fill(c, {CRITICAL: 50, LOW: 50}, "c")

    assert "".join(await dispatches(c, 150, 7)) == "abc" * 50


async def test_the_highest_waiting_level_is_preferred(c: Client) -> None:
    await fill(c, {LOW: 80, NORMAL: 80, HIGH: 80})

    leases = await taken(c, 80, 80)

    assert leases[0].message.level == HIGH
    assert len(numbers(leases, HIGH)) >= 40
    assert len(numbers(leases, NORMAL)) >= len(numbers(leases, LOW))


async def test_a_level_alone_is_served_without_gaps(c: Client) -> None:
    for level in (LOW, NORMAL, HIGH):
        await fill(c, {level: 30})
        assert numbers(await taken(c, 30, 30), level) == list(range(30))


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_each_level_is_first_in_first_out(c: Client, size: int) -> None:
    await enqueue_all(c, (submit(f"{LEVELS[i % 4]}.{i}", level=i % 4) for i in range(400)))

    leases = await taken(c, 400, size)

    assert len(leases) == 400
    for level in range(4):
        assert numbers(leases, level) == list(range(level, 400, 4))


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_one_in_eight_goes_to_each_lower_level_that_waits(c: Client, size: int) -> None:
    await fill(c, {HIGH: 400, NORMAL: 100, LOW: 100})

    levels = [lease.message.level for lease in await taken(c, 400, size)]

    for start in range(400 - WINDOW):
        window = levels[start : start + WINDOW]
        assert {NORMAL, LOW} <= set(window), f"dispatches {start} to {start + WINDOW}: {window}"


async def test_critical_dispatches_do_not_count_towards_the_eight(c: Client) -> None:
    await fill(c, {HIGH: 200, NORMAL: 60, LOW: 60})
    levels = []
    for turn in range(300):
        if turn % 3:
            await c.enqueue(submit(f"critical.{turn}", level=CRITICAL))
        (lease,) = await c.fetch(1)
        levels.append(lease.message.level)

    others = [level for level in levels if level != CRITICAL]
    assert len(others) == 100
    for start in range(len(others) - WINDOW):
        assert {NORMAL, LOW} <= set(others[start : start + WINDOW])


async def test_each_tenant_has_its_own_eight(c: Client) -> None:
    for tenant in "ab":
        await fill(c, {HIGH: 100, NORMAL: 30, LOW: 30}, tenant)

    leases = await taken(c, 200, 9)

    for tenant in "ab":
        levels = [x.message.level for x in leases if x.message.tenant == tenant]
        for start in range(len(levels) - WINDOW):
            assert {NORMAL, LOW} <= set(levels[start : start + WINDOW])


async def test_a_retried_task_keeps_its_level(c: Client) -> None:
    (lease,) = await c.run(submit("again", level=CRITICAL))
    await fill(c, {HIGH: 3})
    await c.settle(failed(lease, 1.0))

    assert ids(await c.fetch(1, now=NOW + 1)) == ["again"]


ARRIVALS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 5)), min_size=1, max_size=60
)


@EVERY_BROKER
@given(arrivals=ARRIVALS)
@examples(100)
def test_levels_hold_their_promises_under_any_arrivals(
    make: Callable[[], Store], arrivals: list[tuple[list[int], int]]
) -> None:
    """Each step some tasks arrive and some are fetched."""

    async def run() -> None:
        async with opened(make) as broker:
            client = Client(broker)
            waiting: list[list[str]] = [[], [], [], []]
            passed = [0, 0, 0, 0]  # dispatches of others in a row while the level waited
            for step, (levels, size) in enumerate(arrivals):
                for i, level in enumerate(levels):
                    waiting[level].append(f"{step}.{i}")
                await enqueue_all(
                    client, (submit(f"{step}.{i}", level=level) for i, level in enumerate(levels))
                )
                for lease in await client.fetch(size):
                    level = lease.message.level
                    assert waiting[level][0] == lease.message.id, "first in, first out"
                    assert level == CRITICAL or not waiting[CRITICAL], "critical goes first"
                    if level != CRITICAL:
                        for lower in (NORMAL, LOW):
                            mine = lower == level or not waiting[lower]
                            passed[lower] = 0 if mine else passed[lower] + 1
                    waiting[level].pop(0)
                    assert max(passed) < WINDOW, "one in eight"

    asyncio.run(run())


async def test_settling_in_between_changes_no_order(c: Client) -> None:
    await fill(c, {HIGH: 60, NORMAL: 20, LOW: 20})
    leases = await taken(c, 50, 10)
    order = Fetch(queues=("default",), max=1)
    for lease in leases[:50]:
        leases += (await c.exchange([completed(lease)], fetch=order)).leased

    for level in (HIGH, NORMAL, LOW):
        assert all(earlier < later for earlier, later in pairwise(numbers(leases, level)))
    assert len(leases) == 100
