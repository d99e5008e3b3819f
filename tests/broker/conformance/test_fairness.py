"""Tenants share the workers by weight, whatever they do and however much is fetched at once."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.requests import (
    MAX_STEP,
    Change,
    LimiterChange,
    QueueChange,
    Submission,
    TenantChange,
)
from tests.support.fair import (
    WITH_TEST_CLOCK,
    backlog,
    dispatches,
    enqueue_all,
    examples,
    opened,
    taken,
)
from tests.support.store import NOW, Client, completed, failed, ids, released, submit

EVERY_BROKER = pytest.mark.parametrize("make", WITH_TEST_CLOCK.values(), ids=WITH_TEST_CLOCK)
SIZES = (1, 3, 7, 64, 128)


# -- shares -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 64])
async def test_weights_of_3_1_1_are_served_3_1_1(c: Client, size: int) -> None:
    await c.configure(TenantChange(tenant="a", weight=3.0))
    for tenant in "abc":
        await backlog(c, tenant, 1_500)

    served = Counter(await dispatches(c, 1_500, size))

    assert abs(served["a"] - 900) <= 1
    assert abs(served["b"] - 300) <= 1
    assert abs(served["c"] - 300) <= 1


async def test_equal_weights_take_turns(c: Client) -> None:
    for tenant in "abc":
        await backlog(c, tenant, 20)

    assert "".join(await dispatches(c, 30, 4)) == "abc" * 10


async def test_each_dispatch_moves_the_tag_on_by_cost_over_weight(c: Client) -> None:
    await c.configure(TenantChange(tenant="b", weight=2.0))
    await enqueue_all(c, (submit(f"a.{i}", "a", cost=2.0) for i in range(20)))
    await enqueue_all(c, (submit(f"b.{i}", "b", cost=1.0) for i in range(60)))

    # The tags of a go 0, 2, 4, …, those of b 0, 0.5, 1, …; where they are equal, a goes first.
    assert "".join(await dispatches(c, 25, 5)) == "abbbb" * 5


async def test_ties_go_by_tenant_name(c: Client) -> None:
    names = ["zoe", "Zoe", "b", "é", "a", "10", "9"]
    await c.enqueue(*(submit(f"t{i}", name) for i, name in enumerate(names)))

    assert [lease.message.tenant for lease in await c.fetch(7)] == sorted(names)


async def test_queues_are_emptied_in_the_order_given(c: Client) -> None:
    for queue in ("slow", "fast"):
        await c.enqueue(*(submit(f"{queue}.{t}", t, queue) for t in "ab"))

    leases = await c.fetch(10, ["fast", "slow"])

    assert ids(leases) == ["fast.a", "fast.b", "slow.a", "slow.b"]


async def test_queues_have_clocks_of_their_own(c: Client) -> None:
    await enqueue_all(c, (submit(f"x.{i}", "a", "x") for i in range(50)))
    assert len(await taken(c, 50, 50, ("x",))) == 50
    await enqueue_all(c, (submit(f"y.{t}.{i}", t, "y") for t in "ab" for i in range(5)))

    leases = await c.fetch(10, ["y"])

    assert "".join(lease.message.tenant for lease in leases) == "ababababab"


async def test_a_new_weight_holds_for_the_existing_backlog(c: Client) -> None:
    for tenant in "ab":
        await backlog(c, tenant, 1_000)
    assert Counter(await dispatches(c, 100)) == {"a": 50, "b": 50}

    await c.configure(TenantChange(tenant="a", weight=3.0))

    served = Counter(await dispatches(c, 400, 8))
    assert abs(served["a"] - 300) <= 2


async def test_the_weight_in_one_queue_goes_before_the_weight_in_all(c: Client) -> None:
    await c.configure(
        TenantChange(tenant="a", weight=9.0), TenantChange(tenant="a", queue="default", weight=3.0)
    )
    for tenant in "ab":
        await backlog(c, tenant, 100)
    await enqueue_all(c, (submit(f"o.{t}.{i}", t, "third") for t in "ab" for i in range(100)))

    assert Counter(await dispatches(c, 100))["a"] == pytest.approx(75, abs=1)
    others = [lease.message.tenant for lease in await taken(c, 100, 10, ("third",))]
    assert Counter(others)["a"] == pytest.approx(90, abs=1)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
async def test_run_time_charged_on_settle_makes_shares_of_run_time(
    c: Client, size: int, scale: float
) -> None:
    await c.configure(QueueChange(queue="default", charge_run_time=True))
    for tenant in ("fast", "slow"):
        await backlog(c, tenant, 660)
    run_times = {"fast": scale, "slow": 10 * scale}

    served = Counter(await dispatches(c, 660, size, run_times=run_times))

    slow, fast = served["slow"] * 10, served["fast"]
    assert 0.45 <= slow / (slow + fast) <= 0.55


async def test_run_time_is_not_charged_unless_asked_for(c: Client) -> None:
    for tenant in ("fast", "slow"):
        await backlog(c, tenant, 200)

    served = Counter(await dispatches(c, 200, run_times={"fast": 1.0, "slow": 10.0}))

    assert served == {"fast": 100, "slow": 100}


# -- nobody is kept out -----------------------------------------------------------------------


@pytest.mark.slow
async def test_a_quiet_tenant_waits_at_most_three_dispatches_behind_20_000_tasks(
    c: Client,
) -> None:
    await backlog(c, "noisy", 20_000)  # of which not a quarter is served here
    dice = random.Random(1)
    names = ["a.quiet", "z.quiet", *(f"{'az'[i % 2]}.{i}" for i in range(20))]
    waits = []
    for moment in range(400):
        await dispatches(c, dice.randrange(8))
        quiet = dice.choice(names)
        await c.enqueue(submit(f"{quiet}.{moment}", quiet))
        served = await dispatches(c, 4)
        waits.append(served.index(quiet))

    assert max(waits) <= 3


async def test_new_tenants_without_end_do_not_starve_the_one_that_sorts_last(c: Client) -> None:
    def newcomer(number: int) -> Submission:
        return submit(f"n.{number}", f"n.{number:06}")

    await c.enqueue(*(newcomer(i) for i in range(50)))
    await backlog(c, "zzz", 5)
    turns = []
    for turn in range(800):
        if await dispatches(c, 1) == ["zzz"]:
            turns.append(turn)
        else:
            await c.enqueue(newcomer(50 + turn))

    assert len(turns) == 5
    assert turns[0] <= 100
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 200


async def test_a_tenant_that_leaves_and_comes_back_gains_nothing(c: Client) -> None:
    await backlog(c, "b", 300)
    served: Counter[str] = Counter()
    last = "a"
    for turn in range(300):
        if last == "a":  # its only task is gone: it comes back with another
            await c.enqueue(submit(f"a.{turn}", "a"))
        (last,) = await dispatches(c, 1)
        served[last] += 1

    assert abs(served["a"] - 150) <= 1


async def test_a_tenant_that_comes_back_after_a_burst_still_owes_for_it(c: Client) -> None:
    await enqueue_all(c, (submit(f"b.{i}", "b") for i in range(100)))
    await c.enqueue(submit("a.burst", "a", cost=20.0))
    assert (await dispatches(c, 1)) == ["a"]
    await enqueue_all(c, (submit(f"a.{i}", "a") for i in range(10)))

    served = await dispatches(c, 40)

    assert served.index("a") == pytest.approx(20, abs=1)


async def test_idle_tenants_hoard_no_credit(c: Client) -> None:
    await backlog(c, "a", 1)
    await backlog(c, "b", 600)
    await dispatches(c, 300)
    await enqueue_all(c, (submit(f"late.{i}", "a") for i in range(300)))

    for _ in range(10):
        assert abs(Counter(await dispatches(c, 20))["a"] - 10) <= 1


async def test_parked_tenants_hoard_no_credit(c: Client) -> None:
    await c.configure(
        TenantChange(tenant="a", concurrency=0), TenantChange(tenant="p", paused=True)
    )
    for tenant in "abp":
        await backlog(c, tenant, 1_000)
    assert Counter(await dispatches(c, 500)) == {"b": 500}

    await c.configure(
        TenantChange(tenant="a", concurrency=None), TenantChange(tenant="p", paused=False)
    )

    assert all(abs(n - 100) <= 1 for n in Counter(await dispatches(c, 300)).values())


# -- one fetch of n is n fetches of one -------------------------------------------------------

MIXED: tuple[Change, ...] = (
    TenantChange(tenant="t0", weight=3.0),
    TenantChange(tenant="t1", weight=0.5, concurrency=9),
    TenantChange(tenant="t2", rate=4.0, burst=5),
    TenantChange(tenant="t3", weight=2.0, concurrency=20, rate=50.0, burst=11),
    TenantChange(tenant="t4", paused=True),
    TenantChange(tenant="t5", concurrency=0),
    TenantChange(tenant="t6", queue="default", weight=7.0),
    LimiterChange(name="narrow", concurrency=6),
    LimiterChange(name="slow", rate=8.0, burst=3),
)


def mixed_backlog(count: int) -> list[Submission]:
    dice = random.Random(7)
    names: dict[int, tuple[str, ...]] = {1: ("narrow",), 3: ("slow", "narrow"), 7: ("narrow",)}
    return [
        submit(
            f"m.{i}",
            f"t{tenant}",
            level=dice.choices(range(4), (1, 4, 6, 4))[0],
            cost=dice.choice((0.25, 1.0, 1.0, 3.0)),
            limiters=dice.choice(((), (), names.get(tenant, ()))),
        )
        for i in range(count)
        for tenant in [dice.randrange(9)]
    ]


async def sequence(
    make: Callable[[], Store],
    changes: tuple[Change, ...],
    submissions: list[Submission],
    size: int,
    *,
    rounds: int = 4,
    per_round: int = 128,
) -> list[list[str]]:
    """What is dispatched in each round; between rounds time goes on and some tasks are settled."""
    found = []
    async with opened(make) as broker:
        client = Client(broker)
        await client.configure(*changes)
        await enqueue_all(client, submissions)
        for turn in range(rounds):
            now = NOW + turn * 0.75
            leases = await taken(client, per_round, size, now=now)
            found.append(ids(leases))
            ends = (completed, released, lambda lease: failed(lease, 0.5), None)
            for i, lease in enumerate(leases[: 2 * MAX_STEP]):  # one fetch finds all retries
                if end := ends[i % len(ends)]:
                    assert await client.settle(end(lease), now=now) == ["applied"]
    return found


@EVERY_BROKER
async def test_one_fetch_of_n_gives_the_same_sequence_as_n_fetches_of_one(
    make: Callable[[], Store],
) -> None:
    tasks = mixed_backlog(900)
    one_by_one = await sequence(make, MIXED, tasks, 1)
    assert len(one_by_one[0]) > 64

    for size in SIZES[1:]:
        assert await sequence(make, MIXED, tasks, size) == one_by_one


@EVERY_BROKER
async def test_the_sequence_is_the_same_under_limits_of_the_queue(
    make: Callable[[], Store],
) -> None:
    limits = QueueChange(queue="default", concurrency=60, rate=32.0, burst=50)
    tasks = mixed_backlog(600)
    one_by_one = await sequence(make, (*MIXED, limits), tasks, 1)
    assert len(one_by_one[0]) == 50

    for size in SIZES[1:]:
        assert await sequence(make, (*MIXED, limits), tasks, size) == one_by_one


TENANT = st.builds(
    lambda weight, concurrency, rate, burst, paused: {
        "weight": weight,
        "concurrency": concurrency,
        "rate": rate,
        "burst": burst,
        "paused": paused,
    },
    st.sampled_from([1.0, 1.0, 0.1, 0.5, 2.0, 3.0, 10.0]),
    st.sampled_from([None, None, None, 0, 1, 3, 10]),
    st.sampled_from([None, None, None, 1.0, 2.0, 10.0]),
    st.integers(1, 5),
    st.sampled_from([False, False, False, False, True]),
)
TASK = st.tuples(
    st.integers(0, 5),
    st.integers(0, 3),
    st.sampled_from([1.0, 1.0, 0.5, 2.0]),
    st.sampled_from([(), (), (), ("narrow",), ("narrow", "slow")]),
)


@EVERY_BROKER
@given(
    tenants=st.lists(TENANT, min_size=1, max_size=6),
    tasks=st.lists(TASK, min_size=1, max_size=80),
    size=st.sampled_from(SIZES[1:]),
)
@examples(60)
def test_the_sequence_does_not_depend_on_the_size_whatever_the_configuration(
    make: Callable[[], Store],
    tenants: list[dict[str, object]],
    tasks: list[tuple[int, int, float, tuple[str, ...]]],
    size: int,
) -> None:
    changes: list[Change] = [
        LimiterChange(name="narrow", concurrency=4),
        LimiterChange(name="slow", rate=2.0, burst=2),
    ]
    for i, options in enumerate(tenants):
        changes.append(TenantChange(tenant=f"t{i}", **options))  # type: ignore[arg-type]
    submissions = [
        submit(f"m.{i}", f"t{tenant}", level=level, cost=cost, limiters=limiters)
        for i, (tenant, level, cost, limiters) in enumerate(tasks)
    ]

    async def both() -> None:
        one_by_one = await sequence(make, tuple(changes), submissions, 1, per_round=30)
        at_once = await sequence(make, tuple(changes), submissions, size, per_round=30)
        assert at_once == one_by_one

    asyncio.run(both())


# -- the bound --------------------------------------------------------------------------------


@EVERY_BROKER
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 5.0, 10.0]), min_size=2, max_size=6),
    count=st.integers(1, 150),
    size=st.sampled_from(SIZES),
)
@examples(60)
def test_nobody_is_further_from_their_share_than_the_bound(
    make: Callable[[], Store], weights: list[float], count: int, size: int
) -> None:
    async def run() -> list[str]:
        async with opened(make) as broker:
            client = Client(broker)
            for i, weight in enumerate(weights):
                await client.configure(TenantChange(tenant=f"t{i}", weight=weight))
                await backlog(client, f"t{i}", count)
            return await dispatches(client, count, size)

    served = asyncio.run(run())
    total = sum(weights)
    counts: Counter[str] = Counter()
    last = dict.fromkeys((f"t{i}" for i in range(len(weights))), -1)
    for done, tenant in enumerate(served, 1):
        counts[tenant] += 1
        for i, weight in enumerate(weights):
            gap = counts[f"t{i}"] - done * weight / total
            assert abs(gap) <= 1 + weight / min(weights)
        waited = done - 1 - last[tenant]
        assert waited <= math.ceil(total / weights[int(tenant[1:])]) + len(weights)
        last[tenant] = done - 1
