"""Named limiters over several queues: room goes to whoever can take it, and is never left lying."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker import Store
from fairlead.broker.requests import (
    MAX_STEP,
    Alter,
    Change,
    Fetch,
    LimiterChange,
    QueueChange,
    Submission,
    TenantChange,
)
from fairlead.model.message import Leased
from tests.support.fair import WITH_TEST_CLOCK, backlog, enqueue_all, examples, opened, taken
from tests.support.store import NOW, Client, completed, ids, submit

EVERY_BROKER = pytest.mark.parametrize("make", WITH_TEST_CLOCK.values(), ids=WITH_TEST_CLOCK)
GPU = ("gpu",)


async def hold(c: Client, room: int = 1) -> list[Leased]:
    """Give the limiter ``gpu`` some room, and take all of it in a queue of its own."""
    await c.configure(LimiterChange(name="gpu", concurrency=room))
    holders = [submit(f"holder.{i}", "holder", "held", limiters=GPU) for i in range(room)]
    return await c.run(*holders, queues=["held"])


async def park(c: Client, *submissions: Submission) -> None:
    """Let tasks wait for a limiter: enqueued, looked at and left, one after the other."""
    for submission in submissions:
        await c.enqueue(submission)
        assert await c.fetch(1, [submission.message.queue]) == []


# -- a queue that cannot take the room --------------------------------------------------------


async def pause(c: Client) -> None:
    await c.configure(QueueChange(queue="x", paused=True))


async def fill(c: Client) -> None:
    await c.configure(QueueChange(queue="x", concurrency=1))
    await c.run(submit("long", "other", "x"), queues=["x"])


async def use_up_rate(c: Client) -> None:
    await c.configure(QueueChange(queue="x", rate=0.001))
    await c.run(submit("quick", "other", "x"), queues=["x"])


async def abandon(c: Client) -> None:
    """Nobody fetches from it any longer."""


HINDERED: dict[str, tuple[Callable[[Client], Awaitable[None]], Sequence[str]]] = {
    "paused": (pause, ["x", "y"]),
    "at its concurrency": (fill, ["x", "y"]),
    "at its rate": (use_up_rate, ["x", "y"]),
    "not served": (abandon, ["y"]),
}


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("hinder", "queues"), HINDERED.values(), ids=HINDERED)
async def test_a_queue_that_cannot_take_the_room_does_not_keep_it_from_others(
    c: Client,
    hinder: Callable[[Client], Awaitable[None]],
    queues: Sequence[str],
    late: bool,
) -> None:
    (holder,) = await hold(c)
    await park(c, submit("x.0", "p", "x", limiters=GPU))
    await park(c, *(submit(f"y.{t}", t, "y", limiters=GPU) for t in "qrs"))
    if late:  # the tenant of x was woken, and then its queue could not go on
        await c.settle(completed(holder))
        await hinder(c)
    else:
        await hinder(c)
        await c.settle(completed(holder))

    for task in ("y.q", "y.r", "y.s"):
        (lease,) = await c.fetch(5, queues)
        assert lease.message.id == task
        await c.settle(completed(lease))
    assert await c.fetch(5, queues) == []


@pytest.mark.parametrize("tenants", ["qrs", "q"])
async def test_a_queue_that_is_served_again_takes_the_room_that_others_left(
    c: Client, tenants: str
) -> None:
    (holder,) = await hold(c)
    await park(c, submit("x.0", "p", "x", limiters=GPU), submit("x.1", "o", "x", limiters=GPU))
    await park(c, *(submit(f"y.{t}", t, "y", limiters=GPU) for t in tenants))
    await c.configure(QueueChange(queue="x", paused=True))
    await c.settle(completed(holder))
    for _ in tenants:
        (lease,) = await c.fetch(5, ["y"])
        assert await c.fetch(5, ["x", "y"]) == []
        await c.settle(completed(lease))

    await c.configure(QueueChange(queue="x", paused=False))

    for task in ("x.o", "x.p"):
        (lease,) = await c.fetch(5, ["y", "x"])
        assert (lease.message.queue, lease.message.tenant) == tuple(task.split("."))
        await c.settle(completed(lease))


async def test_a_rate_of_a_limiter_serves_the_queue_that_can_take_it(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", rate=1.0))
    await c.run(submit("first", "z", "held", limiters=GPU), queues=["held"])
    await park(c, submit("x.0", "p", "x", limiters=GPU), submit("y.0", "q", "y", limiters=GPU))
    await park(c, submit("y.1", "r", "y", limiters=GPU))
    await c.configure(QueueChange(queue="x", paused=True))

    assert ids(await c.fetch(5, ["x", "y"], now=NOW + 1)) == ["y.0"]
    assert await c.fetch(5, ["x", "y"], now=NOW + 1.5) == []
    assert ids(await c.fetch(5, ["x", "y"], now=NOW + 2)) == ["y.1"]


# -- whose turn it is -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
async def test_room_goes_to_the_queue_that_is_looked_into_first(c: Client, size: int) -> None:
    first, second = await hold(c, 2)
    await c.run(submit("dear", "a", "hi", cost=5.0), queues=["hi"])  # the tag of a is far ahead
    await park(c, *(submit(f"lo.{i}", "x", "lo", limiters=GPU) for i in range(2)))
    await park(c, submit("important", "a", "hi", level=0, limiters=GPU))

    await c.settle(completed(first))
    assert ids(await taken(c, 4, size, ("hi", "lo"))) == ["important"]
    await c.settle(completed(second))
    assert ids(await taken(c, 4, size, ("hi", "lo"))) == ["lo.0"]


@pytest.mark.parametrize("size", [1, 3, 10])
async def test_tokens_of_a_limiter_go_to_the_queue_that_is_looked_into_first(
    c: Client, size: int
) -> None:
    await c.configure(LimiterChange(name="gpu", rate=1.0, burst=5))
    await c.run(*(submit(f"z.{i}", "z", "lo", limiters=GPU) for i in range(5)), queues=["lo"])
    await c.run(submit("dear", "a", "hi", cost=50.0), queues=["hi"])
    await park(c, *(submit(f"lo.{t}", t, "lo", limiters=GPU) for t in "pqrst"))
    await park(c, submit("hi.0", "a", "hi", level=0, limiters=GPU))

    leases = await taken(c, 10, size, ("hi", "lo"), now=NOW + 100)

    assert ids(leases) == ["hi.0", "lo.p", "lo.q", "lo.r", "lo.s"]


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")], ids="-".join)
async def test_the_past_of_a_queue_does_not_matter_to_a_limiter(
    c: Client, order: tuple[str, ...]
) -> None:
    await backlog(c, "p", 3_000, queue="old")
    while leases := await c.fetch(128, ["old"]):
        await c.settle(*map(completed, leases))
    (holder,) = await hold(c)
    await enqueue_all(
        c, (submit(f"{q}.{i}", q, q, limiters=GPU) for q in ("old", "new") for i in range(40))
    )
    assert await c.fetch(1, order) == []

    served: list[str] = []
    while len(served) < 60:
        await c.settle(completed(holder))
        (holder,) = await c.fetch(1, order)
        assert await c.fetch(1, order) == []
        served.append(holder.message.queue)

    assert served == [order[0]] * 40 + [order[1]] * 20


async def test_inside_a_queue_room_goes_to_the_lowest_tag(c: Client) -> None:
    (holder,) = await hold(c)
    await c.run(submit("dear", "a", "x", cost=3.0), queues=["x"])
    await park(c, *(submit(f"x.{t}", t, "x", limiters=GPU) for t in "acb"))

    served = []
    for _ in range(3):
        await c.settle(completed(holder))
        (holder,) = await c.fetch(5, ["x"])
        served.append(holder.message.id)

    assert served == ["x.b", "x.c", "x.a"]


# -- a limit that is lifted -------------------------------------------------------------------

LIFTED: dict[str, tuple[Change, Change, int]] = {
    "concurrency": (
        LimiterChange(name="gpu", concurrency=0),
        LimiterChange(name="gpu", concurrency=None),
        300,
    ),
    "rate": (
        LimiterChange(name="gpu", rate=0.0001),
        LimiterChange(name="gpu", rate=None),
        300,
    ),
    "to a number": (
        LimiterChange(name="gpu", concurrency=0),
        LimiterChange(name="gpu", concurrency=250),
        250,
    ),
    "to a burst": (
        LimiterChange(name="gpu", concurrency=0),
        LimiterChange(name="gpu", concurrency=None, rate=0.001, burst=250),
        250,
    ),
}


@pytest.mark.parametrize("size", [1, 128])
@pytest.mark.parametrize(("set_", "lift", "expected"), LIFTED.values(), ids=LIFTED)
async def test_a_limiter_that_is_lifted_lets_every_waiting_tenant_go(
    c: Client, set_: Change, lift: Change, expected: int, size: int
) -> None:
    queues = ("x", "y", "z")
    await c.configure(set_)
    await c.enqueue(submit("first", "a", "w", limiters=GPU))
    await c.fetch(1, ["w"])  # uses up the rate
    tasks = [submit(f"{q}.{i}", f"{q}.{i}", q, limiters=GPU) for q in queues for i in range(100)]
    for queue in range(3):
        await c.enqueue(*tasks[100 * queue : 100 * queue + 100])
    assert await taken(c, 300, 128, queues) == []

    await c.configure(lift)

    leases = await taken(c, 301, size, queues)
    assert len(leases) == expected
    assert (
        ids(leases) == [f"{q}.{i}" for q in queues for i in sorted(range(100), key=str)][:expected]
    )


# -- a tenant that was woken and cannot go ----------------------------------------------------


async def purge(c: Client) -> float:
    assert (await c.purge("x", "a")).count == 1
    return NOW


async def cancel(c: Client) -> float:
    assert (await c.cancel("x.a")).code == "done"
    return NOW


async def pause_tenant(c: Client) -> float:
    await c.configure(TenantChange(tenant="a", queue="x", paused=True))
    return NOW


async def limit_tenant(c: Client) -> float:
    await c.configure(TenantChange(tenant="a", queue="x", concurrency=0))
    return NOW


async def slow_down_tenant(c: Client) -> float:
    await c.configure(TenantChange(tenant="a", rate=0.001))
    await c.run(submit("x.token", "a", "x", level=0), queues=["x"])
    return NOW


async def expire(c: Client) -> float:
    assert (await c.broker.promote(now=NOW + 11)).count == 1
    return NOW + 11


async def expire_at_fetch(c: Client) -> float:
    return NOW + 11


async def wait_elsewhere(c: Client) -> float:
    """Its next task needs room in another limiter, where there is none."""
    await c.configure(LimiterChange(name="full", concurrency=0))
    await c.enqueue(submit("x.elsewhere", "a", "x", level=0, limiters=("full",)))
    return NOW


UNABLE: dict[str, Callable[[Client], Awaitable[float]]] = {
    "purged": purge,
    "cancelled": cancel,
    "paused": pause_tenant,
    "limited": limit_tenant,
    "slowed down": slow_down_tenant,
    "expired": expire,
    "expired at the fetch": expire_at_fetch,
    "waiting elsewhere": wait_elsewhere,
}


@pytest.mark.parametrize("happen", UNABLE.values(), ids=UNABLE)
async def test_a_woken_tenant_that_cannot_go_passes_the_room_on(
    c: Client, happen: Callable[[Client], Awaitable[float]]
) -> None:
    (holder,) = await hold(c)
    await park(
        c,
        submit("x.a", "a", "x", deadline=10.0, limiters=GPU),
        submit("x.b", "b", "x", limiters=GPU),
        submit("x.c", "c", "x", limiters=GPU),
    )
    await c.settle(completed(holder))  # a is woken

    now = await happen(c)

    (lease,) = await c.fetch(5, ["x"], now=now)
    assert lease.message.id == "x.b"
    await c.settle(completed(lease), now=now)
    assert ids(await c.fetch(5, ["x"], now=now)) == ["x.c"]


async def test_room_is_passed_on_by_each_of_many_that_cannot_go(c: Client) -> None:
    (holder,) = await hold(c)
    tenants = [f"t{i:03}" for i in range(150)]
    await c.enqueue(*(submit(f"x.{t}", t, "x", limiters=GPU) for t in tenants))
    assert await taken(c, 1, 128, ("x",)) == []
    await c.settle(completed(holder))

    orders = [Alter(id=f"x.{t}", action="cancel") for t in tenants[:MAX_STEP]]
    assert {answer.code for answer in await c.alter(*orders)} == {"done"}
    await c.configure(*(TenantChange(tenant=t, paused=True) for t in tenants[MAX_STEP:149]))

    assert ids(await c.fetch(5, ["x"])) == ["x.t149"]


async def test_a_woken_tenant_with_something_else_to_do_passes_the_room_on(c: Client) -> None:
    (holder,) = await hold(c)
    await park(c, *(submit(f"x.{t}", t, "x", limiters=GPU) for t in "ab"))
    await c.settle(completed(holder))
    await c.enqueue(submit("urgent", "a", "x", level=0, cost=2.0))

    assert ids(await c.fetch(5, ["x"])) == ["urgent", "x.b"]


async def test_room_given_back_by_a_crash_goes_to_every_queue_in_turn(c: Client) -> None:
    gone = Client(c.broker, "gone")
    assert len(await hold(gone, 3)) == 3
    await park(c, *(submit(f"{q}.{t}", t, q, limiters=GPU) for q in "xy" for t in "ab"))
    await c.configure(QueueChange(queue="held", paused=True))

    assert (await c.broker.give_back("gone", now=NOW)).count == 3

    assert ids(await c.fetch(5, ["y", "x"])) == ["y.a", "y.b", "x.a"]


# -- one fetch of n equals n fetches of one ---------------------------------------------------

QUEUES = ("x", "y", "z")
NAMES = ("narrow", "slow")
PER_ROUND = 24

CONCURRENCY = st.one_of(st.none(), st.integers(1, 4))
RATE = st.sampled_from([None, None, 0.5, 1.0, 3.0])
BURST = st.integers(1, 4)
LIMIT = st.fixed_dictionaries({"concurrency": CONCURRENCY, "rate": RATE, "burst": BURST})
TENANT = st.fixed_dictionaries(
    {
        "concurrency": CONCURRENCY,
        "rate": RATE,
        "burst": BURST,
        "weight": st.sampled_from([0.5, 1.0, 1.0, 2.0, 7.5]),
    }
)
TASK = st.tuples(
    st.sampled_from(QUEUES),
    st.integers(0, 4),  # tenant
    st.integers(0, 3),  # level
    st.sampled_from([0.5, 1.0, 1.0, 2.0]),  # cost
    st.sampled_from([(), NAMES[:1], NAMES[1:], NAMES, NAMES[::-1]]),
)


class Fetcher:
    """Fetches in calls of one size, and sees to it that ``more`` is never withheld."""

    def __init__(self, broker: Store, queues: tuple[str, ...], size: int) -> None:
        self.client = Client(broker)
        self.queues = queues
        self.size = size

    async def take(self, count: int, now: float) -> list[Leased]:
        """Up to ``count`` leases; fewer only if nothing is runnable."""
        leases: list[Leased] = []
        while len(leases) < count:
            wanted = min(self.size, count - len(leases))
            fetch = Fetch(queues=self.queues, max=wanted)
            reply = await self.client.exchange(fetch=fetch, now=now)
            leases += reply.leased
            if len(reply.leased) < wanted and not reply.more:
                for queue in self.queues:
                    assert await self.client.fetch(128, [queue], now=now) == []
                break
        return leases

    async def settle(self, leases: list[Leased], now: float) -> None:
        answers = await self.client.settle(*map(completed, leases), now=now)
        assert answers == ["applied"] * len(leases)


async def history(
    make: Callable[[], Store],
    changes: Sequence[Change],
    submissions: Sequence[Submission],
    queues: tuple[str, ...],
    size: int,
) -> list[list[str]]:
    """What is dispatched, round by round: first with half of it settled, then with all of it."""
    rounds: list[list[str]] = []
    running: list[Leased] = []
    now = NOW
    async with opened(make) as broker:
        fetcher = Fetcher(broker, queues, size)
        await fetcher.client.configure(*changes)
        await fetcher.client.enqueue(*submissions)
        for number in range(4):
            now += 0.75
            running += (found := await fetcher.take(PER_ROUND, now))
            rounds.append(ids(found))
            done = [lease for lease in running if int(lease.message.id) % 3 != number % 3]
            await fetcher.settle(done, now)
            running = [lease for lease in running if lease not in done]
            assert size == 1 or await broker.audit(now=now) == []  # at the end in any case
        while running or len(rounds) == 4:
            now += 100.0  # every rate has tokens again
            await fetcher.settle(running, now)
            running = await fetcher.take(128, now)
            rounds.append(ids(running))
        assert (await broker.snapshot(now=now)).depth == 0
    return rounds


@pytest.mark.long(20)
@EVERY_BROKER
@given(
    queues=st.permutations(QUEUES),
    lanes=st.lists(LIMIT, min_size=3, max_size=3),
    limiters=st.lists(LIMIT, min_size=2, max_size=2),
    tenants=st.lists(TENANT, max_size=5),
    tasks=st.lists(TASK, min_size=10, max_size=70),
    size=st.sampled_from([2, 5, 24, 128]),
)
@examples(150)
def test_one_fetch_of_n_over_several_queues_equals_n_fetches_of_one(
    make: Callable[[], Store],
    queues: list[str],
    lanes: list[dict[str, object]],
    limiters: list[dict[str, object]],
    tenants: list[dict[str, object]],
    tasks: list[tuple[str, int, int, float, tuple[str, ...]]],
    size: int,
) -> None:
    changes: list[Change] = []
    for name, options in zip(NAMES, limiters, strict=True):
        changes.append(LimiterChange(name=name, **options))  # type: ignore[arg-type]
    for queue, options in zip(QUEUES, lanes, strict=True):
        if options["burst"] == 1:  # a quarter of the queues: limits of queues are rare
            changes.append(QueueChange(queue=queue, **options))  # type: ignore[arg-type]
    for i, options in enumerate(tenants):
        changes.append(TenantChange(tenant=f"t{i}", **options))  # type: ignore[arg-type]
    submissions = [
        submit(str(i), f"t{tenant}", queue, level=level, cost=cost, limiters=names)
        for i, (queue, tenant, level, cost, names) in enumerate(tasks)
    ]

    async def both() -> None:
        one_by_one = await history(make, changes, submissions, tuple(queues), 1)
        at_once = await history(make, changes, submissions, tuple(queues), size)
        assert at_once == one_by_one
        assert sorted(int(id) for round_ in at_once for id in round_) == [*range(len(tasks))]

    asyncio.run(both())
