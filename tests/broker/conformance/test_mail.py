"""Mail outlasts silence, and the retention is kept however tasks end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import MAX_STEP, Alter, QueueChange
from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, completed, drain, failed, states, submit

HOUR = 3600.0
LATE = NOW + HOUR + 100.0

# -- what a mailbox holds ---------------------------------------------------------------------


async def test_of_more_than_10_000_letters_the_oldest_are_dropped_and_asking_again_helps(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=20_000))
    for start in range(0, 10_100, 100):
        await watched_end(broker, c, *(f"t{i}" for i in range(start, start + 100)))

    letters = await broker.collect("me", 0, 0.0)

    assert [letters[0].id, letters[-1].id, len(letters)] == ["t100", "t10099", 10_000]
    (again,) = await broker.watch("me", ["t0"], now=NOW)
    assert again.state is State.COMPLETED


async def test_with_its_last_lease_goes_an_incarnations_mail_and_its_workers_record(
    broker: Store, c: Client
) -> None:
    await c.run(submit("t1"), submit("t2"))
    await c.cancel("t1")
    await broker.beat("w1", worker=WorkerRecord(incarnation="w1"), now=NOW)
    assert [worker.incarnation for worker in await broker.workers(now=NOW)] == ["w1"]

    assert (await broker.give_back("w1", now=NOW)).more is False

    assert await broker.workers(now=NOW) == []
    assert await broker.collect("w1", 0, 0.0) == []


# -- mail after an hour of silence ------------------------------------------------------------


async def watched_end(broker: Store, c: Client, *names: str, now: float = NOW) -> None:
    """Let ``me`` watch some tasks, and complete them."""
    leases = await c.run(*map(submit, names), now=now)
    await broker.watch("me", names, now=now)
    assert set(await c.settle(*map(completed, leases), now=now)) == {"applied"}


async def test_mail_numbers_go_on_after_an_hour_of_silence(broker: Store, c: Client) -> None:
    await watched_end(broker, c, "t1", "t2", "t3")
    last = (await broker.collect("me", 0, 0.0))[-1].number
    assert await broker.collect("me", last, 0.0) == []
    assert (await broker.tidy(now=LATE)).count > 0

    await watched_end(broker, c, "late", now=LATE)

    (letter,) = await broker.collect("me", last, 0.0)
    assert (letter.id, letter.number > last) == ("late", True)
    assert await broker.collect("me", letter.number, 0.0) == []


async def test_mail_numbers_go_on_through_many_silences(broker: Store, c: Client) -> None:
    last, now = 0, NOW
    for turn in range(5):
        await watched_end(broker, c, f"t{turn}", now=now)
        (letter,) = await broker.collect("me", last, 0.0)
        assert letter.id == f"t{turn}"
        assert letter.number > last
        last = letter.number
        now += HOUR + 100.0
        await broker.tidy(now=now)


async def test_orders_to_stop_have_numbers_that_go_on_as_well(broker: Store, c: Client) -> None:
    await c.run(submit("t1"))
    await c.cancel("t1")
    (first,) = await broker.collect("w1", 0, 0.0)
    await broker.collect("w1", first.number, 0.0)
    await broker.tidy(now=LATE)
    await c.run(submit("t2"), now=LATE)
    await c.cancel("t2", now=LATE)

    (second,) = await broker.collect("w1", first.number, 0.0)
    assert (second.kind, second.id, second.number > first.number) == ("cancel", "t2", True)


async def test_whoever_is_listening_is_not_forgotten(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await broker.watch("me", ["t"], now=NOW)
    listening = asyncio.ensure_future(broker.collect("me", 0, 60.0))
    for _ in range(5):
        await asyncio.sleep(0)

    await broker.tidy(now=LATE)
    await c.settle(completed(lease), now=LATE)

    (letter,) = await asyncio.wait_for(listening, 5.0)
    assert (letter.kind, letter.id, letter.state) == ("finished", "t", State.COMPLETED)


# -- the retention, however tasks end ---------------------------------------------------------

NAMES = [f"t{i:02}" for i in range(MAX_STEP)]  # as many as one call ends
BODY = bytes(900)  # with what else is kept of a dead task, a little over 1,000 bytes


async def enqueue(c: Client, *, after: tuple[str, ...] = (), deadline: float | None = None) -> None:
    await c.enqueue(*(submit(id, body=BODY, after=after, deadline=deadline) for id in NAMES))


async def cancel_one_by_one(c: Client) -> None:
    await enqueue(c)
    for id in NAMES:
        await c.cancel(id)


async def cancel_in_a_batch(c: Client) -> None:
    await enqueue(c)
    await c.alter(*(Alter(id=id, action="cancel") for id in NAMES))


async def purge(c: Client) -> None:
    await enqueue(c)
    assert (await c.purge()).count == MAX_STEP


async def cancel_running(c: Client) -> None:
    await enqueue(c)
    assert len(await c.fetch(MAX_STEP)) == MAX_STEP
    await c.alter(*(Alter(id=id, action="cancel") for id in NAMES))


async def give_back_cancelled(c: Client) -> None:
    await cancel_running(c)
    assert (await c.broker.give_back("w1", now=NOW)).count == MAX_STEP


async def sweep_out(c: Client, at: float) -> float:
    """Sweep past the guard of the first sweep, until the leases are ended."""
    for wait in (0.0, 9.0):
        assert (await c.broker.sweep(now=at + wait)).guarded
    assert (await c.broker.sweep(now=at + 11.0)).count == MAX_STEP
    return at + 11.0


async def sweep_cancelled(c: Client) -> None:
    await cancel_running(c)
    await sweep_out(c, NOW + 31)


async def settle_cancelled(c: Client) -> None:
    await enqueue(c)
    leases = await c.fetch(MAX_STEP)
    await c.alter(*(Alter(id=id, action="cancel") for id in NAMES))
    await c.settle(*map(failed, leases))


CANCELLED: list[Callable[[Client], Awaitable[None]]] = [
    cancel_one_by_one,
    cancel_in_a_batch,
    purge,
    give_back_cancelled,
    sweep_cancelled,
    settle_cancelled,
]


@pytest.mark.parametrize("end", CANCELLED)
async def test_cancelled_tasks_beyond_the_queues_count_are_forgotten_however_they_ended(
    broker: Store, c: Client, end: Callable[[Client], Awaitable[None]]
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=10))
    await end(c)

    snapshot = await broker.snapshot(now=NOW)
    assert (snapshot.cancelled, snapshot.depth, snapshot.running) == (10, 0, 0)
    known = [state for state in await states(broker, *NAMES) if state is not None]
    assert known == [State.CANCELLED] * 10


async def expire(c: Client) -> None:
    await enqueue(c, deadline=10.0)
    assert (await c.broker.promote(now=NOW + 11)).count == MAX_STEP


async def expire_at_fetch(c: Client) -> None:
    await enqueue(c, deadline=10.0)
    assert await c.fetch(MAX_STEP, now=NOW + 11) == []


async def fail_with_parent(c: Client) -> None:
    await c.enqueue(submit("parent", queue="other"))
    await enqueue(c, after=("parent",))
    await c.cancel("parent")
    await drain(c.broker)


async def be_born_dead(c: Client) -> None:
    await c.enqueue(submit("parent", queue="other"))
    await c.cancel("parent")
    await enqueue(c, after=("parent",))


async def crash_three_times(c: Client) -> None:
    await enqueue(c)
    for _ in range(3):
        assert len(await c.fetch(MAX_STEP)) == MAX_STEP
        assert (await c.broker.give_back("w1", now=NOW)).count == MAX_STEP


async def crash_and_be_swept(c: Client) -> None:
    await enqueue(c)
    for _ in range(2):
        assert len(await c.fetch(MAX_STEP)) == MAX_STEP
        assert (await c.broker.give_back("w1", now=NOW)).count == MAX_STEP
    assert len(await c.fetch(MAX_STEP)) == MAX_STEP
    await sweep_out(c, NOW + 31)


DEAD: list[Callable[[Client], Awaitable[None]]] = [
    expire,
    expire_at_fetch,
    fail_with_parent,
    be_born_dead,
    crash_three_times,
    crash_and_be_swept,
]


@pytest.mark.parametrize("end", DEAD)
async def test_dead_tasks_beyond_the_queues_bytes_are_forgotten_however_they_ended(
    broker: Store, c: Client, end: Callable[[Client], Awaitable[None]]
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=10_000))
    await end(c)

    known = [state for state in await states(broker, *NAMES) if state is not None]
    assert 5 <= len(known) <= 10
    assert set(known) == {State.DEAD}


async def test_at_most_two_are_forgotten_per_task_that_ended(broker: Store, c: Client) -> None:
    await cancel_in_a_batch(c)
    await c.configure(QueueChange(queue="default", keep_completed_count=10))
    assert (await broker.snapshot(now=NOW)).cancelled == MAX_STEP

    await c.enqueue(*(submit(f"x{i}") for i in range(10)))
    await c.cancel("x0")
    assert (await broker.snapshot(now=NOW)).cancelled == MAX_STEP - 1
    await c.alter(*(Alter(id=f"x{i}", action="cancel") for i in (1, 2, 3)))
    assert (await broker.snapshot(now=NOW)).cancelled == MAX_STEP - 4
    await c.purge()
    assert (await broker.snapshot(now=NOW)).cancelled == MAX_STEP - 10
    assert await states(broker, "t19", "t20", "x0", "x9") == [None, *[State.CANCELLED] * 3]


async def test_the_retention_of_one_queue_is_not_paid_by_another(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0))
    await c.enqueue(*(submit(f"far.{i}", queue="far") for i in range(20)))
    await c.alter(*(Alter(id=f"far.{i}", action="cancel") for i in range(20)))
    await cancel_in_a_batch(c)

    snapshot = await broker.snapshot(now=NOW)
    assert snapshot.queues["far"].cancelled == 20
    assert snapshot.queues["default"].cancelled == 0


async def test_what_is_past_its_age_is_forgotten_when_others_are_cancelled(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0))
    await cancel_in_a_batch(c)
    await c.enqueue(submit("x"), now=NOW + 11)
    await c.cancel("x", now=NOW + 11)

    assert (await broker.snapshot(now=NOW + 11)).cancelled == MAX_STEP - 1
    assert (await broker.tidy(now=NOW + 11)).count == MAX_STEP - 2


async def test_mail_of_the_very_call_that_gives_back_goes_as_well(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t"))
    await broker.watch("w1", ["t"], now=NOW)
    for _ in range(3):  # the third makes it dead
        await c.fetch(1)
        await broker.give_back("w1", now=NOW)

    assert await states(broker, "t") == [State.DEAD]
    assert await broker.collect("w1", 0, 0.0) == []
