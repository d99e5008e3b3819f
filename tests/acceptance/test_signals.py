"""Quiet and back, and terminals that go away: what signals other than TERM mean to a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
from collections.abc import AsyncIterator

import pytest

from fairlead import State
from tests.acceptance.harness import Site
from tests.acceptance.test_deploy import TROUBLE, quiet, send
from tests.support.worker_process import WorkerProcess, is_alive, until

TASKS = """
@app.task(name="gated")
async def gated(ctx: Context, gate: str) -> None:
    record("begin", ctx)
    while not os.path.exists(gate):
        await asyncio.sleep(0.02)
"""

# -- TSTP and CONT ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_quiet_worker_fetches_again_after_cont(site: Site) -> None:
    # One child alone has no room for all of them, and none ends before the other one has begun.
    gate = site.folder / "gate"
    worker = site.worker("-c", "10", "-p", "2")
    children = await worker.ready()
    await send(worker, signal.SIGTSTP)
    await worker.logged("worker is quiet: it fetches no more")
    await quiet(site, 2)
    ids = await site.enqueue("gated", 20, str(gate))

    assert {record.state for record in await site.found(ids)} == {State.QUEUED}
    await send(worker, signal.SIGCONT)
    await site.recorded("begin", 20)
    gate.touch()
    await site.stream.ended(ids)

    assert worker.children() == children
    assert {record.pid for record in site.records("begin")} == set(children)
    assert len(site.stream.of(ids, "completed")) == 20
    assert site.stream.count(ids, *TROUBLE) == 0


@pytest.mark.slow
async def test_cont_to_a_worker_that_is_not_quiet_changes_nothing(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "1")
    [child] = await worker.ready()
    ids = await site.enqueue("nap", 5, 1.0)
    await site.recorded("begin", 5)

    await send(worker, signal.SIGCONT)
    await site.stream.ended(ids)

    assert worker.children() == [child]
    assert worker.log("worker is no longer quiet: it fetches again") == []
    assert {tuple(site.stream.kinds(id)) for id in ids} == {("enqueued", "started", "completed")}


@pytest.mark.parametrize("how", ["HUP", pytest.param("kill", marks=pytest.mark.slow)])
async def test_children_that_are_started_while_a_worker_is_quiet_are_quiet_until_cont(
    site: Site, how: str
) -> None:
    worker = site.worker("-c", "5", "-p", "1")
    [old] = await worker.ready()
    await send(worker, signal.SIGTSTP)
    if how == "HUP":
        await send(worker, signal.SIGHUP)
    else:
        worker.kill_child(old)
    [new] = await worker.ready(but=[old])
    await until(lambda: not is_alive(old), "the old child to end")
    [waiting] = await site.enqueue("nap", 1, 0.1)

    assert (await site.registered(new)).details["quiet"] is True
    [record] = await site.found([waiting])
    assert record.state is State.QUEUED
    await send(worker, signal.SIGCONT)
    await site.stream.ended([waiting])

    assert [record.pid for record in site.records("begin")] == [new]


# -- HUP and terminals --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def terminal(worker: WorkerProcess) -> AsyncIterator[int]:
    """Run a worker in a terminal that shows, and so logs, what it says; leave to close it."""
    loop = asyncio.get_running_loop()
    ours, theirs = pty.openpty()

    def show() -> None:
        with worker.file.open("ab") as log:
            log.write(os.read(ours, 65536))

    loop.add_reader(ours, show)
    try:
        worker.start(terminal=theirs)
        os.close(theirs)
        yield ours
    finally:
        loop.remove_reader(ours)
        os.close(ours)


def prepared(site: Site, *arguments: str, wrapper: tuple[str, ...] = ()) -> WorkerProcess:
    worker = WorkerProcess(
        site.folder, *arguments, environment=site.environment(), name="worker-0", wrapper=wrapper
    )
    site.workers.append(worker)
    return worker


@pytest.mark.slow
async def test_a_worker_whose_terminal_is_closed_stops_in_good_time(site: Site) -> None:
    worker = prepared(site, "-c", "5", "-p", "2")
    async with terminal(worker):
        await worker.ready()
        ids = await site.enqueue("nap", 5, 2.0)
        await site.recorded("begin", 5)
    later = await site.enqueue("nap", 20, 0.1)

    assert await worker.wait() == 0

    assert worker.tree() == []
    await site.stream.ended(ids)
    assert {tuple(site.stream.kinds(id)) for id in ids} == {("enqueued", "started", "completed")}
    assert State.QUEUED in {record.state for record in await site.found(later)}
    assert site.stream.count(ids + later, *TROUBLE) == 0


@pytest.mark.slow
async def test_a_second_hangup_does_not_hurry_a_worker_that_stops(site: Site) -> None:
    worker = prepared(site, "-c", "5", "-p", "1")
    async with terminal(worker):
        await worker.ready()
        ids = await site.enqueue("nap", 5, 2.0)
        await site.recorded("begin", 5)
        await send(worker, signal.SIGHUP)
        await worker.logged("worker stops: its terminal is gone")
        await send(worker, signal.SIGHUP)

        assert await worker.wait() == 0

    await site.stream.ended(ids)
    assert site.stream.count(ids, "released") == 0


@pytest.mark.slow
async def test_nohup_lets_a_worker_outlive_its_terminal(site: Site) -> None:
    worker = prepared(site, "-c", "5", "-p", "1", wrapper=("/usr/bin/env", "nohup"))
    async with terminal(worker):
        [old] = await until_started(site)

    [new] = await until_started(site, but=old)

    assert worker.running
    assert new != old
    [id] = await site.enqueue("nap", 1, 0.1)
    await site.stream.ended([id])


async def until_started(site: Site, but: int = 0) -> list[int]:
    """The pid of the only child, as the registry has it: nohup sends the log elsewhere."""
    return await site.eventually(
        lambda found: [each.pid for each in found if each.pid != but and len(found) == 1],
        "a child to be registered",
    )
