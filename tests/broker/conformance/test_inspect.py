"""Reads for people: counts, single tasks, listings, workers, the audit."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.broker import Store
from fairlead.broker.records import Counts, WorkerRecord
from fairlead.broker.requests import QueueChange
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from tests.support.store import (
    ERROR,
    NOW,
    Client,
    completed,
    dead,
    failed,
    record,
    submit,
)


async def one_of_each(c: Client, tenant: str = "a", queue: str = "default") -> None:
    """A task in each of the eight states: ``<queue>-<tenant>-<state>``."""
    name = f"{queue}-{tenant}-"
    leases = {
        lease.message.id.removeprefix(name): lease
        for lease in await c.run(
            *(
                submit(name + state, tenant, queue)
                for state in ("running", "retrying", "completed", "dead")
            ),
            queues=[queue],
        )
    }
    await c.settle(
        failed(leases["retrying"], 60), completed(leases["completed"]), dead(leases["dead"])
    )
    await c.enqueue(
        submit(f"{name}cancelled", tenant, queue),
        submit(f"{name}scheduled", tenant, queue, delay=60),
        submit(f"{name}deferred", tenant, queue, after=[f"{name}running"]),
    )
    await c.cancel(f"{name}cancelled")
    await c.enqueue(submit(f"{name}queued", tenant, queue))


def counts(found: Counts) -> dict[str, int]:
    return {field: getattr(found, field) for field in Counts.__struct_fields__}


EACH = dict.fromkeys(Counts.__struct_fields__, 1) | {"depth": 4}
NONE = dict.fromkeys(Counts.__struct_fields__, 0)
WORK = ("depth", "ready", "scheduled", "retrying", "deferred", "running")


# -- snapshot ---------------------------------------------------------------------------------


async def test_the_snapshot_of_an_empty_broker_counts_nothing(broker: Store) -> None:
    snapshot = await broker.snapshot(now=NOW)
    assert (counts(snapshot), snapshot.now) == (NONE, NOW)


async def test_the_snapshot_counts_the_shard_its_queues_and_their_tenants(
    broker: Store, c: Client
) -> None:
    await one_of_each(c, "a", "one")
    await one_of_each(c, "a", "two")
    await c.purge("ghost")
    await c.enqueue(submit("extra", "b", "two"))

    snapshot = await broker.snapshot(now=NOW)
    assert counts(snapshot) == {
        field: 2 * count + (field in {"depth", "ready"}) for field, count in EACH.items()
    }
    one, two = snapshot.queues["one"], snapshot.queues["two"]
    assert counts(one) == EACH
    assert counts(two) == EACH | {"depth": 5, "ready": 2}
    assert (set(one.tenants), set(two.tenants)) == ({"a"}, {"a", "b"})
    for part in (one.tenants["a"], two.tenants["a"]):
        assert {field: getattr(part, field) for field in WORK} == {f: EACH[f] for f in WORK}
    extra = two.tenants["b"]
    assert counts(extra) == NONE | {"depth": 1, "ready": 1}
    assert (one.more_tenants, one.paused) == (False, False)


async def test_depth_is_all_that_waits(broker: Store, c: Client) -> None:
    await one_of_each(c)
    found = (await broker.snapshot(now=NOW)).queues["default"]
    assert found.depth == found.ready + found.scheduled + found.retrying + found.deferred == 4


async def test_the_snapshot_follows_every_move(broker: Store, c: Client) -> None:
    async def now_is(**expected: int) -> None:
        snapshot = await broker.snapshot(now=NOW)
        assert counts(snapshot) == NONE | expected
        assert counts(snapshot.queues["default"]) == NONE | expected

    await c.enqueue(submit("t1", delay=5))
    await now_is(depth=1, scheduled=1)
    await broker.promote(now=NOW + 5)
    await now_is(depth=1, ready=1)
    (lease,) = await c.fetch(1)
    await now_is(running=1)
    await c.settle(failed(lease, 0))
    (lease,) = await c.fetch(1)
    await c.settle(dead(lease))
    await now_is(dead=1)
    await c.requeue("t1")
    await now_is(depth=1, ready=1)
    await c.cancel("t1")
    await now_is(cancelled=1)
    await c.delete("t1")
    assert counts(await broker.snapshot(now=NOW)) == NONE


async def test_the_snapshot_says_whether_a_queue_is_paused(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", queue="one"), submit("t2", queue="two"))
    await c.configure(QueueChange(queue="one", paused=True))
    queues = (await broker.snapshot(now=NOW)).queues
    assert (queues["one"].paused, queues["two"].paused) == (True, False)


async def test_the_tenants_of_a_queue_are_those_that_have_work(broker: Store, c: Client) -> None:
    (lease, _) = await c.run(submit("t1", "a"), submit("t2", "b"))
    await c.settle(completed(lease))
    tenants = (await broker.snapshot(now=NOW)).queues["default"].tenants
    assert set(tenants) == {"b"}
    assert (tenants["b"].running, tenants["b"].depth) == (1, 0)


async def test_the_snapshot_shows_at_most_1000_tenants_of_a_queue(broker: Store, c: Client) -> None:
    for part in range(5):
        await c.enqueue(*(submit(f"t{part}.{i}", f"tenant{part}.{i}") for i in range(200)))
    found = (await broker.snapshot(now=NOW)).queues["default"]
    assert (len(found.tenants), found.more_tenants) == (1000, False)

    await c.enqueue(submit("one-more", "one-more"))
    found = (await broker.snapshot(now=NOW)).queues["default"]
    assert (len(found.tenants), found.more_tenants, found.depth) == (1000, True, 1001)


# -- find -------------------------------------------------------------------------------------


async def test_find_answers_in_the_order_asked_with_none_for_unknown_ones(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    found = await broker.find(["t2", "ghost", "t1", "t2"], now=NOW)
    assert [one and one.message.id for one in found] == ["t2", None, "t1", "t2"]
    assert await broker.find([], now=NOW) == []


async def test_find_tells_what_is_known_of_a_running_task(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", deadline=60), submit("held"))
    (lease, held) = await c.fetch(2, start=1, now=NOW + 1)

    found = await record(broker, "t1")
    assert (found.state, found.token, found.incarnation) == (State.RUNNING, lease.token, "w1")
    assert (found.enqueued_at, found.started_at, found.deadline_at) == (NOW, NOW + 1, NOW + 60)
    assert (found.attempts, found.cancelling, found.finished_at) == (0, False, None)

    waiting = await record(broker, "held")
    assert (waiting.state, waiting.token, waiting.started_at) == (State.RUNNING, held.token, None)


async def test_find_tells_what_is_known_of_a_retrying_task(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(failed(lease, 30), now=NOW + 2)

    found = await record(broker, "t1")
    assert (found.state, found.due_at, found.attempts) == (State.RETRYING, NOW + 32, 1)
    assert (found.error, found.token, found.incarnation, found.started_at) == (ERROR, 0, "", None)


async def test_find_sees_no_task_move(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", delay=5))
    assert (await record(broker, "t1", now=NOW + 60)).state is State.SCHEDULED  # not promoted yet


# -- page -------------------------------------------------------------------------------------


async def listing(broker: Store, **filters: Any) -> list[str]:
    """All pages of one listing; also checks that each is within its limits."""
    found: list[str] = []
    cursor: str | None = None
    for _ in range(100):
        page = await broker.page(cursor=cursor, now=NOW, **filters)
        assert len(page.tasks) <= filters.get("limit", 100)
        found += [task.message.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the listing does not end")


async def fill(c: Client, count: int, tenant: str = "a") -> list[str]:
    names = [f"t{i:04}" for i in range(count)]
    for first in range(0, count, 500):
        await c.enqueue(*(submit(id, tenant) for id in names[first : first + 500]))
    return names


async def test_a_page_of_an_empty_broker_is_empty_and_the_last(broker: Store) -> None:
    page = await broker.page(now=NOW)
    assert (page.tasks, page.cursor) == ([], None)


async def test_pages_list_tasks_in_the_order_of_their_acceptance(broker: Store, c: Client) -> None:
    await c.enqueue(submit("z"), submit("m", "b", "other"), submit("a", delay=60, level=0))
    await c.enqueue(submit("k", after=["a"]))
    assert await listing(broker) == ["z", "m", "a", "k"]
    assert await listing(broker, limit=1) == ["z", "m", "a", "k"]

    (lease,) = await c.fetch(1)
    await c.settle(failed(lease, 0))  # goes to the end of its level, not of the listing
    await c.fetch(1)
    assert await listing(broker) == ["z", "m", "a", "k"]


async def test_pages_go_on_at_their_cursor_until_it_is_none(broker: Store, c: Client) -> None:
    names = await fill(c, 2500)
    assert sorted(set(await listing(broker))) == names  # in an order of the store's own
    assert sorted(set(await listing(broker, limit=999))) == names

    page = await broker.page(now=NOW)
    assert len(page.tasks) == 100
    assert page.cursor is not None
    page = await broker.page(cursor=page.cursor, limit=7, now=NOW)
    assert len(page.tasks) == 7


def ids_of(tasks: list[Any]) -> list[str]:
    return [task.message.id for task in tasks]


async def test_a_page_examines_at_most_1000_tasks(broker: Store, c: Client) -> None:
    names = await fill(c, 2500)
    page = await broker.page(limit=1000, now=NOW)
    assert len(page.tasks) == 1000
    assert set(ids_of(page.tasks)) <= set(names)
    assert page.cursor is not None

    with pytest.raises(InvalidInput):
        await broker.page(limit=1001, now=NOW)


async def test_a_page_may_be_empty_and_not_the_last(broker: Store, c: Client) -> None:
    await fill(c, 2500)
    await c.enqueue(submit("needle", "b", "elsewhere", delay=60))

    for filters in (
        {"tenant": "b"},
        {"queue": "elsewhere"},
        {"state": State.SCHEDULED},
        {"tenant": "b", "queue": "elsewhere", "state": State.SCHEDULED},
    ):
        assert await listing(broker, **filters) == ["needle"]


async def test_pages_can_be_filtered(broker: Store, c: Client) -> None:
    await one_of_each(c, "a", "one")
    await one_of_each(c, "a", "two")
    await one_of_each(c, "b", "three")

    dead = await listing(broker, state=State.DEAD)
    assert sorted(dead) == ["one-a-dead", "three-b-dead", "two-a-dead"]
    assert await listing(broker, queue="one", state=State.QUEUED) == ["one-a-queued"]
    assert await listing(broker, tenant="b", state=State.RUNNING) == ["three-b-running"]
    assert await listing(broker, tenant="b", queue="one") == []
    assert len(await listing(broker, tenant="a")) == 16
    assert len(await listing(broker, queue="two")) == 8
    for state in State:
        assert len(await listing(broker, state=state)) == 3
    assert await listing(broker, queue="ghost") == []


async def test_a_listing_misses_no_task_while_tasks_move(broker: Store, c: Client) -> None:
    names = await fill(c, 300)
    page = await broker.page(now=NOW)
    seen = ids_of(page.tasks)

    leases = await c.fetch(128)
    await c.settle(*map(completed, leases))
    await c.cancel("t0200")
    await c.enqueue(submit("new"))
    while page.cursor is not None:
        page = await broker.page(cursor=page.cursor, now=NOW)
        seen += ids_of(page.tasks)
    assert set(names) <= set(seen) <= {*names, "new"}


async def test_a_listing_goes_on_where_the_task_at_its_cursor_is_gone(
    broker: Store, c: Client
) -> None:
    names = await fill(c, 6)
    for lease in await c.fetch(6):
        await c.settle(completed(lease))
    page = await broker.page(limit=3, now=NOW)
    first = ids_of(page.tasks)
    last, other = first[-1], next(name for name in names if name not in first)

    await c.delete(last)
    await c.delete(other)
    rest = []
    while page.cursor is not None:
        page = await broker.page(cursor=page.cursor, limit=3, now=NOW)
        rest += ids_of(page.tasks)
    assert set(names) - {last, other} <= {*first, *rest}
    assert not {last, other} & set(rest)


async def test_the_dead_can_be_browsed_with_their_reasons(broker: Store, c: Client) -> None:
    (one, two) = await c.run(submit("t1", body=b"one"), submit("t2"))
    await c.enqueue(submit("t3", deadline=5), submit("t4"))
    await c.settle(dead(one, "rejected"), dead(two))
    await broker.promote(now=NOW + 6)

    page = await broker.page(state=State.DEAD, now=NOW)
    tasks = sorted(page.tasks, key=lambda task: task.message.id)
    assert [(task.message.id, task.reason) for task in tasks] == [
        ("t1", "rejected"),
        ("t2", "exhausted"),
        ("t3", "expired"),
    ]
    assert [task.error for task in tasks[:2]] == [ERROR, ERROR]
    assert tasks == await broker.find(["t1", "t2", "t3"], now=NOW)


# -- workers ----------------------------------------------------------------------------------

WORKER = WorkerRecord(
    incarnation="w1", host="h", pid=7, queues=("default",), tasks=("f",), concurrency=4
)


async def test_workers_are_those_heard_of_in_the_last_15_seconds(broker: Store) -> None:
    assert await broker.workers(now=NOW) == []
    await broker.beat("w1", worker=WORKER, now=NOW)

    (found,) = await broker.workers(now=NOW + 14)
    assert found.seen_at == NOW
    assert (found.incarnation, found.host, found.pid, found.queues, found.tasks) == (
        "w1",
        "h",
        7,
        ("default",),
        ("f",),
    )
    assert await broker.workers(now=NOW + 16) == []


async def test_each_beat_keeps_a_worker_for_15_seconds_more(broker: Store) -> None:
    await broker.beat("w1", worker=WORKER, now=NOW)
    await broker.beat("w1", worker=WORKER, now=NOW + 10)
    (found,) = await broker.workers(now=NOW + 24)
    assert found.seen_at == NOW + 10
    assert await broker.workers(now=NOW + 26) == []


async def test_a_worker_is_shown_as_it_described_itself_last(broker: Store) -> None:
    await broker.beat("w1", worker=WORKER, now=NOW)
    later = WorkerRecord(incarnation="w1", host="h", running=3, details={"version": 2})
    await broker.beat("w1", worker=later, now=NOW + 1)
    (found,) = await broker.workers(now=NOW + 1)
    assert (found.running, found.details, found.seen_at) == (3, {"version": 2}, NOW + 1)


async def test_a_beat_without_a_description_registers_nobody(broker: Store) -> None:
    await broker.beat("w1", now=NOW)
    assert await broker.workers(now=NOW) == []


async def test_each_incarnation_is_a_worker_of_its_own(broker: Store) -> None:
    for name in ("w1", "w2"):
        await broker.beat(name, worker=WorkerRecord(incarnation=name, host="same"), now=NOW)
    found = await broker.workers(now=NOW)
    assert sorted(worker.incarnation for worker in found) == ["w1", "w2"]


# -- audit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [0.0, 61.0, 8 * 86_400.0])
async def test_the_audit_finds_nothing_wrong_with_tasks_in_every_state(
    broker: Store, c: Client, later: float
) -> None:
    assert await broker.audit(now=NOW) == []
    await one_of_each(c, "a", "one")
    await one_of_each(c, "b", "two")
    assert await broker.audit(now=NOW + later) == []
    await broker.promote(now=NOW + later)
    await broker.tidy(now=NOW + later)
    await c.fetch(10, ["one", "two"], now=NOW + later)
    assert await broker.audit(now=NOW + later) == []
