"""Counters: kept by the verbs themselves, the same in every store."""

from __future__ import annotations

import math

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Call, Fetch, QueueChange, TenantChange
from fairlead.broker.stats import BUCKETS, Histogram, QueueStats, bucket
from fairlead.model.lifecycle import Settlement, State
from tests.support.store import NOW, Client, completed, dead, failed, released, submit

HOUR = 3_600.0


async def counted(broker: Store, queue: str = "default", now: float = NOW) -> QueueStats:
    return (await broker.stats(queue, now=now)).queues[queue]


def times(*seconds: float) -> Histogram:
    counts = [0] * (len(BUCKETS) + 1)
    for each in seconds:
        counts[bucket(each)] += 1
    return Histogram(counts=tuple(counts), sum=sum(seconds), largest=max(seconds, default=0.0))


def totals(stats: QueueStats) -> dict[str, int]:
    """The counters that are not 0."""
    fields = msgspec.structs.asdict(stats)
    return {name: value for name, value in fields.items() if isinstance(value, int) and value}


# -- histograms -------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(len(BUCKETS)))
def test_a_bucket_holds_what_is_above_the_one_before_and_up_to_its_end(index: int) -> None:
    assert bucket(BUCKETS[index]) == index
    assert bucket(BUCKETS[index] * 1.0001) == index + 1
    # The same as where a logarithm is taken, however close to the end.
    for seconds in (math.nextafter(BUCKETS[index], way) for way in (0.0, BUCKETS[index], 1e9)):
        fraction, exponent = math.frexp(seconds / BUCKETS[0])
        assert bucket(seconds) == max(0, exponent - (fraction == 0.5))
    assert bucket(0.0) == bucket(1e-9) == 0
    assert bucket(1e12) == len(BUCKETS)


def test_a_percentile_is_the_end_of_its_bucket_and_never_above_the_largest() -> None:
    taken = times(*[0.0005] * 50, *[0.003] * 45, *[0.9] * 5)
    assert taken.upper(0.5) == 0.001
    assert taken.upper(0.95) == 0.004
    assert taken.upper(0.99) == 0.9
    assert Histogram().upper(0.5) is None
    assert times(1e6).upper(0.5) == 1e6


# -- counters ---------------------------------------------------------------------------------


async def test_a_queue_that_is_not_there_has_no_counters(broker: Store, c: Client) -> None:
    assert (await broker.stats(now=NOW)).queues == {}
    await c.enqueue(submit("a", queue="other"))
    assert (await broker.stats("default", now=NOW)).queues == {}
    assert list((await broker.stats(now=NOW)).queues) == ["other"]


async def test_what_is_accepted_started_and_completed_counts(broker: Store, c: Client) -> None:
    leases = await c.run(*(submit(f"t{i}") for i in range(5)))
    await c.settle(*map(completed, leases[:3]))
    assert totals(await counted(broker)) == {"enqueued": 5, "started": 5, "completed": 3}


