"""The small parts on their own: repeating, deadlines, threads."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from fairlead.model.errors import Unreachable
from fairlead.runtime.component import every, serving
from fairlead.worker.run.deadlines import Deadlines
from fairlead.worker.run.threads import Threads
from tests.worker.harness import until


class Part:
    """A component that notes when it runs."""

    def __init__(self, name: str, notes: list[str], error: Exception | None = None) -> None:
        self.name = name
        self.notes = notes
        self.error = error

    async def run(self) -> None:
        self.notes.append(f"{self.name} starts")
        try:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.notes.append(f"{self.name} stops")


async def test_components_stop_from_the_inside_out() -> None:
    notes: list[str] = []

    async with serving(Part("outer", notes)), serving(Part("inner", notes)):
        await until(lambda: len(notes) == 2)

    assert notes[2:] == ["inner stops", "outer stops"]


async def test_an_error_of_the_block_comes_out_as_it_is_and_a_crash_as_a_group() -> None:
    notes: list[str] = []

    async def program(*parts: Part) -> None:
        async with serving(*parts):
            await asyncio.sleep(0.01)
            raise KeyError

    with pytest.raises(KeyError):
        await program(Part("a", notes))
    with pytest.raises(ExceptionGroup) as caught:
        await program(Part("a", notes), Part("b", notes, ZeroDivisionError()))
    assert caught.value.subgroup(ZeroDivisionError) is not None
    assert notes.count("a stops") == 2


async def test_a_crash_is_logged_where_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    serve = serving(Part("broken", [], ZeroDivisionError()))
    await asyncio.create_task(serve.__aenter__())  # whoever entered is gone, and cannot be told
    await asyncio.sleep(0)

    with pytest.raises(ExceptionGroup):
        await serve.__aexit__(None, None, None)
    (line,) = [line for line in caplog.records if line.name == "fairlead.runtime"]
    assert line.getMessage() == "component crashed: broken"
    assert line.exc_info is not None


async def test_a_step_is_taken_at_once_and_again_after_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps in (2, 3):
            raise Unreachable("x")
        if steps == 5:
            raise ZeroDivisionError

    with caplog.at_level(logging.INFO, "fairlead"), pytest.raises(ZeroDivisionError):
        await every(0.001, step)
    assert steps == 5
    lines = [line.message for line in caplog.records]
    assert lines == ["broker failed: x", "broker answers again"]


async def test_a_step_is_taken_early_when_somebody_wakes_it() -> None:
    steps = 0
    wake = asyncio.Event()

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            wake.set()  # during the step: another follows at once

    running = asyncio.create_task(every(1000.0, step, wake=wake))
    await until(lambda: steps == 1)
    wake.set()
    await until(lambda: steps == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Timed:
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def expire(self) -> None:
        self.notes.append(self.name)


async def test_deadlines_expire_in_order_and_removed_ones_never() -> None:
    notes: list[str] = []
    deadlines = Deadlines()
    now = asyncio.get_running_loop().time()
    gone = Timed("gone", notes)
    for name, after in (("late", 0.03), ("early", 0.01), ("never", 1000.0)):
        deadlines.add(Timed(name, notes), now + after)
    deadlines.add(gone, now + 0.005)
    deadlines.remove(gone)

    await until(lambda: len(notes) == 2)
    assert notes == ["early", "late"]
    assert len(deadlines) == 1
    deadlines.close()
    assert len(deadlines) == 0


async def test_deadlines_that_are_over_at_one_look_expire_in_their_order() -> None:
    notes: list[str] = []
    deadlines = Deadlines()
    now = asyncio.get_running_loop().time()
    for name, before in (("late", 0.01), ("early", 0.03), ("between", 0.02)):
        deadlines.add(Timed(name, notes), now - before)

    await until(lambda: len(notes) == 3)
    assert notes == ["early", "between", "late"]


class Job:
    def __init__(
        self, threads: Threads, gate: threading.Event | None = None, *, quick: bool = False
    ) -> None:
        self.quick = quick
        self.abandoned = False
        self.left = False
        self.ident: int | None = None
        self.threads = threads
        self.gate = gate
        self.state = "waiting"
        threads.submit(self)

    def begin(self) -> None:
        self.state = "begun"

    def work(self) -> None:
        if self.gate is not None:
            self.gate.wait(20)

    def end(self) -> None:
        self.state = "ended"

    def withdraw(self) -> None:
        if self.threads.withdraw(self):
            self.state = "withdrawn"


async def test_jobs_beyond_the_number_of_threads_wait_and_can_be_withdrawn() -> None:
    threads, gate = Threads(1), threading.Event()
    first, second, third = (Job(threads, gate) for _ in range(3))

    assert (first.state, second.state, third.state) == ("begun", "waiting", "waiting")
    assert threads.withdraw(second)
    assert not threads.withdraw(first)
    gate.set()
    await until(lambda: third.state == "ended")
    assert second.state == "waiting"
    threads.close()


async def test_an_abandoned_job_gives_its_place_to_the_next_and_its_thread_ends() -> None:
    before = threading.active_count()
    threads, gate = Threads(1), threading.Event()
    stuck = Job(threads, gate)
    for _ in range(3):
        other = Job(threads)
        if not stuck.abandoned:
            await until(lambda: stuck.ident is not None)
            threads.abandon(stuck)
        await until(lambda job=other: job.state == "ended")  # type: ignore[misc]
    assert threading.active_count() == before + 2

    gate.set()
    await until(lambda: stuck.state == "ended")
    threads.close()
    await until(lambda: threading.active_count() == before)


async def test_a_job_that_is_abandoned_as_it_ends_costs_no_thread() -> None:
    before = threading.active_count()
    threads, gate = Threads(2), threading.Event()
    gate.set()
    for _ in range(50):
        job = Job(threads, gate)
        while not job.left and job.ident is None:
            pass  # block the loop until the thread has begun: it may end before we abandon it
        threads.abandon(job)
        await until(lambda job=job: job.state == "ended")  # type: ignore[misc]
        assert threading.active_count() <= before + 2
    threads.close()
    await until(lambda: threading.active_count() == before)


async def test_quick_jobs_share_one_thread() -> None:
    before = threading.active_count()
    threads = Threads(8)
    jobs = [Job(threads, quick=True) for _ in range(200)]
    await until(lambda: all(job.state == "ended" for job in jobs))
    assert len({job.ident for job in jobs}) < 4  # one, unless the machine was busy elsewhere
    again = [Job(threads, quick=True) for _ in range(3)]
    await until(lambda: all(job.state == "ended" for job in again))
    threads.close()
    await until(lambda: threading.active_count() == before)


async def test_a_quick_job_that_is_not_quick_after_all_holds_up_nobody() -> None:
    before = threading.active_count()
    threads, gate = Threads(2), threading.Event()
    slow = Job(threads, gate, quick=True)
    others = [Job(threads, quick=True) for _ in range(5)]
    await until(lambda: all(job.state == "ended" for job in others))
    assert slow.state == "begun"
    gate.set()
    await until(lambda: slow.state == "ended" and threads._busy == 0)
    assert [Job(threads).state for _ in range(2)] == ["begun", "begun"]  # both threads are free
    threads.close()
    await until(lambda: threading.active_count() == before)


async def test_a_quick_job_can_be_abandoned_and_its_thread_is_replaced() -> None:
    before = threading.active_count()
    threads, gate = Threads(1), threading.Event()
    stuck = Job(threads, gate, quick=True)
    await until(lambda: stuck.ident is not None)
    behind = Job(threads, quick=True)
    threads.abandon(stuck)
    await until(lambda: behind.state == "ended")
    gate.set()
    await until(lambda: stuck.state == "ended")
    last = Job(threads)
    await until(lambda: last.state == "ended")
    threads.close()
    await until(lambda: threading.active_count() == before)


async def test_quick_jobs_wait_their_turn_and_can_be_withdrawn() -> None:
    before = threading.active_count()
    threads, gate = Threads(1), threading.Event()
    first = Job(threads, gate)
    quick, other = Job(threads, quick=True), Job(threads, quick=True)
    assert (first.state, quick.state) == ("begun", "waiting")
    assert threads.withdraw(quick)
    gate.set()
    await until(lambda: other.state == "ended")
    assert quick.state == "waiting"
    threads.close()
    await until(lambda: threading.active_count() == before)


async def test_a_job_waits_for_a_free_thread_if_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads, gate = Threads(3), threading.Event()
    first = Job(threads, gate)
    refuse_threads(monkeypatch)
    others = [Job(threads) for _ in range(5)]

    assert not threads.stuck
    assert [job.state for job in (first, *others)] == ["begun"] + ["waiting"] * 5
    gate.set()
    await until(lambda: all(job.state == "ended" for job in others))
    assert caplog.messages == ["too few threads for sync handlers: the system gives no more"]
    threads.close()


async def test_without_any_thread_jobs_are_given_back_until_one_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = Threads(2)
    with monkeypatch.context() as patched:
        refuse_threads(patched)
        job = Job(threads)
        assert (job.state, threads.stuck, threads.revive()) == ("waiting", True, False)
        threads.give_back()
        assert job.state == "withdrawn"

    assert threads.revive()
    job = Job(threads)
    await until(lambda: job.state == "ended")
    threads.close()


async def test_abandoned_jobs_have_at_most_as_many_threads_again() -> None:
    threads, gate = Threads(2), threading.Event()
    before = threading.active_count()
    for _ in range(4):
        job = Job(threads, gate)
        await until(lambda job=job: job.ident is not None)  # type: ignore[misc]
        threads.abandon(job)
    late = Job(threads)

    assert (late.state, threads.stuck) == ("waiting", True)
    assert threading.active_count() == before + 4
    gate.set()
    await until(threads.revive)
    late = Job(threads)
    await until(lambda: late.state == "ended")
    threads.close()
    await until(lambda: threading.active_count() == before)


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
