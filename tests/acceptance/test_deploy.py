"""Stopping, replacing and looking into workers while they work: what a deployment does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead import State
from tests.acceptance.harness import Site, opened
from tests.support.servers import server
from tests.support.worker_process import WorkerProcess, is_alive, moment, until

TASKS = """
@app.task(name="thoughtful")
async def a_thoughtful_handler(ctx: Context) -> None:
    record("begin", ctx)
    await asyncio.sleep(60)


@app.task(name="stubborn")
def a_stubborn_handler(ctx: Context) -> None:
    record("begin", ctx)
    time.sleep(60)


hoard = []


@app.task(name="leaky")
async def a_leaky_handler(ctx: Context, megabytes: int) -> None:
    record("begin", ctx)
    hoard.append(b"x" * megabytes * 2**20)
    await asyncio.sleep(0.2)
    record("end", ctx)
"""

TROUBLE = ("recovered", "retrying", "dead", "cancelled", "fenced")


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that it has not taken yet."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("SigPnd", "ShdPnd") and int(value, 16) >> (number - 1) & 1:
                return True
    return False


async def send(worker: WorkerProcess, number: signal.Signals) -> float:
    """Send a signal to the supervisor and wait until it took it; when it was sent."""
    at = time.time()
    worker.signal(number)
    await until(lambda: not is_pending(worker.pid, number), f"{number.name} to be taken")
    return at


# -- TERM and INT -------------------------------------------------------------------------------


async def test_after_term_nothing_begins_and_all_that_runs_ends(site: Site) -> None:
    worker = site.worker("-c", "100", "-p", "2")
    await worker.ready()
    ids = await site.enqueue("nap", 400, 1.0)
    await site.recorded("begin", 200)

    told = await send(worker, signal.SIGTERM)
    assert await worker.wait() == 0

    begun = [record.id for record in site.records("begin")]
    await site.stream.until(
        lambda: site.stream.count(begun, "completed") == len(begun), "what ran to be completed"
    )
    assert max(event.at for event in site.stream.of(ids, "started")) <= told + 0.2
    assert {tuple(site.stream.kinds(id)) for id in begun} == {("enqueued", "started", "completed")}
    assert site.stream.count(ids, *TROUBLE) == 0
    states = {record.message.id: record.state for record in await site.found(ids)}
    assert {states[id] for id in begun} == {State.COMPLETED}
    assert {states[id] for id in ids if id not in begun} <= {State.QUEUED}
    assert await site.app.aworkers() == []


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
async def test_what_does_not_end_within_the_grace_is_handed_back_without_a_burnt_attempt(
    site: Site, number: signal.Signals
) -> None:
    worker = site.worker("-c", "20", "-p", "2", "--grace", "1")
    await worker.ready()
    ids = await site.enqueue("nap", 40, 60.0)
    await site.recorded("begin", 40)

    told = await send(worker, number)
    assert await worker.wait() == 0

    await site.stream.until(lambda: site.stream.count(ids, "released") == 40, "40 to be released")
    assert min(event.at for event in site.stream.of(ids, "released")) >= told + 0.9
    assert max(event.at for event in site.stream.of(ids, "released")) <= told + 5.0
    assert site.stream.count(ids, *TROUBLE) == 0
    assert {(r.state, r.attempts, r.crashes) for r in await site.found(ids)} == {
        (State.QUEUED, 0, 0)
    }
    assert worker.tree() == []


@pytest.mark.slow
async def test_a_sync_handler_that_outlasts_the_grace_does_not_hold_up_the_end(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "1", "--threads", "5", "--grace", "1")
    await worker.ready()
    ids = await site.enqueue("stubborn", 3)
    await site.recorded("begin", 3)

    await send(worker, signal.SIGTERM)
    assert await worker.wait(15.0) == 0

    # Not before their process has ended: nobody runs them beside it.
    await site.stream.until(lambda: site.stream.count(ids, "recovered") == 3, "3 to go back")
    assert {event.reason for event in site.stream.of(ids, "recovered")} == {""}
    assert {(r.state, r.attempts, r.crashes) for r in await site.found(ids)} == {
        (State.QUEUED, 0, 0)
    }
    assert worker.tree() == []


@pytest.mark.slow
async def test_a_second_int_hands_everything_back_now(site: Site) -> None:
    worker = site.worker("-c", "20", "-p", "2", "--grace", "60")
    await worker.ready()
    ids = await site.enqueue("nap", 40, 60.0)
    await site.recorded("begin", 40)

    await send(worker, signal.SIGINT)
    [late] = await site.enqueue("nap", 1, 0.1)
    told = await send(worker, signal.SIGINT)
    await worker.wait(10.0)

    await site.stream.until(lambda: site.stream.count(ids, "released") == 40, "40 to be released")
    assert max(event.at for event in site.stream.of(ids, "released")) <= told + 5.0
    assert site.stream.kinds(late) == ["enqueued"]
    assert {(r.state, r.attempts) for r in await site.found(ids)} == {(State.QUEUED, 0)}
    assert worker.tree() == []


@pytest.mark.slow
async def test_what_was_handed_back_is_done_by_the_next_worker(site: Site) -> None:
    worker = site.worker("-c", "20", "-p", "1", "--grace", "0")
    await worker.ready()
    ids = await site.enqueue("nap", 20, 2.0)
    await site.recorded("begin", 20)
    await send(worker, signal.SIGTERM)
    assert await worker.wait() == 0

    site.worker("-c", "20", "-p", "1")
    await site.stream.ended(ids)

    assert {event.attempt for event in site.stream.of(ids, "completed")} == {1}


# -- TSTP ---------------------------------------------------------------------------------------


async def quiet(site: Site, children: int) -> None:
    """Wait until so many children say that they fetch no more."""
    await site.eventually(
        lambda found: len(found) == children and all(each.details["quiet"] for each in found),
        f"{children} children to say that they are quiet",
    )


@pytest.mark.slow
async def test_a_quiet_worker_goes_on_with_what_it_has_and_takes_no_more(site: Site) -> None:
    worker = site.worker("-c", "10", "-p", "2")
    children = await worker.ready()
    running = await site.enqueue("nap", 10, 3.0)
    await site.recorded("begin", 10)

    told = await send(worker, signal.SIGTSTP)
    await quiet(site, 2)
    waiting = await site.enqueue("nap", 10, 0.1)
    await site.stream.ended(running)

    assert min(event.at for event in site.stream.of(running, "completed")) > told + 1.0
    assert site.stream.count(waiting, "started") == 0
    assert worker.children() == children
    assert {pid for pid in children if is_alive(pid)} == set(children)

    await send(worker, signal.SIGTERM)
    assert await worker.wait() == 0
    assert {record.state for record in await site.found(waiting)} == {State.QUEUED}
    assert site.stream.count([*running, *waiting], *TROUBLE) == 0


# -- HUP and recycling --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def feeding(site: Site) -> AsyncIterator[list[str]]:
    """A steady load; the ids so far."""
    ids: list[str] = []
    stop = asyncio.Event()

    async def feed() -> None:
        while not stop.is_set():
            ids.extend(await site.enqueue("nap", 5, 0.2))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.1)

    task = asyncio.create_task(feed())
    try:
        yield ids
    finally:
        stop.set()
        await task


@pytest.mark.slow
async def test_a_rolling_restart_under_load_loses_and_repeats_nothing(site: Site) -> None:
    worker = site.worker("-c", "20", "-p", "2")
    old = await worker.ready()
    fewest = len(old)

    async with feeding(site) as ids:
        await site.stream.until(lambda: site.stream.counts["completed"] >= 20, "some work")
        await send(worker, signal.SIGHUP)

        def replaced() -> bool:
            nonlocal fewest
            fewest = min(fewest, len(worker.born().keys() & set(worker.children())))
            return not any(map(is_alive, old)) and len(worker.children()) == 2

        await until(replaced, lambda: f"the children to be replaced\n{worker.tail()}", 40.0)
        new = await worker.ready(but=old)
        so_far = site.stream.counts["completed"]
        await site.stream.until(
            lambda: site.stream.counts["completed"] >= so_far + 20, "work after the restart"
        )
    await site.stream.ended(ids)

    assert fewest >= 1
    assert set(new).isdisjoint(old)
    assert site.stream.count(ids, *TROUBLE) == 0
    assert {event.attempt for event in site.stream.of(ids, "completed")} == {1}
    assert len(site.stream.of(ids, "completed")) == len(ids)
    # One at a time, and each replacement was ready before its predecessor stopped.
    born = sorted(moment(worker.born()[pid]) for pid in new)
    ended = sorted(moment(worker.log("child ended", pid=pid)[0]) for pid in old)
    assert born[0] <= ended[0] <= born[1] <= ended[1]
    assert worker.log("child died") == []


@pytest.mark.slow
async def test_children_are_replaced_after_so_many_tasks_and_nothing_is_lost(site: Site) -> None:
    worker = site.worker("-c", "10", "-p", "2", "--max-tasks", "50")
    first = await worker.ready()
    ids = await site.enqueue("nap", 500, 0.2)

    await site.stream.ended(ids, seconds=60.0)

    by = Counter(record.pid for record in site.records("begin"))
    assert len(by) >= 3  # the second may be replaced when all has begun, below
    assert by.keys() >= set(first)
    assert all(by[pid] >= 50 for pid in first), by  # it goes on until its replacement is there
    # What a child had not begun yet it may hand back; what it had begun it finishes.
    assert sorted(record.id for record in site.records("begin")) == sorted(ids)
    assert site.stream.count(ids, *TROUBLE) == 0
    assert [event.attempt for event in site.stream.of(ids, "completed")] == [1] * len(ids)
    assert worker.log("child died") == []
    await worker.ready(but=first)


@pytest.mark.slow
async def test_a_child_that_takes_too_much_memory_is_replaced_and_ends_what_it_runs(
    site: Site,
) -> None:
    worker = site.worker("-c", "5", "-p", "1", "--max-rss", "160MB")
    [old] = await worker.ready()
    lasting = await site.enqueue("nap", 1, 4.0)
    await site.recorded("begin", 1)
    ids = lasting + await site.enqueue("leaky", 1, 130)

    why = (await worker.logged("child retires", pid=old))["why"]
    [new] = await worker.ready(but=[old])
    more = await site.enqueue("nap", 10, 0.1)
    await site.stream.ended(ids + more)

    assert re.fullmatch(r"it takes 1[6-9]\d MB", why)
    assert {tuple(site.stream.kinds(id)) for id in ids} == {("enqueued", "started", "completed")}
    [ended] = [record for record in site.records("end") if record.id == lasting[0]]
    assert ended.pid == old
    await until(lambda: worker.children() == [new], "the old child to end")
    assert len(worker.log("child retires")) == 1
    assert worker.log("child died") == []


@pytest.mark.slow
async def test_children_are_replaced_at_their_age_one_at_a_time(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "2", "--max-age", "3")
    old = await worker.ready()

    async with feeding(site) as ids:
        await worker.ready(but=old)
    await site.stream.ended(ids)

    whys = [worker.log("child retires", pid=pid)[0]["why"] for pid in old]
    assert all(re.fullmatch(r"it is [3-9] seconds old", why) for why in whys), whys
    # Those that came in their places are soon replaced themselves.
    born = sorted(moment(line) for pid, line in worker.born().items() if pid not in old)
    ended = sorted(moment(worker.log("child ended", pid=pid)[0]) for pid in old)
    assert born[0] <= ended[0] <= born[1] <= ended[1]
    assert site.stream.count(ids, *TROUBLE) == 0
    assert worker.log("child died") == []


async def test_an_app_larger_than_its_limit_is_one_line_and_an_exit_code(site: Site) -> None:
    worker = site.worker("-p", "1", "--max-rss", "20MB")

    assert await worker.wait() == 2

    assert re.search(r"--max-rss is 20 MB, but the app takes \d+ MB", worker.text())
    assert "Traceback" not in worker.text()


# -- USR1 ---------------------------------------------------------------------------------------


async def test_usr1_shows_the_stacks_of_what_runs_and_disturbs_nothing(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "1", "--threads", "5")
    [child] = await worker.ready()
    ids = await site.enqueue("thoughtful") + await site.enqueue("stubborn")
    await site.recorded("begin", 2)
    assert "a_thoughtful_handler" not in worker.text()

    await send(worker, signal.SIGUSR1)

    await until(
        lambda: all(name in worker.text() for name in ("a_thoughtful_handler", "a_stubborn_handl")),
        lambda: f"the stacks of both handlers\n{worker.tail()}",
    )
    assert worker.children() == [child]
    await site.stream.started(ids)  # which may be heard of late
    assert {tuple(site.stream.kinds(id)) for id in ids} == {("enqueued", "started")}


@pytest.mark.slow
async def test_a_worker_whose_broker_is_away_ends_soon_after_its_grace(tmp_path: Path) -> None:
    with server() as running:
        async with opened(running.url, tmp_path, audited=False) as site:
            worker = site.worker("-c", "5", "-p", "1", "--grace", "1")
            await worker.ready()
            await site.enqueue("nap", 5, 60.0)
            await site.recorded("begin", 5)
            running.pause()
            began = time.monotonic()
            await send(worker, signal.SIGTERM)
            await worker.wait(30.0)
            assert time.monotonic() - began < 1.0 + 15.0
            running.resume()
