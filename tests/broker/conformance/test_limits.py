"""Limits of tenants, queues and names: never exceeded, given back once, changed while running."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import (
    Change,
    ExchangeReply,
    Fetch,
    LimiterChange,
    QueueChange,
    TenantChange,
)
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.fair import backlog, taken
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

MICRO = 1e-6
ALL = Fetch(queues=("default",), max=128)
ENDS: dict[str, Callable[[Leased], Settlement]] = {
    "completed": completed,
    "dead": dead,
    "released": released,
    "retrying": lambda lease: failed(lease, 100.0),
    "snoozed": lambda lease: snoozed(lease, 100.0),
    "cancelled": cancelled,
}
LIMITED: dict[str, Change] = {
    "tenant": TenantChange(tenant="a", concurrency=2),
    "tenant-in-queue": TenantChange(tenant="a", queue="default", concurrency=2),
    "queue": QueueChange(queue="default", concurrency=2),
}
RATED: dict[str, Callable[[float, int], Change]] = {
    "tenant": lambda rate, burst: TenantChange(tenant="a", rate=rate, burst=burst),
    "queue": lambda rate, burst: QueueChange(queue="default", rate=rate, burst=burst),
}


async def sweep_out(broker: Store, at: float) -> float:
    """Sweep until leases that are over at ``at`` are ended: past the guard of the first sweep."""
    for wait in (0.0, 9.0):
        assert (await broker.sweep(now=at + wait)).guarded
    assert (await broker.sweep(now=at + 11.0)).count > 0
    return at + 11.0


# -- concurrency ------------------------------------------------------------------------------


@pytest.mark.parametrize("change", LIMITED.values(), ids=LIMITED)
async def test_no_more_run_at_a_time_than_the_limit_says(c: Client, change: Change) -> None:
    await c.configure(change)
    await backlog(c, "a", 20)

    assert ids(await c.fetch(20)) == ["a.0", "a.1"]
    assert await c.fetch(20) == []
    assert await Client(c.broker, "w2").fetch(20) == []


@pytest.mark.parametrize("change", LIMITED.values(), ids=LIMITED)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_settlement_of_any_kind_makes_room_for_exactly_one(
    c: Client, change: Change, end: Callable[[Leased], Settlement]
) -> None:
    await c.configure(change)
    await backlog(c, "a", 20)
    first, _ = await c.fetch(2)

    reply = await c.exchange([end(first)], fetch=ALL)

    assert reply.settled == ["applied"]
    assert len(reply.leased) == 1
    assert await c.settle(end(first)) != ["applied"]
    assert await c.fetch(20) == []


@pytest.mark.parametrize("change", LIMITED.values(), ids=LIMITED)
async def test_a_crash_makes_room_exactly_once(c: Client, change: Change) -> None:
    await c.configure(change)
    await backlog(c, "a", 20)
    gone = Client(c.broker, "gone")
    assert len(await gone.fetch(20)) == 2

    assert (await c.broker.give_back("gone", now=NOW)).count == 2
    assert (await c.broker.give_back("gone", now=NOW)).count == 0

    assert ids(await c.fetch(20)) == ["a.0", "a.1"]


@pytest.mark.parametrize("change", LIMITED.values(), ids=LIMITED)
async def test_a_sweep_makes_room_exactly_once(c: Client, change: Change) -> None:
    await c.configure(change)
    await backlog(c, "a", 20)
    gone = Client(c.broker, "gone")
    old = await gone.fetch(20)
    now = await sweep_out(c.broker, NOW + 31)

    assert await gone.settle(*map(completed, old), now=now) == ["fenced", "fenced"]
    assert ids(await c.fetch(20, now=now)) == ["a.0", "a.1"]
    assert await c.fetch(20, now=now) == []


async def test_a_cancelled_running_task_makes_room_when_it_is_settled(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=1))
    await backlog(c, "a", 3)
    (lease,) = await c.fetch(1)

    assert (await c.cancel("a.0")).code == "requested"
    assert await c.fetch(1) == []
    assert await c.settle(failed(lease)) == ["applied"]

    assert await states(c.broker, "a.0") == [State.CANCELLED]
    assert ids(await c.fetch(3)) == ["a.1"]


async def test_held_tasks_count_as_running(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=3))
    await backlog(c, "a", 10)

    assert [lease.started for lease in await c.fetch(10, start=1)] == [True, False, False]
    assert await c.fetch(10) == []


async def test_a_tenant_at_its_limit_does_not_hold_back_the_others(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=1))
    for tenant in "abc":
        await backlog(c, tenant, 3)

    leases = await c.fetch(20)

    assert ids(leases) == ["a.0", "b.0", "c.0", "b.1", "c.1", "b.2", "c.2"]


async def test_the_tenant_limit_of_one_queue_is_not_that_of_another(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", queue="default", concurrency=1))
    await backlog(c, "a", 3)
    await c.enqueue(*(submit(f"o.{i}", "a", "other") for i in range(3)))

    assert ids(await c.fetch(9)) == ["a.0"]
    assert ids(await c.fetch(9, ["other"])) == ["o.0", "o.1", "o.2"]


async def test_what_is_set_for_one_queue_goes_before_what_is_set_for_all(c: Client) -> None:
    await c.configure(
        TenantChange(tenant="a", queue="default", concurrency=3),
        TenantChange(tenant="a", concurrency=1),
    )
    await backlog(c, "a", 9)
    await c.enqueue(*(submit(f"o.{i}", "a", "other") for i in range(3)))

    assert len(await c.fetch(9)) == 3
    assert len(await c.fetch(9, ["other"])) <= 1


async def test_a_queue_at_its_limit_is_passed_over_for_the_next(c: Client) -> None:
    await c.configure(QueueChange(queue="x", concurrency=1))
    await c.enqueue(*(submit(f"{q}.{i}", "a", q) for q in "xy" for i in range(3)))

    assert ids(await c.fetch(9, ["x", "y"])) == ["x.0", "y.0", "y.1", "y.2"]


async def test_the_limit_of_a_queue_is_shared_fairly(c: Client) -> None:
    await c.configure(QueueChange(queue="default", concurrency=2))
    for tenant in "ab":
        await backlog(c, tenant, 10)
    served = ""
    leases = await c.fetch(9)
    for _ in range(8):
        served += leases[0].message.tenant
        leases = leases[1:] + (await c.exchange([completed(leases[0])], fetch=ALL)).leased
        assert len(leases) == 2

    assert served == "abababab"


# -- rate -------------------------------------------------------------------------------------


async def rated(c: Client, now: float) -> ExchangeReply:
    return await c.exchange(fetch=ALL, now=now)


@pytest.mark.parametrize("change", RATED.values(), ids=RATED)
async def test_tasks_go_one_by_one_at_the_rate(
    c: Client, change: Callable[[float, int], Change]
) -> None:
    await c.configure(change(2.0, 1))
    await backlog(c, "a", 10)
    gone = [(0.0, "a.0"), (0.5, "a.1"), (1.0, "a.2"), (1.5, "a.3")]
    for after, id in gone:
        if after:
            early = await rated(c, NOW + after - 2 * MICRO)
            assert early.leased == []
            assert early.due_in == pytest.approx(2 * MICRO, abs=MICRO)
        reply = await rated(c, NOW + after)
        assert ids(reply.leased) == [id]
        assert reply.due_in == pytest.approx(0.5, abs=MICRO)


@pytest.mark.parametrize("change", RATED.values(), ids=RATED)
async def test_a_burst_goes_at_once_and_then_one_every_interval(
    c: Client, change: Callable[[float, int], Change]
) -> None:
    await c.configure(change(4.0, 3))
    await backlog(c, "a", 20)

    counts = [len((await rated(c, NOW + i * 0.125)).leased) for i in range(9)]
    assert counts == [3, 0, 1, 0, 1, 0, 1, 0, 1]

    # A second of silence refills the burst, ten of them do not fill more than the burst.
    counts = [len((await rated(c, NOW + 11 + i * 0.125)).leased) for i in range(5)]
    assert counts == [3, 0, 1, 0, 1]


@pytest.mark.parametrize("change", RATED.values(), ids=RATED)
@pytest.mark.parametrize(("rate", "burst"), [(3.0, 10), (7.0, 100), (10.0, 5), (40.0, 50)])
async def test_all_of_a_burst_goes_at_once_whatever_the_rate(
    c: Client, change: Callable[[float, int], Change], rate: float, burst: int
) -> None:
    await c.configure(change(rate, burst))
    await backlog(c, "a", 2 * burst)

    assert len(await c.fetch(128)) == burst
    assert len(await c.fetch(128, now=NOW + 1 / rate + MICRO)) == 1


@pytest.mark.parametrize("change", RATED.values(), ids=RATED)
async def test_a_late_fetch_does_not_catch_up_beyond_the_burst(
    c: Client, change: Callable[[float, int], Change]
) -> None:
    await c.configure(change(10.0, 1))
    await backlog(c, "a", 20)
    assert len((await rated(c, NOW)).leased) == 1

    late = await rated(c, NOW + 100)

    assert len(late.leased) == 1
    assert late.due_in == pytest.approx(0.1, abs=MICRO)


async def test_settling_does_not_give_a_rate_token_back(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", rate=1.0))
    await backlog(c, "a", 3)
    (lease,) = await c.fetch(3)

    assert (await c.exchange([completed(lease)], fetch=ALL)).leased == []
    assert ids(await c.fetch(3, now=NOW + 1)) == ["a.1"]


@pytest.mark.parametrize("start", [0, 1])
async def test_what_did_not_run_gives_its_rate_tokens_back(c: Client, start: int) -> None:
    await c.configure(
        TenantChange(tenant="a", rate=1.0),
        QueueChange(queue="default", rate=1.0),
        LimiterChange(name="api", rate=1.0),
    )
    await c.enqueue(*(submit(f"a.{n}", "a", limiters=("api",)) for n in range(3)))
    for _ in range(3):
        (lease,) = await c.fetch(3, start=start)
        assert lease.message.id == "a.0"
        await c.settle(released(lease))
    (lease,) = await c.fetch(3)
    await c.settle(released(lease, run_time=0.5))
    assert await c.fetch(3) == []  # it ran
    assert ids(await c.fetch(3, now=NOW + 1)) == ["a.0"]


async def test_a_tenant_needs_room_in_rate_and_concurrency_together(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=2, rate=1.0, burst=3))
    await backlog(c, "a", 10)
    first = await c.fetch(9)
    assert ids(first) == ["a.0", "a.1"]  # the limit of two; one token of three is left

    reply = await c.exchange(list(map(completed, first)), fetch=ALL)
    assert ids(reply.leased) == ["a.2"]  # the last token
    assert reply.due_in == pytest.approx(1.0, abs=MICRO)

    assert await c.fetch(9, now=NOW + 1 - 2 * MICRO) == []
    assert ids(await c.fetch(9, now=NOW + 1)) == ["a.3"]
    assert await c.fetch(9, now=NOW + 50) == []  # tokens enough, but two run


async def test_what_finds_no_room_in_one_limit_takes_nothing_from_the_other(c: Client) -> None:
    await c.configure(
        TenantChange(tenant="a", concurrency=1, rate=1.0, burst=1),
        QueueChange(queue="default", rate=1.0, burst=5),
    )
    await backlog(c, "a", 5)
    await backlog(c, "b", 9)
    assert ids(await c.fetch(1)) == ["a.0"]
    for i in range(9):
        assert "a.1" not in ids(await c.fetch(1, now=NOW + i * MICRO))

    # The queue gave five in all: the visits to the parked tenant took no token of the queue.
    running = [r.message.id for r in (await c.broker.page(state=State.RUNNING, now=NOW)).tasks]
    assert sorted(running) == ["a.0", "b.0", "b.1", "b.2", "b.3"]


async def test_the_rate_of_one_tenant_does_not_slow_another(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", rate=1.0))
    for tenant in "ab":
        await backlog(c, tenant, 4)

    assert ids(await c.fetch(20)) == ["a.0", "b.0", "b.1", "b.2", "b.3"]


async def test_the_nearest_of_several_rates_is_told(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", rate=0.5), TenantChange(tenant="b", rate=0.25))
    for tenant in "ab":
        await backlog(c, tenant, 4)
    await c.enqueue(submit("later", "z", delay=3.0))

    reply = await rated(c, NOW)
    assert ids(reply.leased) == ["a.0", "b.0"]
    assert reply.due_in == 2.0
    reply = await rated(c, NOW + 2)
    assert ids(reply.leased) == ["a.1"]
    assert reply.due_in == 1.0


# -- changes at run time ----------------------------------------------------------------------


@pytest.mark.parametrize("change", LIMITED.values(), ids=LIMITED)
async def test_a_new_limit_holds_for_the_existing_backlog(c: Client, change: Change) -> None:
    await backlog(c, "a", 20)
    first = await c.fetch(5)
    await c.configure(change)

    assert await c.fetch(20) == []
    assert (await c.exchange(list(map(completed, first[:3])), fetch=ALL)).leased == []
    assert len((await c.exchange([completed(first[3])], fetch=ALL)).leased) == 1


@pytest.mark.parametrize("name", ["tenant", "queue"])
async def test_limit_zero_parks_and_lifting_it_wakes(c: Client, name: str) -> None:
    def limit(value: int | None) -> Change:
        if name == "queue":
            return QueueChange(queue="default", concurrency=value)
        return TenantChange(tenant="a", concurrency=value)

    await c.configure(limit(0))
    await backlog(c, "a", 5)
    assert await c.fetch(9) == []

    await c.configure(limit(2))
    assert ids(await c.fetch(9)) == ["a.0", "a.1"]
    await c.configure(limit(None))
    assert ids(await c.fetch(9)) == ["a.2", "a.3", "a.4"]


@pytest.mark.parametrize("name", ["tenant", "queue"])
async def test_lifting_a_rate_wakes(c: Client, name: str) -> None:
    def limit(rate: float | None) -> Change:
        if name == "queue":
            return QueueChange(queue="default", rate=rate)
        return TenantChange(tenant="a", rate=rate)

    await c.configure(limit(0.001))
    await backlog(c, "a", 5)
    assert len(await c.fetch(9)) == 1

    await c.configure(limit(None))
    assert len(await c.fetch(9)) == 4


async def test_what_is_unset_in_a_change_stays(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=2))
    await c.configure(TenantChange(tenant="a", weight=5.0))
    await c.configure(QueueChange(queue="default", warn_depth=100))
    await backlog(c, "a", 5)

    assert len(await c.fetch(9)) == 2


# -- pauses -----------------------------------------------------------------------------------


async def test_a_paused_queue_is_passed_over_and_takes_tasks_in(c: Client) -> None:
    await backlog(c, "a", 2)
    await c.configure(QueueChange(queue="default", paused=True))
    await c.enqueue(submit("new"), submit("o", "a", "other"))

    assert ids(await c.fetch(9, ["default", "other"])) == ["o"]
    assert await states(c.broker, "a.0", "new") == [State.QUEUED, State.QUEUED]
    snapshot = await c.broker.snapshot(now=NOW)
    assert snapshot.queues["default"].paused is True
    assert snapshot.queues["default"].ready == 3

    await c.configure(QueueChange(queue="default", paused=False))
    assert ids(await c.fetch(9)) == ["a.0", "a.1", "new"]


async def test_a_paused_tenant_is_passed_over_and_takes_tasks_in(c: Client) -> None:
    for tenant in "ab":
        await backlog(c, tenant, 2)
    await c.configure(TenantChange(tenant="a", paused=True))
    await c.enqueue(submit("new", "a"))

    assert ids(await c.fetch(9)) == ["b.0", "b.1"]

    await c.configure(TenantChange(tenant="a", paused=False))
    assert ids(await c.fetch(9)) == ["a.0", "a.1", "new"]


async def test_a_tenant_may_be_paused_in_one_queue_only(c: Client) -> None:
    await c.enqueue(submit("d", "a"), submit("o", "a", "other"))
    await c.configure(TenantChange(tenant="a", queue="other", paused=True))

    assert ids(await c.fetch(9, ["other", "default"])) == ["d"]


async def test_what_runs_in_a_paused_queue_goes_on(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.configure(QueueChange(queue="default", paused=True))

    assert await c.settle(failed(lease, 1.0)) == ["applied"]
    assert await c.fetch(1, now=NOW + 2) == []
    assert (await record(c.broker, "t", now=NOW + 2)).attempts == 1

    await c.configure(QueueChange(queue="default", paused=False), now=NOW + 2)
    assert ids(await c.fetch(1, now=NOW + 2)) == ["t"]


async def test_due_tasks_of_a_paused_tenant_wait_for_it(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", paused=True))
    await c.enqueue(submit("later", "a", delay=1.0))

    assert await c.fetch(1, now=NOW + 2) == []
    await c.configure(TenantChange(tenant="a", paused=False), now=NOW + 2)
    assert ids(await c.fetch(1, now=NOW + 2)) == ["later"]


async def test_a_paused_tenant_at_its_limit_stays_paused_when_there_is_room(c: Client) -> None:
    await c.configure(TenantChange(tenant="a", concurrency=1))
    await backlog(c, "a", 3)
    (lease,) = await c.fetch(3)
    await c.configure(TenantChange(tenant="a", paused=True))

    assert (await c.exchange([completed(lease)], fetch=ALL)).leased == []
    await c.configure(TenantChange(tenant="a", paused=False))
    assert len(await taken(c, 9, 3)) == 1


# -- named limiters ---------------------------------------------------------------------------


async def test_a_named_limiter_is_shared_between_tenants_and_queues(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=2))
    await c.enqueue(
        *(submit(f"{q}.{t}", t, q, limiters=("gpu",)) for q in ("x", "y") for t in "ab")
    )

    leases = await c.fetch(9, ["x", "y"])
    assert ids(leases) == ["x.a", "x.b"]
    order = Fetch(queues=("y", "x"), max=9)
    assert ids((await c.exchange([completed(leases[0])], fetch=order)).leased) == ["y.a"]


async def test_a_limiter_nobody_configured_limits_nothing(c: Client) -> None:
    await c.enqueue(*(submit(f"t.{i}", limiters=("free",)) for i in range(5)))

    assert len(await c.fetch(9)) == 5


async def test_all_limiters_of_a_task_are_taken_or_none(c: Client) -> None:
    names = ("l1", "l2", "l3", "l4")
    await c.configure(*(LimiterChange(name=name, concurrency=2) for name in names))
    await c.configure(LimiterChange(name="l4", concurrency=1))
    await c.enqueue(
        submit("first", "a", limiters=names),
        submit("second", "b", limiters=names),
        *(submit(f"{name}.{t}", f"{name}.{t}", limiters=(name,)) for name in names for t in "xy"),
    )

    # "second" finds no room in l4; had it taken l1 to l3, only the first of each pair could run.
    assert ids(await c.fetch(1)) == ["first"]
    leases = await c.fetch(20)
    assert sorted(ids(leases)) == ["l1.x", "l2.x", "l3.x"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_a_settlement_returns_a_limiter_exactly_once(
    c: Client, end: Callable[[Leased], Settlement]
) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.enqueue(*(submit(t, t, limiters=("gpu",)) for t in "abcd"))
    (lease,) = await c.fetch(9)

    assert len((await c.exchange([end(lease)], fetch=ALL)).leased) == 1
    assert await c.settle(end(lease)) != ["applied"]
    assert await c.fetch(9) == []


async def test_giving_back_returns_limiters_exactly_once(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=2))
    await c.enqueue(*(submit(t, t, limiters=("gpu",)) for t in "abcd"))
    gone = Client(c.broker, "gone")
    old = await gone.fetch(9)
    await c.broker.give_back("gone", now=NOW)
    await c.broker.give_back("gone", now=NOW)

    assert await gone.settle(*map(completed, old)) == ["fenced", "fenced"]
    assert len(await c.fetch(9)) == 2
    assert await c.fetch(9) == []


async def test_a_sweep_returns_limiters_exactly_once(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=2))
    await c.enqueue(*(submit(t, t, limiters=("gpu",)) for t in "abcd"))
    gone = Client(c.broker, "gone")
    old = await gone.fetch(9)
    now = await sweep_out(c.broker, NOW + 31)

    assert await gone.settle(*map(completed, old), now=now) == ["fenced", "fenced"]
    assert len(await c.fetch(9, now=now)) == 2
    assert await c.fetch(9, now=now) == []


async def test_a_tenant_without_room_in_a_limiter_does_not_hold_back_others(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=0))
    await c.enqueue(submit("a.0", limiters=("gpu",)), submit("a.1"), submit("b.0", "b"))

    assert ids(await c.fetch(9)) == ["b.0"]  # a is parked behind its next task
    await c.configure(LimiterChange(name="gpu", concurrency=None))
    assert ids(await c.fetch(9)) == ["a.0", "a.1"]


async def test_room_in_a_limiter_goes_on_to_every_tenant_that_waits_for_it(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.enqueue(*(submit(t, t, limiters=("gpu",)) for t in "abcde"))
    leases = await c.fetch(9)
    served = []
    while leases:
        served += ids(leases)
        leases = (await c.exchange(list(map(completed, leases)), fetch=ALL)).leased

    assert served == ["a", "b", "c", "d", "e"]


async def test_a_limiter_may_limit_the_rate(c: Client) -> None:
    await c.configure(LimiterChange(name="api", rate=2.0, burst=2))
    await c.enqueue(*(submit(t, t, limiters=("api",)) for t in "abcd"))

    assert ids((await rated(c, NOW)).leased) == ["a", "b"]
    assert (await rated(c, NOW)).due_in == pytest.approx(0.5, abs=MICRO)
    assert ids((await rated(c, NOW + 0.5)).leased) == ["c"]
    assert ids((await rated(c, NOW + 1.0)).leased) == ["d"]


async def test_a_limiter_lowered_below_what_runs_waits_until_there_is_room(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=3))
    await c.enqueue(*(submit(f"t.{i}", limiters=("gpu",)) for i in range(6)))
    first, second, third = await c.fetch(9)
    await c.configure(LimiterChange(name="gpu", concurrency=1))

    assert (await c.exchange([completed(first), completed(second)], fetch=ALL)).leased == []
    assert ids((await c.exchange([completed(third)], fetch=ALL)).leased) == ["t.3"]


async def test_expired_and_cancelled_tasks_take_nothing_from_a_limiter(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.enqueue(
        submit("late", limiters=("gpu",), deadline=1.0),
        submit("unwanted", limiters=("gpu",)),
        submit("good", limiters=("gpu",)),
    )
    assert (await c.cancel("unwanted")).code == "done"

    assert ids(await c.fetch(9, now=NOW + 2)) == ["good"]
    assert await states(c.broker, "late", now=NOW + 2) == [State.DEAD]
