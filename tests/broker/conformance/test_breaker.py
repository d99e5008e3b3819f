"""A breaker is a limiter with a state: closed, open for a time, half open until a probe decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.records import LimiterState
from fairlead.broker.requests import Fetch, LimiterChange, Submission, TenantChange
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.fair import (
    WITH_REAL_CLOCK,
    LiveClient,
    taken,
)
from tests.support.store import (
    NOW,
    Client,
    cancelled,
    completed,
    dead,
    failed,
    ids,
    record,
    released,
    snoozed,
    states,
    submit,
)

API = ("api",)
COOLDOWN = 30.0
OPENS = NOW + COOLDOWN  # a breaker that opened at once lets its first probe through
End = Callable[[Leased], Settlement]

late = partial(failed, delay=1_000.0)  # a failure that does not come back while the test lasts


def task(id: str, tenant: str = "a", queue: str = "default") -> Submission:
    return submit(id, tenant, queue, limiters=API)


async def breaker(c: Client, failures: int | None = 1, **more: object) -> None:
    await c.configure(LimiterChange(name="api", failures=failures, **more))  # type: ignore[arg-type]


async def trip(c: Client, *, now: float = NOW) -> None:
    """Let one task fail in a queue of its own, which opens a breaker of one failure."""
    await c.enqueue(task(f"trip.{c.number}", "z", "trips"), now=now)
    (lease,) = await c.fetch(1, ["trips"], now=now)
    assert await c.settle(late(lease), now=now) == ["applied"]


async def state(c: Client, *, now: float = NOW) -> LimiterState:
    return (await c.broker.snapshot(now=now)).limiters["api"]


def rejected(lease: Leased) -> Settlement:
    return dead(lease, "rejected")


def unroutable(lease: Leased) -> Settlement:
    return msgspec.structs.replace(late(lease), burn=False, reason="unroutable")


def crashed(lease: Leased) -> Settlement:
    return msgspec.structs.replace(late(lease), reason="crashed")


def without_error(lease: Leased) -> Settlement:
    return msgspec.structs.replace(late(lease), error=None)


FAILURES: dict[str, End] = {"retrying": late, "dead": dead}
NEITHER: dict[str, End] = {
    "released": released,
    "snoozed": lambda lease: snoozed(lease, 1_000.0),
    "cancelled": cancelled,
    "rejected": rejected,
    "unroutable": unroutable,
    "crashed": crashed,
    "poison": lambda lease: dead(lease, "poison"),
    "without an error": without_error,
}


# -- closed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
async def test_a_breaker_opens_after_so_many_failures_in_a_row(c: Client, fail: End) -> None:
    await breaker(c, 3)
    await c.enqueue(*(task(f"t.{i}") for i in range(4)))
    for number in range(3):
        assert await state(c) == LimiterState(state="closed", failed=number)
        (lease,) = await c.fetch(1)
        await c.settle(fail(lease))

    assert await c.fetch(5) == []
    assert await state(c) == LimiterState(state="open", failed=3, waiting=1, open_until=OPENS)


async def test_a_success_begins_the_row_anew(c: Client) -> None:
    await breaker(c, 2)
    await c.enqueue(*(task(f"t.{i}") for i in range(6)))
    for end in (late, completed, late, completed):
        (lease,) = await c.fetch(1)
        await c.settle(end(lease))
    assert await state(c) == LimiterState(state="closed")

    for _ in range(2):
        (lease,) = await c.fetch(1)
        await c.settle(late(lease))
    assert (await state(c)).state == "open"


@pytest.mark.parametrize("end", NEITHER.values(), ids=NEITHER)
async def test_what_says_nothing_of_the_service_is_not_counted(c: Client, end: End) -> None:
    await breaker(c, 2)
    first, second = await c.run(task("t.0"), task("t.1"))
    await c.settle(late(first))
    await c.settle(end(second))

    assert await state(c) == LimiterState(state="closed", failed=1)


async def test_a_failure_of_a_task_that_was_to_be_cancelled_is_not_counted(c: Client) -> None:
    await breaker(c, 1)
    (lease,) = await c.run(task("t"))
    await c.cancel("t")
    await c.settle(late(lease))

    assert await states(c.broker, "t") == [State.CANCELLED]
    assert await state(c) == LimiterState(state="closed")


async def test_a_crash_that_others_found_is_not_counted(c: Client) -> None:
    await breaker(c, 1)
    await Client(c.broker, "gone").run(task("t"))
    await c.broker.give_back("gone", now=NOW)

    assert (await state(c)).state == "closed"
    assert ids(await c.fetch(1)) == ["t"]


async def test_failures_of_one_batch_are_counted_one_by_one(c: Client) -> None:
    await breaker(c, 3)
    leases = await c.run(*(task(f"t.{i}") for i in range(6)))
    await c.settle(late(leases[0]), late(leases[1]), completed(leases[2]), late(leases[3]))
    assert await state(c) == LimiterState(used=2, state="closed", failed=1)
    await c.settle(late(leases[4]), late(leases[5]))
    assert (await state(c)).state == "open"


async def test_a_failure_counts_for_every_limiter_that_its_task_names(c: Client) -> None:
    await c.configure(
        LimiterChange(name="one", failures=1),
        LimiterChange(name="two", failures=2),
        LimiterChange(name="plain", concurrency=5),
    )
    (lease,) = await c.run(submit("t", limiters=("one", "two", "plain")))
    await c.settle(late(lease))

    found = (await c.broker.snapshot(now=NOW)).limiters
    assert {name: (each.state, each.failed) for name, each in found.items()} == {
        "one": ("open", 1),
        "two": ("closed", 1),
        "plain": ("", 0),
    }


# -- open -------------------------------------------------------------------------------------


async def test_while_it_is_open_nothing_goes_that_needs_it(c: Client) -> None:
    await breaker(c)
    await trip(c)
    await c.enqueue(task("t"), submit("other", "b"))

    assert ids(await c.fetch(5)) == ["other"]
    assert await c.fetch(5, now=OPENS - 0.001) == []
    assert ids(await c.fetch(5, now=OPENS)) == ["t"]


async def test_the_alarm_says_when_the_first_probe_may_go(c: Client) -> None:
    await breaker(c, cooldown=12.0)
    await trip(c)
    await c.enqueue(task("t"))
    fetch = Fetch(queues=("default",), max=5)

    reply = await c.exchange(fetch=fetch, now=NOW + 2)
    assert (reply.leased, reply.due_in) == ([], 10.0)
    assert (await c.broker.promote(now=NOW + 11.999)).count == 0
    assert (await c.broker.promote(now=NOW + 12)).count == 1
    assert ids(await c.fetch(5, now=NOW + 12)) == ["t"]


async def test_what_waits_for_an_open_breaker_burns_nothing_and_keeps_its_order(
    c: Client,
) -> None:
    await breaker(c, probes=10)
    await trip(c)
    await c.enqueue(*(task(f"{tenant}.{i}", tenant) for i in range(3) for tenant in "ab"))
    for after in (0.0, 10.0, 29.0):
        assert await c.fetch(5, now=NOW + after) == []

    leases = await c.fetch(10, now=OPENS)
    for tenant in "ab":
        mine = [lease.message.id for lease in leases if lease.message.tenant == tenant]
        assert mine == [f"{tenant}.{i}" for i in range(3)]
    assert {lease.attempt for lease in leases} == {1}
    assert (await record(c.broker, "a.0", now=OPENS)).attempts == 0


@pytest.mark.parametrize("after", [1.0, COOLDOWN, COOLDOWN + 5], ids=["open", "then", "half open"])
@pytest.mark.parametrize("end", [completed, late, released], ids=["success", "failure", "neither"])
async def test_what_was_lent_before_it_opened_has_no_say(c: Client, end: End, after: float) -> None:
    await breaker(c)
    early, bad = await c.run(task("early"), task("bad"))
    await c.settle(late(bad))
    await c.enqueue(task("t", "b"))

    await c.settle(end(early), now=NOW + after)

    found = await state(c, now=NOW + after)
    open_until = OPENS if after < COOLDOWN else None
    assert (found.state, found.failed, found.open_until) == (
        "half_open" if open_until is None else "open",
        1,
        open_until,
    )
    if after < COOLDOWN:
        assert await c.fetch(5, now=OPENS - 1) == []
    assert len(await c.fetch(5, now=OPENS + 5)) == 1  # one probe


async def test_what_was_lent_before_it_opened_has_no_say_after_it_closed_either(
    c: Client,
) -> None:
    await breaker(c, 2)
    early, *bad = await c.run(task("early"), task("bad.0"), task("bad.1"))
    await c.settle(*map(late, bad))
    (probe,) = await c.run(task("probe"), now=OPENS)
    await c.settle(completed(probe), now=OPENS)
    (fresh,) = await c.run(task("fresh"), now=OPENS)
    await c.settle(late(fresh), late(early), now=OPENS)

    assert await state(c, now=OPENS) == LimiterState(state="closed", failed=1)


# -- half open --------------------------------------------------------------------------------


@pytest.mark.parametrize("probes", [1, 2, 3])
async def test_half_open_lets_so_many_probes_through_at_a_time(c: Client, probes: int) -> None:
    await breaker(c, probes=probes)
    await trip(c)
    await c.enqueue(*(task(f"t.{i}", f"t{i}") for i in range(5)))

    leases = await taken(c, 5, 5, now=OPENS)
    assert ids(leases) == [f"t.{i}" for i in range(probes)]
    found = await state(c, now=OPENS)
    assert (found.state, found.used, found.waiting) == ("half_open", probes, 5 - probes)
    assert await c.fetch(5, now=OPENS + 1_000) == []


async def test_probes_stay_within_the_concurrency(c: Client) -> None:
    await breaker(c, probes=3, concurrency=2)
    await trip(c)
    await c.enqueue(*(task(f"t.{i}") for i in range(5)))

    assert len(await c.fetch(5, now=OPENS)) == 2


async def test_what_still_runs_from_before_is_no_probe(c: Client) -> None:
    await breaker(c)
    early, bad = await c.run(task("early"), task("bad"))
    await c.settle(late(bad))
    await c.enqueue(task("t.0"), task("t.1"))

    assert ids(await c.fetch(5, now=OPENS)) == ["t.0"]
    await c.settle(completed(early), now=OPENS)
    assert await c.fetch(5, now=OPENS) == []


async def test_a_probe_that_succeeds_closes_it_and_lets_all_go(c: Client) -> None:
    await breaker(c, 2)
    leases = await c.run(task("bad.0"), task("bad.1"))
    await c.settle(*map(late, leases))
    await c.enqueue(*(task(f"{q}.{i}", f"{q}{i}", q) for q in "xy" for i in range(3)))
    assert await c.fetch(10, ["x", "y"]) == []
    (probe,) = await c.fetch(10, ["x", "y"], now=OPENS)

    await c.settle(completed(probe), now=OPENS)

    assert ids(await c.fetch(10, ["x", "y"], now=OPENS)) == ["x.1", "x.2", "y.0", "y.1", "y.2"]
    assert await state(c, now=OPENS) == LimiterState(used=5, state="closed")


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
async def test_a_probe_that_fails_opens_it_at_once_for_a_whole_cooldown(
    c: Client, fail: End
) -> None:
    await breaker(c, 3, probes=2)
    for lease in await c.run(*(task(f"bad.{i}") for i in range(3))):
        await c.settle(late(lease))
    await c.enqueue(*(task(f"t.{i}") for i in range(4)))
    first, second = await c.fetch(5, now=OPENS)
    await c.settle(fail(first), now=OPENS + 5)

    found = await state(c, now=OPENS + 5)
    assert (found.state, found.failed, found.open_until) == ("open", 4, OPENS + 35)
    await c.settle(completed(second), now=OPENS + 6)  # it was lent before
    assert await c.fetch(5, now=OPENS + 34) == []
    assert len(await c.fetch(5, now=OPENS + 35)) == 2


async def give_back(c: Client) -> None:
    await c.broker.give_back("prober", now=OPENS)


async def sweep(c: Client) -> None:
    for after in (21.0, 30.0, 39.0):
        await c.broker.sweep(now=OPENS + after)


CRASHES: dict[str, Callable[[Client], Awaitable[None]]] = {"given back": give_back, "swept": sweep}


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
async def test_a_probe_whose_worker_is_gone_makes_room_for_another(
    c: Client, crash: Callable[[Client], Awaitable[None]]
) -> None:
    await breaker(c)
    await trip(c)
    await c.enqueue(task("t.0", "a"), task("t.1", "b"))
    prober = Client(c.broker, "prober")
    assert ids(await prober.fetch(5, now=OPENS)) == ["t.0"]
    assert await c.fetch(5, now=OPENS) == []

    await crash(c)

    assert len(await c.fetch(5, now=OPENS + 39)) == 1
    assert (await state(c, now=OPENS + 39)).state == "half_open"


@pytest.mark.parametrize("end", NEITHER.values(), ids=NEITHER)
async def test_a_probe_that_says_nothing_makes_room_for_another(c: Client, end: End) -> None:
    await breaker(c)
    await trip(c)
    await c.enqueue(task("t.0", "a"), task("t.1", "b"))
    (probe,) = await c.fetch(5, now=OPENS)
    await c.settle(end(probe), now=OPENS)

    assert (await state(c, now=OPENS)).state == "half_open"
    assert len(await c.fetch(5, now=OPENS)) == 1


async def test_a_breaker_and_a_rate_are_both_kept(c: Client) -> None:
    await breaker(c, rate=0.1, probes=5)
    await c.enqueue(*(task(f"t.{i}") for i in range(3)))
    (bad,) = await c.fetch(5)
    await c.settle(late(bad))
    assert await c.fetch(5, now=NOW + 10) == []

    assert ids(await c.fetch(5, now=OPENS)) == ["t.1"]
    assert ids(await c.fetch(5, now=OPENS + 10)) == ["t.2"]


# -- several queues ---------------------------------------------------------------------------


async def test_two_queues_share_one_breaker(c: Client) -> None:
    await breaker(c, 2)
    (x,) = await c.run(task("x.0", queue="x"), queues=["x"])
    (y,) = await c.run(task("y.0", queue="y"), queues=["y"])
    await c.settle(late(x))
    await c.settle(late(y))
    await c.enqueue(task("x.1", queue="x"), task("y.1", queue="y"))
    assert await c.fetch(5, ["x"]) == []
    assert await c.fetch(5, ["y"]) == []

    (probe,) = await c.fetch(5, ["y", "x"], now=OPENS)
    assert probe.message.id == "y.1"
    assert await c.fetch(5, ["x"], now=OPENS) == []
    await c.settle(completed(probe), now=OPENS)
    assert ids(await c.fetch(5, ["x"], now=OPENS)) == ["x.1"]


async def test_a_queue_that_cannot_take_the_probe_leaves_it_to_another(c: Client) -> None:
    await breaker(c)
    await trip(c)
    await c.enqueue(task("x.0", "p", "x"), task("y.0", "q", "y"))
    assert await c.fetch(5, ["x", "y"]) == []
    await c.configure(TenantChange(tenant="p", paused=True))

    assert ids(await c.fetch(5, ["x", "y"], now=OPENS)) == ["y.0"]


# -- settings ---------------------------------------------------------------------------------


async def tripped(c: Client) -> None:
    """An open breaker at which three tenants wait."""
    await breaker(c)
    await trip(c)
    await c.enqueue(*(task(f"t.{i}", f"t{i}") for i in range(3)))
    assert await c.fetch(5) == []


async def test_a_shorter_cooldown_holds_at_once(c: Client) -> None:
    await tripped(c)
    await c.configure(LimiterChange(name="api", cooldown=5.0), now=NOW + 1)
    assert (await state(c, now=NOW + 1)).open_until == NOW + 5
    assert await c.fetch(5, now=NOW + 4) == []
    assert len(await c.fetch(5, now=NOW + 5)) == 1


async def test_a_longer_cooldown_holds_at_once(c: Client) -> None:
    await tripped(c)
    await c.configure(LimiterChange(name="api", cooldown=60.0), now=NOW + 1)
    assert await c.fetch(5, now=NOW + 59) == []
    assert len(await c.fetch(5, now=NOW + 60)) == 1


async def test_more_probes_may_go_at_once(c: Client) -> None:
    await tripped(c)
    assert len(await c.fetch(5, now=OPENS)) == 1
    await c.configure(LimiterChange(name="api", probes=3), now=OPENS)
    assert len(await c.fetch(5, now=OPENS)) == 2


async def test_fewer_failures_may_open_it_at_once(c: Client) -> None:
    await breaker(c, 5)
    for lease in await c.run(*(task(f"bad.{i}") for i in range(3))):
        await c.settle(late(lease))
    await c.configure(LimiterChange(name="api", failures=4))
    assert (await state(c)).state == "closed"
    await c.configure(LimiterChange(name="api", failures=3))
    assert await state(c) == LimiterState(state="open", failed=3, open_until=OPENS)


@pytest.mark.parametrize("after", [0.0, COOLDOWN], ids=["open", "half open"])
async def test_without_failures_there_is_no_breaker(c: Client, after: float) -> None:
    await tripped(c)
    now = NOW + after
    probes = await c.fetch(5, now=now)
    await c.configure(LimiterChange(name="api", failures=None), now=now)

    assert len(await c.fetch(5, now=now)) == 3 - len(probes)
    assert await state(c, now=now) == LimiterState(used=3)
    await c.configure(LimiterChange(name="api", failures=1), now=now)
    assert await state(c, now=now) == LimiterState(used=3, state="closed")


async def test_a_limiter_with_a_breaker_is_remembered_until_it_is_taken_away(c: Client) -> None:
    await breaker(c, 7, cooldown=5.0, probes=2)
    (lease,) = await c.run(task("t"))
    await c.settle(completed(lease))
    assert await state(c) == LimiterState(state="closed")

    await c.configure(LimiterChange(name="api", failures=None))
    assert await state(c) == LimiterState()
    await c.configure(LimiterChange(name="api", cooldown=30.0, probes=1))
    assert (await c.broker.snapshot(now=NOW)).limiters == {}


async def test_what_is_not_said_of_a_breaker_stays(c: Client) -> None:
    await breaker(c, 1, cooldown=5.0)
    await c.configure(LimiterChange(name="api", concurrency=1, probes=2))
    await trip(c)
    assert (await state(c)).open_until == NOW + 5


# -- the snapshot -----------------------------------------------------------------------------


async def test_the_snapshot_has_limiters_and_who_waits_there(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.enqueue(
        *(submit(f"{q}.{i}", f"t{i}", q, limiters=("gpu",)) for q in "xy" for i in "ab")
    )
    assert len(await c.fetch(9, ["x", "y"])) == 1

    snapshot = await c.broker.snapshot(now=NOW)

    assert snapshot.limiters == {"gpu": LimiterState(used=1, waiting=3)}
    assert not snapshot.more_limiters


async def test_the_snapshot_has_at_most_a_thousand_limiters(c: Client) -> None:
    for start in range(0, 1_001, 143):
        changes = [LimiterChange(name=f"l{i}", rate=1.0) for i in range(start, start + 143)]
        await c.configure(*changes)

    snapshot = await c.broker.snapshot(now=NOW)

    assert len(snapshot.limiters) == 1_000
    assert snapshot.more_limiters


# -- waking -----------------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.parametrize("make", WITH_REAL_CLOCK.values(), ids=WITH_REAL_CLOCK)
async def test_whoever_waits_is_woken_when_the_cooldown_is_over(make: Callable[[], Store]) -> None:
    store = make()
    try:
        c = LiveClient(store)
        await c.configure(LimiterChange(name="api", failures=1, cooldown=0.4))
        await c.enqueue(task("t.0"), task("t.1", "b"), task("t.2", "c"))
        (bad,) = await c.exchange(1)
        began = time.monotonic()
        assert await c.exchange(5, late(bad)) == []
        while not (probes := await c.exchange(5)):
            assert await store.wait(["default"], 10.0)
        assert 0.35 <= time.monotonic() - began < 5.0
        assert ids(probes) == ["t.1"]

        waiter = asyncio.create_task(store.wait(["default"], 10.0))
        await asyncio.sleep(0.1)
        assert not waiter.done()
        await c.exchange(0, completed(probes[0]))
        assert await waiter
        assert ids(await c.exchange(5)) == ["t.2"]
    finally:
        await store.close()
