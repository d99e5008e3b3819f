"""Heartbeats, cancels, lost leases, outages: what happens between a worker and its broker."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from fairlead.broker import Caller
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import MAX_STEP, Fetch, Submission
from fairlead.model.errors import Ambiguous, Refused, Unreachable
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Message
from fairlead.model.options import Dependency
from fairlead.worker.run.context import Context
from tests.worker.harness import NOW, Rig, until


class Flaky(MemoryBroker):
    """Answers an exchange with errors from a list, before or after it was carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException | None] = []
        self.numbers: list[int] = []

    async def exchange(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        self.numbers.append(call.number)
        error = self.errors.pop(0) if self.errors else None
        if isinstance(error, Unreachable | Refused):
            raise error
        reply = await super().exchange(call, *args, **kwargs)
        if error is not None:
            raise error
        return reply


async def pass_time(rig: Rig, *steps: float) -> None:
    """Sweep at these moments: often enough for nobody to be spared."""
    for seconds in steps:
        await rig.broker.sweep(now=NOW + seconds)


async def test_heartbeats_keep_the_lease_of_a_long_task(slow: Rig) -> None:
    go = asyncio.Event()

    @slow.task()
    async def long() -> int:
        await go.wait()
        return 1

    id = await slow.enqueue("long")
    worker = slow.worker(lease=15.0)
    async with worker:
        await until(lambda: len(worker.inflight) == 1)
        for step in range(8):
            await pass_time(slow, 9.0 * step)
            assert (await worker.heartbeater.beat()).lost == []
        go.set()
        await slow.finished(id)

    record = await slow.find(id)
    assert (record.state, record.attempts, worker.syncer.fenced) == (State.COMPLETED, 1, 0)


async def test_a_worker_beats_every_third_of_its_lease(rig: Rig) -> None:
    beats = []
    beat = rig.broker.beat

    async def counted(*args: Any, **kwargs: Any) -> Any:
        beats.append((asyncio.get_running_loop().time(), kwargs["lease"]))
        return await beat(*args, **kwargs)

    rig.broker.beat = counted  # type: ignore[method-assign]
    async with rig.worker(lease=0.6):
        await until(lambda: len(beats) >= 5)
    assert {lease for _, lease in beats} == {0.6}
    pauses = [after - before for (before, _), (after, _) in pairwise(beats[1:])]
    assert min(pauses) == pytest.approx(0.2, abs=0.08)  # a busy machine makes some longer


async def test_a_worker_describes_itself(rig: Rig) -> None:
    @rig.task(queue="mail")
    async def send() -> None: ...

    async with rig.worker(concurrency=3) as worker:
        await worker.heartbeater.beat()
        (record,) = await rig.broker.workers()

    assert (record.incarnation, record.concurrency, record.running) == ("w1", 3, 0)
    assert set(record.queues) == {"default", "mail"}
    assert record.tasks == ("send",)
    assert record.pid
    assert record.host


async def test_a_lost_lease_cancels_the_attempt_and_nothing_is_settled(
    slow: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = []

    @slow.task()
    async def long(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.token)

    id = await slow.enqueue("long")
    worker = slow.worker(lease=5.0, concurrency=1)
    async with worker:
        await until(lambda: len(worker.inflight) == 1)
        first = (await slow.find(id)).token
        with caplog.at_level(logging.WARNING, "fairlead.worker"):
            await pass_time(slow, 0, 9, 18)  # another worker sweeps: the lease is over
            assert (await slow.find(id)).state is State.QUEUED
            (lost,) = (await worker.heartbeater.beat()).lost
            await until(lambda: bool(stopped))
        assert (lost.id, lost.token) == (id, first)
        assert stopped == [first]
        assert "lease lost" in [line.message for line in caplog.records]
        assert worker.syncer.pending == 0

        # The slot is free, and the same task comes back under a new lease.
        await until(lambda: len(worker.inflight) == 1)
        assert (await slow.find(id)).token > first
        await slow.cancel(id)
        await slow.finished(id, State.CANCELLED)
    assert worker.syncer.fenced == 1  # the attempt that was lost


async def test_an_outcome_that_comes_too_late_is_fenced(slow: Rig) -> None:
    go = asyncio.Event()

    @slow.task()
    async def long(ctx: Context) -> int:
        if ctx.attempt == 1:
            await go.wait()
        return ctx.attempt

    id = await slow.enqueue("long")
    zombie = slow.worker("zombie", lease=5.0, concurrency=1)
    async with zombie:
        await until(lambda: len(zombie.inflight) == 1)
        await pass_time(slow, 0, 9, 18)
        assert await slow.worker("other").drain() == 1
        go.set()
        await until(lambda: zombie.syncer.fenced == 1)

    record = await slow.find(id)
    assert (await slow.result(id), record.attempts) == (2, 2)


# -- cancel ------------------------------------------------------------------------------------


async def test_a_running_async_task_is_cancelled_at_once(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")
    async with rig.worker() as worker:
        await begun.wait()
        assert (await rig.cancel(id)).code == "requested"
        record = await rig.finished(id, State.CANCELLED)

    assert record.error is None
    assert not worker.exceptions


async def test_a_running_sync_task_is_asked_to_stop(rig: Rig) -> None:
    begun = threading.Event()

    @rig.task()
    def loops(ctx: Context) -> None:
        begun.set()
        while not ctx.cancelled:
            threading.Event().wait(0.001)
        ctx.raise_if_cancelled()

    id = await rig.enqueue("loops")
    async with rig.worker():
        await until(begun.is_set)
        await rig.cancel(id)
        await rig.finished(id, State.CANCELLED)


async def test_a_cancelled_task_that_succeeds_all_the_same_is_completed(rig: Rig) -> None:
    begun, go = threading.Event(), threading.Event()

    @rig.task()
    def deaf() -> str:
        begun.set()
        go.wait(20)
        return "done"

    id = await rig.enqueue("deaf")
    async with rig.worker() as worker:
        await until(begun.is_set)
        await rig.cancel(id)
        await until(lambda: all(a.context.cancelled for a in worker.inflight))  # type: ignore[attr-defined]
        go.set()
        await rig.finished(id)

    assert await rig.result(id) == "done"


async def test_a_cancelled_task_that_waits_for_a_thread_never_begins(rig: Rig) -> None:
    begun, go = threading.Event(), threading.Event()
    ran = []

    @rig.task()
    def first() -> None:
        begun.set()
        go.wait(20)

    @rig.task()
    def second() -> None:
        ran.append(1)

    await rig.enqueue("first")
    id = await rig.enqueue("second")
    async with rig.worker(concurrency=2, threads=1):
        await until(begun.is_set)
        await rig.cancel(id)
        await rig.finished(id, State.CANCELLED)
        go.set()
    assert not ran


async def test_the_heartbeat_tells_of_a_cancel_too(rig: Rig) -> None:
    @rig.task()
    async def hangs() -> None:
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")
    worker = rig.worker()
    await worker.processor.process()
    await rig.cancel(id)

    assert [ref.id for ref in (await worker.heartbeater.beat()).cancelled] == [id]
    await until(lambda: worker.syncer.pending == 1)
    await worker.processor.process()
    assert await rig.state(id) is State.CANCELLED


async def test_mail_that_was_read_is_confirmed(rig: Rig) -> None:
    @rig.task()
    async def hangs() -> None:
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")
    worker = rig.worker()
    await worker.processor.process()
    await rig.cancel(id)

    assert await worker.subscriber.receive() == 1
    assert await worker.subscriber.receive() == 0
    assert await rig.broker.collect("w1", 0, 0.0) == []
    await worker.drain()
    assert await rig.state(id) is State.CANCELLED


# -- outages -----------------------------------------------------------------------------------


async def test_a_lost_reply_is_asked_for_again_under_the_same_number() -> None:
    broker = Flaky()
    rig = Rig(broker)
    runs = []

    @rig.task()
    async def once() -> None:
        runs.append(1)

    id = await rig.enqueue("once")
    broker.errors = [Ambiguous("fetch"), Unreachable("x"), None, Ambiguous("settle")]
    worker = rig.worker()

    assert await worker.drain() == 1
    assert broker.numbers == [1, 1, 1, 2, 2]
    assert len(runs) == 1
    assert await rig.state(id) is State.COMPLETED
    assert (worker.syncer.fenced, worker.syncer.settled) == (0, 1)
    assert await broker.audit() == []


async def test_a_fetch_is_repeated_until_its_answer_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.broker.repeats._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("fairlead.broker.repeats._LONGEST_PAUSE", 0.001)
    broker = Flaky()
    rig = Rig(broker)

    @rig.task()
    async def nothing() -> None: ...

    id = await rig.enqueue("nothing")
    broker.errors = [Ambiguous("x")] * 30

    assert await rig.worker().drain() == 1
    assert broker.numbers[:31] == [1] * 31
    assert (await rig.find(id)).attempts == 1


async def test_a_worker_outlives_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    broker = Flaky()
    rig = Rig(broker)

    @rig.task()
    async def nothing() -> None: ...

    async with rig.worker() as worker:
        broker.errors = [Unreachable("x"), Refused("oom", "x"), Unreachable("x")]
        await rig.finished(await rig.enqueue("nothing"))
        assert not broker.errors
    assert worker.syncer.pending == 0
    assert "broker failed: x" in [line.message for line in caplog.records]


async def test_outcomes_that_cannot_be_told_do_not_keep_a_worker_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.worker.processor._LAST_WORDS", 0.3)
    broker = Flaky()
    rig = Rig(broker)
    go = asyncio.Event()

    @rig.task()
    async def waits() -> None:
        await go.wait()

    id = await rig.enqueue("waits")
    async with rig.worker(grace=0.05) as worker:
        await until(lambda: len(worker.inflight) == 1)
        broker.errors = [Unreachable("x")] * 1000
        go.set()

    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_a_lease_that_a_lost_reply_kept_from_the_worker_is_given_back(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    id = await rig.enqueue("nothing", queue="other")
    worker = rig.worker()
    async with worker:
        fetch = Fetch(queues=("other",), max=1)
        await worker.syncer.sync(fetch)  # and the answer is lost on the way to the processor
        assert await rig.state(id) is State.RUNNING

    record = await rig.find(id)
    assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)


async def test_a_closed_broker_does_not_make_a_worker_spin(rig: Rig) -> None:
    calls = 0
    wait = rig.broker.wait

    async def counted(*args: Any, **options: Any) -> bool:
        nonlocal calls
        calls += 1
        return await wait(*args, **options)

    rig.broker.wait = counted  # type: ignore[method-assign]
    async with rig.worker():
        await rig.broker.close()
        await asyncio.sleep(0.3)
    assert calls < 40


# -- single steps ------------------------------------------------------------------------------


async def test_outcomes_travel_in_batches_of_at_most_128(rig: Rig) -> None:
    worker = rig.worker()
    for i in range(300):
        worker.syncer.add(Settlement(id=f"x{i}", token=1, to=State.COMPLETED))

    sizes = []
    while reply := await worker.syncer.sync():
        sizes.append(len(reply.settled))
    assert sizes == [128, 128, 44]
    assert worker.syncer.fenced == 300
    assert await worker.syncer.sync() is None


async def test_an_outcome_that_the_broker_cannot_digest_is_the_end_of_its_task_only(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.task()
    async def nothing() -> None: ...

    held = [await rig.enqueue("nothing", queue="other") for _ in range(3)]
    next_one = await rig.enqueue("nothing")
    worker = rig.worker()
    reply = await worker.syncer.sync(Fetch(queues=("other",), max=3))
    assert reply is not None
    for lease in reply.leased:
        delay = float("nan") if lease.message.id == held[1] else 0.0
        worker.syncer.add(
            Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED, delay=delay)
        )

    assert await worker.drain() == 1
    assert await rig.state(next_one) is State.COMPLETED
    assert [await rig.state(id) for id in (held[0], held[2])] == [State.COMPLETED] * 2
    record = await rig.find(held[1])
    assert (record.state, record.reason) == (State.DEAD, "rejected")
    assert record.error is not None
    assert record.error.type == "InvalidOption"
    assert f"outcome cannot be stored: task {held[1]} is dead" in caplog.messages


async def test_an_error_of_the_broker_that_no_outcome_is_to_blame_for_comes_out(rig: Rig) -> None:
    async def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    rig.broker.exchange = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        await rig.worker().syncer.sync(Fetch(queues=("default",), max=1))


async def test_the_forwarder_promotes_and_delivers_all_there_is(slow: Rig) -> None:
    @slow.task()
    async def nothing() -> None: ...

    many = 6 * MAX_STEP
    for _ in range(many):
        await slow.enqueue("nothing", delay=5.0)
    worker = slow.worker()
    assert await worker.forwarder.forward() == 0
    slow.broker.shard.now = NOW + 5.0

    assert await worker.forwarder.forward() == many
    assert (await slow.broker.snapshot()).ready == many


async def test_the_forwarder_wakes_when_a_reply_says_so(rig: Rig) -> None:
    @rig.task()
    async def hangs() -> None:
        await asyncio.Event().wait()

    @rig.task()
    async def nothing() -> None: ...

    await rig.enqueue("hangs")
    id = await rig.enqueue("nothing", delay=0.1)
    async with rig.worker(concurrency=1, grace=0.0) as worker:  # full: it waits for no bell
        await until(lambda: len(worker.inflight) == 1)

        async def there() -> bool:
            return await rig.state(id) is State.QUEUED

        await until(there, timeout=2.0)  # well before anybody would look without being told


async def test_the_recoverer_gives_back_what_dead_workers_held(slow: Rig) -> None:
    @slow.task()
    async def nothing() -> None: ...

    id = await slow.enqueue("nothing")
    dead = Caller("dead")
    fetch = Fetch(queues=("default",), max=1, lease=5.0)
    await dead.call(lambda call: slow.broker.exchange(call, fetch=fetch))
    worker = slow.worker()

    counts = []
    for seconds in (0.0, 9.0, 18.0):
        await slow.broker.promote(now=NOW + seconds)
        counts.append(await worker.recoverer.recover())
    assert counts == [0, 0, 1]
    assert await slow.state(id) is State.QUEUED


async def test_the_janitor_forgets_what_is_past_its_retention(slow: Rig) -> None:
    @slow.task(retention="10s")
    async def nothing() -> None: ...

    short, shorter = await slow.enqueue("nothing"), await slow.enqueue("nothing", retention=1.0)
    worker = slow.worker()
    await worker.drain()

    await slow.broker.promote(now=NOW + 5)
    await worker.janitor.tidy()
    assert await slow.broker.find([shorter]) == [None]
    assert await slow.state(short) is State.COMPLETED


async def test_dependents_run_after_what_they_depend_on(rig: Rig) -> None:
    order: list[str] = []

    @rig.task()
    async def note(ctx: Context) -> None:
        order.append(ctx.id)

    parent = await rig.enqueue("note", id="parent")
    body = (await rig.find(parent)).message.body
    children = [
        Submission(
            message=Message(id=f"c{i}", queue="default", tenant="a", body=body),
            depends_on=(Dependency("parent"),),
        )
        for i in range(2 * MAX_STEP + 50)
    ]
    await rig.submit(*children)

    assert await rig.worker().drain() == 1 + len(children)
    assert order[0] == "parent"


async def test_a_sync_handler_that_is_lost_and_out_of_time_gives_its_slot_up(slow: Rig) -> None:
    go = threading.Event()

    @slow.task(timeout=0.2)
    def stuck() -> None:
        go.wait(20)

    await slow.enqueue("stuck")
    worker = slow.worker(concurrency=1)
    async with worker:
        await until(lambda: len(worker.inflight) == 1)
        (attempt,) = worker.inflight
        attempt.stop("lost")
        await until(lambda: len(worker.inflight) == 0)
        assert worker.abandoned == 1
        go.set()


class Forgetful(MemoryBroker):
    """Loses what its first exchanges lent: nobody hears of it, and nothing is raised."""

    lost = 0

    async def exchange(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        reply = await super().exchange(call, *args, **kwargs)
        if reply.leased and self.lost < 2:
            self.lost += 1
            return msgspec.structs.replace(reply, leased=[])
        return reply


async def test_a_lease_that_the_worker_does_not_know_of_goes_back_with_its_next_beat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(Forgetful())
    ran = []

    @rig.task()
    async def quick(ctx: Context) -> None:
        ran.append(ctx.attempt)

    ids = [await rig.enqueue("quick") for _ in range(3)]
    async with rig.worker(lease=0.3) as worker:
        with caplog.at_level(logging.WARNING, "fairlead.worker"):
            for id in ids:
                await rig.finished(id)
        assert worker.syncer.fenced == 0
    assert ran == [1, 1, 1]
    told = [line for line in caplog.records if "did not know of" in line.message]
    assert sum(vars(line)["tasks"] for line in told) == 6  # twice three


async def test_an_outcome_that_is_not_answered_for_yet_is_still_named() -> None:
    broker = Flaky()
    rig = Rig(broker)

    @rig.task()
    async def quick() -> None: ...

    id = await rig.enqueue("quick")
    broker.errors = [None, *[Unreachable("away")] * 4]
    async with rig.worker(lease=15.0) as worker:
        await until(lambda: worker.syncer.pending == 1)
        assert not worker.inflight.running
        assert [ref.id for ref in worker.inflight.leases()] == [id]
        reply = await worker.heartbeater.beat()
        assert (reply.lost, reply.unclaimed) == ([], 0)
        await rig.finished(id)
    assert worker.inflight.leases() == []