async def test_what_is_refused_or_known_already_does_not_count(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"), submit("a"), submit("b", after=["nobody"]))
    assert totals(await counted(broker)) == {"enqueued": 1}


async def test_a_repeated_call_counts_once(broker: Store, c: Client) -> None:
    for _ in range(2):
        await broker.enqueue(Call("w1", 1), [submit("a"), submit("b")], now=NOW)
    order = Fetch(queues=("default",), max=2)
    replies = [await broker.exchange(Call("w1", 2), fetch=order, now=NOW) for _ in range(2)]
    for _ in range(2):
        await broker.exchange(Call("w1", 3), [completed(x) for x in replies[1].leased], now=NOW)
    assert totals(await counted(broker)) == {"enqueued": 2, "started": 2, "completed": 2}


async def test_every_end_of_an_attempt_has_its_counter(broker: Store, c: Client) -> None:
    a, b, d, e, f = await c.run(*(submit(x) for x in "abdef"))
    released = Settlement(
        id=e.message.id, token=e.token, to=State.QUEUED, burn=False, reason="released"
    )
    cancelled = Settlement(id=f.message.id, token=f.token, to=State.CANCELLED)
    await c.settle(completed(a), failed(b, 60), dead(d), released, cancelled)
    await c.enqueue(submit("waits", after=["b"]))
    assert totals(await counted(broker)) == {
        "enqueued": 6,
        "started": 5,
        "completed": 1,
        "failed": 2,
        "retried": 1,
        "dead": 1,
        "cancelled": 1,
        "deferred": 1,
    }


async def test_an_outcome_that_comes_too_late_is_fenced(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("a"))
    await broker.give_back("w1", now=NOW)
    assert await c.settle(completed(lease)) == ["fenced"]
    found = await counted(broker)
    assert (found.fenced, found.failed, found.retried, found.completed) == (1, 1, 1, 0)


async def test_a_cancelled_task_whose_attempt_fails_has_failed_and_is_not_retried(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("a"))
    await c.cancel("a")
    await c.settle(failed(lease, 5))
    assert totals(await counted(broker)) == {
        "enqueued": 1,
        "started": 1,
        "failed": 1,
        "cancelled": 1,
    }


async def test_three_crashes_are_three_failed_attempts_two_of_them_repeated(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("a"))
    for _ in range(3):
        await c.fetch()
        await broker.give_back("w1", now=NOW)
    assert totals(await counted(broker)) == {
        "enqueued": 1,
        "started": 3,
        "failed": 3,
        "retried": 2,
        "dead": 1,
    }


async def test_a_held_task_counts_as_started_once_it_is_known_to_have_run(
    broker: Store, c: Client
) -> None:
    await c.enqueue(*(submit(f"t{i}") for i in range(5)))
    leases = await c.fetch(5, start=1, now=NOW)
    assert (await counted(broker)).started == 1
    await c.exchange(started=[c.ref(leases[1])], now=NOW + 1)
    await c.settle(completed(leases[2]), failed(leases[3], 5), now=NOW + 2)
    assert (await counted(broker)).started == 4
    await broker.give_back("w1", [leases[4].message.id], now=NOW + 3)
    found = await counted(broker)
    assert found.started == 5
    assert found.wait == times(0.0, 1.0, 2.0, 2.0, 3.0)


async def test_ends_that_no_attempt_brings_count_too(broker: Store, c: Client) -> None:
    await c.enqueue(
        submit("late", deadline=1),
        submit("gone"),
        submit("parent"),
        submit("child", after=["parent"]),
        submit("purged", queue="other"),
    )
    await c.cancel("gone")
    await c.cancel("parent")
    await c.purge("other")
    await broker.promote(now=NOW + 2)
    assert totals(await counted(broker)) == {"enqueued": 4, "cancelled": 2, "dead": 2}
    assert totals(await counted(broker, "other")) == {"enqueued": 1, "cancelled": 1}


# -- how long ---------------------------------------------------------------------------------


async def test_the_wait_is_from_acceptance_to_the_start(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"), submit("b", deadline=60))
    await c.enqueue(submit("c"), now=NOW + 1)
    await c.fetch(3, now=NOW + 1.5)
    assert (await counted(broker)).wait == times(1.5, 1.5, 0.5)


async def test_the_wait_of_a_delayed_task_begins_when_it_is_due(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a", delay=10))
    (lease,) = await c.fetch(now=NOW + 12)
    await c.settle(failed(lease, 5), now=NOW + 12)
    await c.fetch(now=NOW + 20)
    assert (await counted(broker)).wait == times(2.0, 3.0)


async def test_the_wait_of_what_was_given_back_requeued_or_released_begins_then(
    broker: Store, c: Client
) -> None:
    (a,) = await c.run(submit("a"))
    back = Settlement(id="a", token=a.token, to=State.QUEUED, burn=False, reason="released")
    await c.settle(back, now=NOW + 1)
    (a,) = await c.fetch(now=NOW + 3)  # 2
    await broker.give_back("w1", now=NOW + 4)
    (a,) = await c.fetch(now=NOW + 7)  # 3
    await c.enqueue(submit("child", after=["a"], policy="run"), now=NOW + 7)
    await c.settle(dead(a), now=NOW + 8)
    await c.fetch(now=NOW + 12)  # the child: 4
    await c.requeue("a", now=NOW + 20)
    await c.fetch(now=NOW + 25)  # 5
    assert (await counted(broker)).wait == times(0.0, 2.0, 3.0, 4.0, 5.0)


async def test_held_tasks_know_since_when_they_could_run(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"), submit("b", delay=1), submit("c", deadline=60))
    await c.enqueue(submit("d"), now=NOW + 2)
    leases = await c.fetch(4, start=0, now=NOW + 3)
    await c.settle(*map(completed, leases), now=NOW + 4)
    assert (await counted(broker)).wait == times(4.0, 3.0, 4.0, 2.0)


@pytest.mark.parametrize("way", ["released", "given back"])
async def test_a_task_that_goes_back_before_it_began_has_waited_since_it_could_run(
    broker: Store, c: Client, way: str
) -> None:
    await c.enqueue(submit("t"))
    for _ in range(2):  # the short way of a task that was never lent, then the long way
        (lease,) = await c.fetch(1, start=0, now=NOW + 1)
        if way == "released":
            await c.settle(released(lease), now=NOW + 2)
        else:
            await broker.give_back(c.incarnation, [], now=NOW + 2)
    await c.fetch(1, now=NOW + 5)
    assert (await counted(broker)).wait == times(5.0)


async def test_a_task_that_goes_back_after_it_began_waits_anew(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.settle(released(lease), now=NOW + 2)
    await c.fetch(1, now=NOW + 5)
    assert (await counted(broker)).wait == times(0.0, 3.0)


async def test_run_times_are_those_of_the_settlements(broker: Store, c: Client) -> None:
    seconds = [0.0, 0.0004, 0.001, 0.0011, 0.25, 3.0, 100_000.0]
    leases = await c.run(*(submit(f"t{i}") for i in range(7)))
    await c.settle(
        *(completed(x, run_time=s) for x, s in zip(leases[:5], seconds[:5], strict=True))
    )
    await c.settle(
        msgspec.structs.replace(failed(leases[5], 1), run_time=seconds[5]),
        completed(leases[6], b"result", run_time=seconds[6]),
    )
    found = (await counted(broker)).run
    assert found.counts == times(*seconds).counts
    assert found.sum == pytest.approx(sum(seconds))
    assert found.largest == 100_000.0


async def test_a_task_that_never_ran_has_no_run_time(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"))
    (lease,) = await c.fetch(start=0)
    back = Settlement(id="a", token=lease.token, to=State.QUEUED, burn=False, reason="released")
    await c.settle(back)
    found = await counted(broker)
    assert (found.run.count, found.wait.count, found.started) == (0, 0, 0)


async def test_a_dependent_is_released_in_the_call_that_ends_its_parent_or_by_deliver(
    broker: Store, c: Client
) -> None:
    (parent,) = await c.run(submit("parent"))
    await c.enqueue(*(submit(f"t{i}", after=["parent"]) for i in range(60)))
    await c.settle(completed(parent), now=NOW + 1)
    await broker.deliver(now=NOW + 4)
    assert (await counted(broker)).release == times(*[0.0] * 50, *[3.0] * 10)


# -- tenants ----------------------------------------------------------------------------------


async def test_tenants_are_counted_in_this_hour_and_the_one_before(
    broker: Store, c: Client
) -> None:
    await c.configure(TenantChange(tenant="big", weight=3), TenantChange(tenant="a", weight=2))
    await c.configure(TenantChange(tenant="a", queue="default", weight=5))
    start = NOW - NOW % HOUR + HOUR
    leases = await c.run(submit("one", "a"), submit("two", "big"), submit("x", "c"), now=start)
    await c.settle(completed(leases[0]), dead(leases[1]), now=start)
    await c.cancel("x", now=start)
    await c.enqueue(submit("three", "a"), now=start + 10)
    await c.fetch(now=start + HOUR)

    found = (await broker.stats(tenants=True, now=start + HOUR)).tenants["default"]
    assert {name: msgspec.structs.astuple(each) for name, each in found.items()} == {
        "a": (2, 2, 1, 0, 0, HOUR - 10, 5.0, 0, (0,) * 8),
        "big": (1, 1, 0, 1, 0, 0.0, 3.0, 0, (0,) * 8),
        "c": (1, 1, 0, 0, 0, 0.0, 1.0, 0, (0,) * 8),
    }
    later = (await broker.stats(tenants=True, now=start + 2 * HOUR)).tenants["default"]
    assert {name: each.started for name, each in later.items()} == {"a": 1, "c": 0}
    later = (await broker.stats(tenants=True, now=start + 3 * HOUR)).tenants["default"]
    assert {name: each.started for name, each in later.items()} == {"a": 0, "c": 0}  # both run


async def test_a_tenant_that_waits_is_told_of_though_it_got_nothing(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("starved", "acme"), submit("later", "acme", delay=9 * HOUR))
    later = NOW + 3 * HOUR
    (name,), (found,) = zip(
        *(await broker.stats(tenants=True, now=later)).tenants["default"].items(), strict=True
    )
    assert (name, found.enqueued, found.started, found.queued) == ("acme", 0, 0, 1)


async def test_what_waits_is_told_by_priority(broker: Store, c: Client) -> None:
    levels = {"u": 0, "v": 2, "w": 2, "x": 3}
    await c.enqueue(*(submit(id, "acme", level=level) for id, level in levels.items()))
    await c.enqueue(submit("later", "acme", delay=HOUR, level=1))
    found = (await broker.stats(tenants=True, now=NOW)).tenants["default"]["acme"]
    assert (found.queued, found.lines) == (4, (1, 0, 2, 1, 0, 0, 0, 0))
    await c.fetch(2)  # the critical one, and one of those behind it
    found = (await broker.stats(tenants=True, now=NOW)).tenants["default"]["acme"]
    assert (found.queued, found.lines) == (2, (0, 0, 1, 1, 0, 0, 0, 0))


async def test_a_few_tenants_are_found_among_thousands_that_only_have_old_tasks(
    broker: Store, c: Client
) -> None:
    for i in range(0, 3_000, 100):
        await c.enqueue(*(submit(f"o{i + k}", f"old{i + k}", deadline=1) for k in range(100)))
    while (await broker.promote(now=NOW + 2)).more:
        pass
    later = NOW + 3 * HOUR
    leases = await c.run(*(submit(f"t{i}", f"new{i}") for i in range(10)), now=later)
    await c.settle(*map(completed, leases[:5]), now=later)  # nothing of theirs waits or runs
    stats = await broker.stats(tenants=True, now=later)
    assert sorted(stats.tenants["default"]) == [f"new{i}" for i in range(10)]
    assert {each.started for each in stats.tenants["default"].values()} == {1}
    assert not stats.more_tenants


async def test_tenants_are_told_only_where_they_are_asked_for(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a"), submit("b", queue="other"))
    assert (await broker.stats(now=NOW)).tenants == {}
    assert list((await broker.stats("other", tenants=True, now=NOW)).tenants) == ["other"]


async def test_at_most_a_thousand_tenants_are_told_of(broker: Store, c: Client) -> None:
    for i in range(0, 1_100, 100):
        await c.enqueue(*(submit(f"t{i + k}", f"tenant{i + k}") for k in range(100)))
    stats = await broker.stats(tenants=True, now=NOW)
    assert (len(stats.tenants["default"]), stats.more_tenants) == (1_000, True)
    assert stats.queues["default"].enqueued == 1_100


async def test_tidy_forgets_hours_that_nobody_is_told_of(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", warn_depth=1_000))  # so that it stays
    (lease,) = await c.run(submit("a"))
    await c.settle(completed(lease, keep=0.0))  # nothing is left of its tenant but what it counted
    assert (await broker.stats(tenants=True, now=NOW)).tenants["default"]["a"].completed == 1
    over = (math.floor(NOW / HOUR) + 2) * HOUR
    await broker.tidy(now=over - 1)
    assert (await broker.tidy(now=over - 1)).count == 0
    assert (await broker.tidy(now=over)).count == 1
    assert (await counted(broker)).enqueued == 1


async def test_what_was_counted_goes_with_its_queue(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("a"))
    await c.settle(completed(lease, keep=0.0))
    assert not (await broker.delete_queue(c.call(), "default", now=NOW)).refused
    await c.enqueue(submit("b", "other"))
    stats = await broker.stats(tenants=True, now=NOW)
    assert list(stats.tenants["default"]) == ["other"]
    assert stats.queues["default"].enqueued == 1


async def test_outcomes_that_are_all_too_late_leave_no_run_times(broker: Store, c: Client) -> None:
    leases = await c.run(*(submit(f"t{i}") for i in range(3)))
    await broker.give_back("w1", now=NOW)
    assert await c.settle(*map(completed, leases)) == ["fenced"] * 3
    found = await counted(broker)
    assert (found.fenced, found.run.count) == (3, 0)


async def test_run_times_of_several_queues_in_one_call_are_kept_apart(
    broker: Store, c: Client
) -> None:
    names = [("a", "one"), ("b", "two"), ("c", "one"), ("d", "one"), ("e", "two")]
    await c.enqueue(*(submit(id, queue=queue) for id, queue in names))
    leases = {x.message.id: x for x in await c.fetch(5, ["one", "two"])}
    await c.settle(*(completed(leases[id], run_time=n + 1) for n, (id, _) in enumerate(names)))
    assert (await counted(broker, "one")).run == times(1.0, 3.0, 4.0)
    assert (await counted(broker, "two")).run == times(2.0, 5.0)


async def test_one_tenant_can_be_asked_for(broker: Store, c: Client) -> None:
    await c.enqueue(submit("a", "acme"), submit("b", "big"))
    await c.fetch(2)
    found = await broker.stats(tenant="acme", now=NOW)
    assert set(found.tenants["default"]) == {"acme"}
    assert found.tenants["default"]["acme"].started == 1
    assert not found.more_tenants
    later = NOW + 3 * 3_600
    assert set((await broker.stats(tenant="acme", now=later)).tenants["default"]) == {"acme"}
    assert (await broker.stats(tenant="nobody", now=later)).tenants == {"default": {}}
