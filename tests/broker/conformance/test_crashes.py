"""What is known of processes that died: by those who saw it, and by what they left behind."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import MAX_STEP, QueueChange
from fairlead.model.backoff import Backoff, RetryPolicy
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import ErrorInfo, Leased, run_flags
from fairlead.model.retries import Crashed, settle
from tests.support.store import (
    NOW,
    Client,
    completed,
    events,
    failed,
    ids,
    record,
    released,
    states,
    submit,
)

INFO = ErrorInfo("Crashed", "its process was killed by signal 9")
POLICY = RetryPolicy(max_retries=10, backoff=Backoff(initial=1.0, factor=1.0, jitter="none"))


def crashed(lease: Leased) -> Settlement:
    """As a worker settles a task whose process died alone with it."""
    return settle(lease, Crashed(INFO), POLICY, dice=0.0)


# -- a crash that its worker settles ----------------------------------------------------------


async def test_a_settlement_with_the_reason_crashed_adds_to_the_crash_count(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    assert await c.settle(crashed(lease)) == ["applied"]

    found = await record(c.broker, "t")
    assert (found.state, found.reason, found.error) == (State.RETRYING, "crashed", INFO)
    assert (found.crashes, found.attempts, found.due_at) == (1, 1, NOW + 1)
    (again,) = await c.fetch(1, now=NOW + 1)
    assert (again.crashes, again.attempt) == (1, 2)
    (event,) = await events(c.broker, "retrying")
    assert (event.reason, event.attempt) == ("crashed", 1)


async def test_the_third_crash_in_a_row_that_its_worker_settles_is_poison(c: Client) -> None:
    await c.enqueue(submit("t"))
    seen = []
    for turn in range(3):
        (lease,) = await c.fetch(1, now=NOW + turn)
        seen.append(lease.crashes)
        assert await c.settle(crashed(lease), now=NOW + turn) == ["applied"]

    assert seen == [0, 1, 2]
    found = await record(c.broker, "t", now=NOW + 3)
    assert (found.state, found.reason, found.error) == (State.DEAD, "poison", INFO)
    assert found.attempts == 3


@pytest.mark.parametrize("settled_first", [True, False])
async def test_crashes_of_both_kinds_are_in_one_row(c: Client, settled_first: bool) -> None:
    await c.enqueue(submit("t"))
    for turn in range(2):
        gone = Client(c.broker, f"gone{turn}")
        (lease,) = await gone.fetch(1, now=NOW + turn)
        assert lease.crashes == turn
        if settled_first is (turn == 0):
            await gone.settle(crashed(lease), now=NOW + turn)
        else:
            await c.broker.give_back(gone.incarnation, now=NOW + turn)
    (lease,) = await c.fetch(1, now=NOW + 2)
    assert (lease.crashes, lease.attempt) == (2, 3)
    await c.settle(crashed(lease), now=NOW + 2)
    assert (await record(c.broker, "t", now=NOW + 2)).reason == "poison"


def let_go(lease: Leased) -> Settlement:
    """As a worker that stops hands back what ran."""
    return released(lease, run_time=1.0)


@pytest.mark.parametrize("end", [let_go, failed], ids=["released", "retrying"])
async def test_any_other_settlement_clears_what_crashes_had_added(c: Client, end: object) -> None:
    assert callable(end)
    (lease,) = await c.run(submit("t"))
    await c.settle(crashed(lease))
    (lease,) = await c.fetch(1, now=NOW + 1)
    await c.settle(end(lease), now=NOW + 1)

    assert (await record(c.broker, "t", now=NOW + 1)).crashes == 0


async def test_a_task_that_crashed_and_then_succeeds_is_completed(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.settle(crashed(lease))
    (lease,) = await c.fetch(1, now=NOW + 1)
    assert await c.settle(completed(lease, b"r"), now=NOW + 1) == ["applied"]

    found = await record(c.broker, "t", now=NOW + 1)
    assert (found.state, found.result, found.crashes) == (State.COMPLETED, b"r", 0)


async def test_a_cancelled_task_that_crashed_is_cancelled(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.cancel("t")
    await c.settle(crashed(lease))

    assert await states(c.broker, "t") == [State.CANCELLED]


# -- workers that fell silent -----------------------------------------------------------------


async def worker(broker: Store, name: str, tasks: int, *, now: float = NOW) -> list[Leased]:
    """A worker that is heard of once, and holds this many leases."""
    client = Client(broker, name)
    leases: list[Leased] = []
    if tasks:
        submissions = [submit(f"{name}.{i}", queue=name) for i in range(tasks)]
        leases = await client.run(*submissions, queues=[name], now=now)
    await broker.beat(name, worker=WorkerRecord(incarnation=name, host="h", pid=7), now=now)
    return leases


async def names(broker: Store, *, silent: bool, now: float) -> list[str]:
    return sorted(each.incarnation for each in await broker.workers(silent=silent, now=now))


async def test_a_silent_worker_that_holds_leases_is_found_when_asked_for(broker: Store) -> None:
    await worker(broker, "busy", 2)
    await worker(broker, "idle", 0)
    await worker(broker, "heard", 0, now=NOW + 10)
    assert await names(broker, silent=True, now=NOW + 14) == ["busy", "heard", "idle"]

    assert await names(broker, silent=False, now=NOW + 16) == ["heard"]
    assert await names(broker, silent=True, now=NOW + 16) == ["busy", "heard"]
    (found,) = await broker.workers(silent=True, now=NOW + 26)
    assert (found.incarnation, found.host, found.pid, found.seen_at) == ("busy", "h", 7, NOW)


async def test_tidy_keeps_a_silent_worker_for_as_long_as_it_has_leases(broker: Store) -> None:
    leases = await worker(broker, "busy", 2)
    await worker(broker, "idle", 0)

    assert (await broker.tidy(now=NOW + 16)).count == 1
    assert (await broker.tidy(now=NOW + 1_000)).count == 0
    assert await names(broker, silent=True, now=NOW + 1_000) == ["busy"]

    busy = Client(broker, "busy")
    busy.number = 100
    await busy.settle(completed(leases[0]), now=NOW + 1_000)
    assert await names(broker, silent=True, now=NOW + 1_000) == ["busy"]
    await busy.settle(completed(leases[1]), now=NOW + 1_000)
    assert await names(broker, silent=True, now=NOW + 1_000) == []
    assert (await broker.tidy(now=NOW + 1_000)).count == 1


async def test_a_silent_worker_is_gone_with_the_last_lease_that_is_given_back(
    broker: Store,
) -> None:
    many = MAX_STEP + 1
    await worker(broker, "busy", many)
    await broker.tidy(now=NOW + 20)

    assert (await broker.give_back("busy", now=NOW + 20)).more
    assert await names(broker, silent=True, now=NOW + 20) == ["busy"]
    assert not (await broker.give_back("busy", now=NOW + 20)).more
    assert await names(broker, silent=True, now=NOW + 20) == []
    assert (await broker.tidy(now=NOW + 20)).count == 0


async def test_a_silent_worker_is_gone_with_the_last_lease_that_is_swept(broker: Store) -> None:
    await worker(broker, "busy", 1)
    await broker.sweep(now=NOW + 25)
    await broker.sweep(now=NOW + 34)
    await broker.tidy(now=NOW + 34)
    assert await names(broker, silent=True, now=NOW + 34) == ["busy"]

    assert (await broker.sweep(now=NOW + 36)).count == 1
    assert await names(broker, silent=True, now=NOW + 36) == []
    assert (await broker.tidy(now=NOW + 36)).count == 1


async def test_a_worker_that_is_heard_of_again_is_no_longer_silent(broker: Store) -> None:
    await worker(broker, "busy", 1)
    await broker.tidy(now=NOW + 20)
    await broker.beat("busy", worker=WorkerRecord(incarnation="busy"), now=NOW + 21)

    assert await names(broker, silent=False, now=NOW + 22) == ["busy"]
    (found,) = await broker.workers(silent=True, now=NOW + 22)
    assert found.seen_at == NOW + 21


async def test_many_silent_workers_with_leases_do_not_hide_those_without(broker: Store) -> None:
    for i in range(MAX_STEP + 5):
        await worker(broker, f"busy.{i:02}", 1)
    for i in range(3):
        await worker(broker, f"idle.{i}", 0, now=NOW + 1)

    moved = await broker.tidy(now=NOW + 20)

    assert (moved.count, moved.more) == (3, False)
    assert len(await broker.workers(silent=True, now=NOW + 20)) == MAX_STEP + 5


# -- how often a task may run -----------------------------------------------------------------


async def lost(c: Client, turn: int, way: str) -> None:
    """Fetch everything and be gone, with or without somebody who saw it."""
    gone = Client(c.broker, f"gone{turn}")
    await gone.fetch(10, now=NOW + 100 * turn)
    if way == "given back":
        await c.broker.give_back(gone.incarnation, now=NOW + 100 * turn)
        return
    for later in (40, 49, 51):  # the first sweep after a silence only looks
        await c.broker.sweep(now=NOW + 100 * turn + later)


@pytest.mark.parametrize("way", ["given back", "swept"])
async def test_nothing_runs_more_often_than_its_message_allows_crashes_included(
    c: Client, way: str
) -> None:
    once = submit("once", flags=run_flags(0, None))
    twice = submit("twice", flags=run_flags(1, None))
    await c.enqueue(once, twice)
    await lost(c, 0, way)

    found = await record(c.broker, "once", now=NOW + 60)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, "exhausted", 1)
    assert found.error is not None
    assert found.error.type == "ProcessDied"
    assert (await record(c.broker, "twice", now=NOW + 60)).state is State.QUEUED
    await lost(c, 1, way)
    found = await record(c.broker, "twice", now=NOW + 160)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, "exhausted", 2)
    assert [(e.task, e.reason) for e in await events(c.broker, "dead")] == [
        ("once", "exhausted"),
        ("twice", "exhausted"),
    ]


@pytest.mark.parametrize("way", ["given back", "swept"])
async def test_what_may_not_run_once_more_is_taken_for_begun_if_nobody_saw_it(
    c: Client, way: str
) -> None:
    await c.enqueue(
        submit("once", flags=run_flags(0, None)),
        submit("twice", flags=run_flags(1, None)),
        submit("crashes", flags=run_flags(0, 1)),
        submit("any"),
    )
    assert len(await c.fetch(4, start=0)) == 4
    if way == "given back":
        await c.broker.give_back(c.incarnation, now=NOW)
    else:
        for after in (0, 9, 18, 27, 36, 45):
            await c.broker.sweep(now=NOW + after)

    found = await record(c.broker, "once", now=NOW + 60)
    assert (found.state, found.reason, found.attempts) == (State.DEAD, "exhausted", 1)
    again = await c.fetch(4, now=NOW + 60)
    assert [(x.message.id, x.attempt) for x in again] == [("twice", 1), ("crashes", 1), ("any", 1)]


async def test_what_somebody_saw_not_begun_goes_back_uncharged(c: Client) -> None:
    await c.enqueue(submit("once", flags=run_flags(0, None)))
    await c.fetch(1, start=0)
    await c.broker.give_back(c.incarnation, [], now=NOW)
    assert [lease.attempt for lease in await c.fetch(1)] == [1]


async def test_failures_and_crashes_share_the_attempts(c: Client) -> None:
    (lease,) = await c.run(submit("t", flags=run_flags(1, None)))
    await c.settle(failed(lease))
    await c.fetch(1, now=NOW + 100)
    await c.broker.give_back(c.incarnation, now=NOW + 100)

    assert (await record(c.broker, "t", now=NOW + 100)).reason == "exhausted"


async def test_a_limit_of_crashes_is_asked_instead_of_the_attempts(c: Client) -> None:
    await c.enqueue(submit("t", flags=run_flags(0, 4)))
    for turn in range(4):
        await lost(c, turn, "given back")
        assert (await record(c.broker, "t", now=NOW + 100 * turn)).state is State.QUEUED
    await lost(c, 4, "given back")
    found = await record(c.broker, "t", now=NOW + 500)
    assert (found.state, found.reason, found.crashes) == (State.DEAD, "poison", 5)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_how_often_it_may_run_is_not_part_of_what_a_task_is(
    c: Client, forgotten: bool
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0 if forgotten else 10))
    (lease,) = await c.run(submit("t", flags=run_flags(5, None)))
    await c.settle(completed(lease))
    assert (await c.broker.find(["t"], now=NOW) == [None]) is forgotten  # only its id is known
    (receipt,) = await c.enqueue(submit("t", flags=run_flags(3, 2)))
    assert receipt.code == "duplicate"


async def test_what_blocked_its_neighbors_goes_behind_them_and_runs_alone(c: Client) -> None:
    await c.enqueue(*(submit(x) for x in ("first", "blocks", "last", "waits")))
    await c.fetch(3)
    await c.broker.give_back(c.incarnation, ["blocks"], blocked=["blocks"], now=NOW)

    leases = await c.fetch(4)
    assert ids(leases) == ["first", "last", "waits", "blocks"]
    assert [(lease.crashes, lease.attempt) for lease in leases] == [(0, 1)] * 3 + [(2, 2)]
    # Alone by now, so that there is no doubt about the next one.
    await c.broker.give_back(c.incarnation, ["blocks"], now=NOW)
    assert (await record(c.broker, "blocks")).reason == "poison"


async def test_what_did_not_run_ends_no_row_of_crashes(c: Client) -> None:
    await c.enqueue(submit("t"))
    await c.fetch(1)
    await c.broker.give_back(c.incarnation, ["t"], now=NOW)
    (lease,) = await c.fetch(1)
    await c.settle(released(lease))
    assert (await record(c.broker, "t")).crashes == 1
    (lease,) = await c.fetch(1, start=0)
    await c.settle(released(lease))
    assert (await record(c.broker, "t")).crashes == 1
    (lease,) = await c.fetch(1)
    await c.settle(released(lease, run_time=1.0))
    assert (await record(c.broker, "t")).crashes == 0
