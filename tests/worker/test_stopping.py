"""Stopping: in order, in time, and with nothing left behind; and starting again."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from fairlead.broker.memory import MemoryBroker
from fairlead.model.errors import InvalidInput, Unreachable
from fairlead.model.lifecycle import FINAL, State
from tests.support.leaping_loop import leaping
from tests.worker.harness import Rig, until


async def test_what_runs_is_finished_before_the_worker_stops(rig: Rig) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    thread_begun, thread_go = threading.Event(), threading.Event()

    @rig.task()
    async def on_the_loop() -> str:
        begun.set()
        await go.wait()
        return "done"

    @rig.task()
    def in_a_thread() -> str:
        thread_begun.set()
        assert thread_go.wait(10)
        return "done"

    one, two = await rig.enqueue("on_the_loop"), await rig.enqueue("in_a_thread")
    loop = asyncio.get_running_loop()
    async with rig.worker():
        await begun.wait()
        await until(thread_begun.is_set)
        # Callbacks run when this task waits next, and by then the worker is stopping.
        loop.call_soon(go.set)
        loop.call_soon(thread_go.set)

    assert (await rig.result(one), await rig.result(two)) == ("done", "done")


async def test_a_worker_that_stops_fetches_nothing_more(rig: Rig) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @rig.task()
    async def waits() -> None:
        begun.set()
        await go.wait()

    first, second = await rig.enqueue("waits"), await rig.enqueue("waits")
    async with rig.worker(concurrency=1):
        await begun.wait()
        asyncio.get_running_loop().call_soon(go.set)  # runs when the worker is stopping

    assert await rig.state(first) is State.COMPLETED
    assert await rig.state(second) is State.QUEUED


async def test_what_does_not_finish_in_time_is_handed_back_without_an_attempt_used_up(
    rig: Rig,
) -> None:
    begun = [threading.Event() for _ in range(3)]
    release = threading.Event()
    cleaned = []

    @rig.task()
    async def obeys() -> None:
        begun[0].set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("obeys")

    @rig.task()
    async def swallows() -> None:
        begun[1].set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @rig.task()
    def blocks() -> None:
        begun[2].set()
        release.wait(20)

    ids = [await rig.enqueue(name) for name in ("obeys", "swallows", "blocks")]
    worker = rig.worker(grace=0.02)
    try:
        async with worker:
            await until(lambda: all(event.is_set() for event in begun))
        for id in ids:
            record = await rig.find(id)
            assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)
        assert cleaned == ["obeys"]
        assert not worker.exceptions
        assert worker.syncer.fenced == 0
    finally:
        release.set()


async def test_a_task_that_fails_while_it_is_handed_back_is_not_charged(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def breaks() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    id = await rig.enqueue("breaks")
    async with rig.worker(grace=0.0):
        await begun.wait()

    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_a_second_request_to_stop_does_not_wait_for_the_grace(rig: Rig) -> None:
    begun = asyncio.Event()

    @rig.task()
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await rig.enqueue("hangs")

    async def program() -> None:
        async with rig.worker(grace=1000.0):
            await begun.wait()

    running = asyncio.create_task(program())
    await begun.wait()
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5.0)

    record = await rig.find(id)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_an_error_in_the_block_comes_out_of_it_after_an_orderly_stop(rig: Rig) -> None:
    @rig.task()
    async def short() -> None:
        await asyncio.sleep(0.01)

    id = await rig.enqueue("short")
    worker = rig.worker()

    async def program() -> None:
        async with worker:
            await until(lambda: len(worker.inflight) == 1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await program()
    assert await rig.state(id) is State.COMPLETED


async def test_a_crash_of_a_component_ends_the_block_loudly(rig: Rig) -> None:
    worker = rig.worker()

    async def broken() -> int:
        raise ZeroDivisionError

    worker.janitor.tidy = broken  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as caught:
        async with worker:
            await asyncio.sleep(10)

    assert caught.value.subgroup(ZeroDivisionError) is not None


async def test_a_worker_can_be_started_again_but_not_twice_at_a_time(rig: Rig) -> None:
    @rig.task()
    async def nothing() -> None: ...

    worker = rig.worker()
    for _ in range(2):
        async with worker:
            await rig.finished(await rig.enqueue("nothing"))
            with pytest.raises(InvalidInput, match="running already"):
                await worker.drain()
            with pytest.raises(InvalidInput, match="running already"):
                await worker.__aenter__()
    await rig.enqueue("nothing")
    assert await worker.drain() == 1


# -- without a broker --------------------------------------------------------------------------


class Breakable:
    """A store that cannot be reached any more once it is told so."""

    def __init__(self, *, silent: bool = False) -> None:
        self.inner = MemoryBroker()
        self.gone = False
        self.silent = silent  # it answers nothing then, instead of refusing
        self.delay = 0.0  # seconds before it does anything
        self.fetches = 0  # that were in vain
        self.waits = 0  # for a task to be handed over; one that goes on knows of nothing

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self.inner, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.gone:
                self.fetches += verb == "exchange"
                if self.silent:
                    await asyncio.Event().wait()
                raise Unreachable(verb)
            if self.delay:
                await asyncio.sleep(self.delay)
            self.waits += verb == "take"
            try:
                return await found(*args, **kwargs)
            finally:
                self.waits -= verb == "take"

        return call


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "is silent"])
@pytest.mark.parametrize("rest", ["nothing", "an outcome", "an attempt", "attempts that end late"])
def test_a_worker_stops_in_time_although_the_broker_is_gone(
    rest: str, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    leaping(_stop_without_a_broker(rest, silent, caplog))


async def _stop_without_a_broker(rest: str, silent: bool, caplog: pytest.LogCaptureFixture) -> None:
    store: Any = Breakable(silent=silent)
    rig = Rig(store)
    go, grace = asyncio.Event(), 3.0

    @rig.task()
    async def waits() -> None:
        await go.wait()

    worker = rig.worker(grace=1000.0 if rest in ("nothing", "an outcome") else grace)
    await worker.__aenter__()
    if rest != "nothing":
        for _ in range(5):
            await rig.enqueue("waits")
        await until(lambda: len(worker.inflight) == 5)
    await until(lambda: store.waits == 1)
    clock = asyncio.get_running_loop().time
    store.gone = True
    ends = clock()  # when nothing runs any more
    if rest == "an outcome":
        go.set()
        await until(lambda: worker.syncer.pending == 5)
        ends = clock()
    elif rest == "an attempt":
        ends += grace
    elif rest == "attempts that end late":
        ends += grace / 2
        asyncio.get_running_loop().call_at(ends, go.set)
    with caplog.at_level(logging.WARNING, "fairlead"):
        async with asyncio.timeout(100):
            await worker.__aexit__(None, None, None)

    # Two seconds for outcomes, and two to give back leases if the broker is silent.
    assert clock() <= ends + (4.2 if silent else 2.2)
    assert clock() >= ends
    told = [
        vars(line)["component"]
        for line in caplog.records
        if line.message.startswith("broker failed")
    ]
    assert len(told) == len(set(told))


def test_without_grace_a_broker_that_is_there_has_time_to_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "fairlead"):
        leaping(_stop_without_grace())
    assert caplog.messages == []  # such as: broker failed


async def _stop_without_grace() -> None:
    store: Any = Breakable()
    rig = Rig(store)

    @rig.task()
    async def waits() -> None:
        await asyncio.Event().wait()

    worker = rig.worker(grace=0.0)
    await worker.__aenter__()
    await rig.enqueue("waits")
    await until(lambda: len(worker.inflight) == 1 and store.waits == 1)
    store.delay = 0.5
    await worker.__aexit__(None, None, None)
    assert store.waits == 0
    assert await rig.state(await rig.enqueue("waits")) is State.QUEUED  # not handed over


async def test_a_fetch_that_is_being_repeated_does_not_hold_up_a_stop() -> None:
    store: Any = Breakable()
    rig = Rig(store)
    worker = rig.worker(grace=1000.0)
    await worker.__aenter__()
    store.gone = True
    await until(lambda: store.fetches > 3)  # by now it pauses for longer and longer

    began = time.monotonic()
    async with asyncio.timeout(20):
        await worker.__aexit__(None, None, None)
    assert time.monotonic() - began < 5.0  # the call has ten


# -- what has not begun ------------------------------------------------------------------------


async def test_what_a_late_reply_brings_after_the_stop_is_handed_back_unstarted(rig: Rig) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    runs = []
    exchange = rig.broker.exchange

    async def late(*args: Any, **kwargs: Any) -> Any:
        reply = await exchange(*args, **kwargs)
        if reply.leased:
            asked.set()
            await answer.wait()
        return reply

    @rig.task()
    async def runs_now() -> None:
        runs.append(1)

    rig.broker.exchange = late  # type: ignore[method-assign]
    id = await rig.enqueue("runs_now")
    async with rig.worker(grace=5.0):
        await asked.wait()
        asyncio.get_running_loop().call_later(0.01, answer.set)

    record = await rig.find(id)
    assert (record.state, record.attempts, runs) == (State.QUEUED, 0, [])


async def test_what_has_no_thread_has_not_begun_when_the_worker_stops(
    rig: Rig,
) -> None:
    begun, go = threading.Event(), threading.Event()

    @rig.task()
    def blocks() -> None:
        begun.set()
        go.wait(20)

    first, second = await rig.enqueue("blocks"), await rig.enqueue("blocks")
    async with rig.worker(threads=1, grace=20.0) as worker:
        await until(lambda: begun.is_set() and len(worker.inflight) == 1)
        asyncio.get_running_loop().call_later(0.02, go.set)

    assert await rig.state(first) is State.COMPLETED
    record = await rig.find(second)
    assert (record.state, record.attempts) == (State.QUEUED, 0)


# -- threads -----------------------------------------------------------------------------------


async def test_without_threads_sync_tasks_are_handed_back_and_run_once_there_are_some(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fairlead.worker.processor._STUCK_PAUSE", 0.01)

    @rig.task()
    def in_a_thread() -> int:
        return 1

    ids = [await rig.enqueue("in_a_thread") for _ in range(3)]
    tries = 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("can't start new thread")

    async with rig.worker() as worker:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            await until(lambda: tries > 3)
            assert len(worker.inflight) == 0
            for id in ids:
                record = await rig.find(id)
                assert (record.state, record.attempts) == (State.QUEUED, 0)
        for id in ids:
            await rig.finished(id)
    lines = [line for line in caplog.messages if "threads" in line]
    assert lines == ["too few threads for sync handlers: the system gives no more"]


async def test_handlers_that_hang_have_no_more_threads_than_there_are(rig: Rig) -> None:
    go = threading.Event()

    @rig.task(timeout=0.01)
    def hangs() -> None:
        go.wait(20)

    ids = [await rig.enqueue("hangs", max_retries=0) for _ in range(12)]
    before = threading.active_count()
    try:
        async with rig.worker(threads=2, concurrency=4, patience=0.01, grace=0.0) as worker:
            await until(lambda: worker.runner.overdue[0] == 2)
            assert threading.active_count() == before + 2
            states = [await rig.state(id) for id in ids]
            assert (states.count(State.RUNNING), states.count(State.QUEUED)) == (2, 10)
            go.set()
            for id in ids:
                await until(lambda id=id: is_final(rig, id))  # type: ignore[misc]
    finally:
        go.set()
    await until(lambda: threading.active_count() == before)


async def is_final(rig: Rig, id: str) -> bool:
    return await rig.state(id) in FINAL


# -- again -------------------------------------------------------------------------------------


async def test_a_worker_that_is_still_stopping_cannot_be_entered_again(rig: Rig) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @rig.task()
    async def waits() -> None:
        begun.set()
        await go.wait()

    worker = rig.worker()
    await worker.__aenter__()
    await rig.enqueue("waits")
    await begun.wait()
    stopping = asyncio.create_task(worker.__aexit__(None, None, None))
    await asyncio.sleep(0)
    with pytest.raises(InvalidInput, match="running already"):
        await worker.__aenter__()
    with pytest.raises(InvalidInput, match="running already"):
        await worker.drain()
    go.set()
    await stopping
    async with worker:
        await rig.finished(await rig.enqueue("waits"))


def test_a_worker_belongs_to_the_loop_that_it_first_ran_on() -> None:
    rig = Rig()
    worker = rig.worker()
    assert asyncio.run(worker.drain()) == 0

    with pytest.raises(InvalidInput, match=r"another event loop.*make a new worker"):
        asyncio.run(worker.drain())
    with pytest.raises(InvalidInput, match="another event loop"):
        asyncio.run(worker.__aenter__())
