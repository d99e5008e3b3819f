"""Real workers: what they tell of their tasks, and what they do when an operator orders it."""

from __future__ import annotations

import os
import signal

import pytest

from fairlead import Fairlead, InvalidArgument, State, UnknownTask
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import WorkerOrder
from fairlead.client import known_tasks
from fairlead.worker.process.status import read_all
from tests.acceptance.harness import Site
from tests.acceptance.test_deploy import TROUBLE, send
from tests.support.worker_process import is_alive, until

TASKS = """
@app.task(name="shout", queue="loud", max_retries=2)
async def shout(text: str, times: int = 1) -> str:
    return text.upper() * times
"""

QUICK = ("--lease", "3")  # a heartbeat every second


async def order(site: Site, pid: int, what: WorkerOrder) -> WorkerRecord:
    """Give an order to the child of this pid."""
    record = await site.registered(pid)
    assert await site.app._clients.current().order_worker(record.incarnation, what)
    return record


async def in_state(site: Site, pid: int, state: str) -> None:
    await site.eventually(
        lambda found: [w for w in found if w.pid == pid and w.details["state"] == state],
        f"worker {pid} to be {state}",
    )


async def test_a_program_without_the_code_sends_by_name_what_a_worker_tells_of(
    site: Site,
) -> None:
    worker = site.worker("-c", "5", "-p", "2", *QUICK)
    children = await worker.ready()
    records = [await site.registered(pid) for pid in children]
    digests = {record.details["catalog"] for record in records}
    front = Fairlead(store=site.store)

    handle = await front.asend("shout", "a", times=2)
    assert await handle.aresult(timeout=10.0) == "AA"
    assert (await handle.ainfo()).queue == "loud"
    with pytest.raises(InvalidArgument, match="times"):
        await front.asend("shout", "a", times="2")
    with pytest.raises(UnknownTask, match="did you mean shout"):
        await front.asend("shoot")
    known = {task.name: task for task in await known_tasks(front._clients.current())}
    assert known.keys() == {"nap", "shout"}
    assert known["shout"].workers == 2
    documents = (await site.store.documents("catalog")).documents
    assert {document.name for document in documents} == digests
    assert len(digests) == 1
    assert worker.log("component crashed: publisher") == []


@pytest.mark.slow
async def test_one_child_is_paused_and_the_other_does_the_work(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "2", *QUICK)
    resting, working = await worker.ready()
    await order(site, resting, "pause")
    await in_state(site, resting, "paused")
    first = await site.enqueue("nap", 10, 0.05)
    await site.stream.ended(first)
    assert {record.pid for record in site.records("begin")} == {working}

    await order(site, working, "pause")
    await in_state(site, working, "paused")
    second = await site.enqueue("nap", 5, 0.05)
    assert {record.state for record in await site.found(second)} == {State.QUEUED}
    await order(site, resting, "resume")
    await site.stream.ended(second)

    assert {record.pid for record in site.records("begin")[10:]} == {resting}
    assert worker.children() == [resting, working] or worker.children() == [working, resting]
    assert site.stream.count([*first, *second], *TROUBLE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGHUP])
async def test_who_takes_the_place_of_a_paused_child_is_paused(site: Site, end: int) -> None:
    worker = site.worker("-c", "5", "-p", "1", *QUICK)
    [child] = await worker.ready()
    await order(site, child, "pause")
    await in_state(site, child, "paused")
    [waiting] = await site.enqueue("nap", 1, 0.05)
    if end == signal.SIGKILL:
        os.kill(child, end)  # by itself
    else:
        await send(worker, signal.SIGHUP)  # with new code
    await until(lambda: worker.children() not in ([], [child]), "a successor")
    await until(lambda: not is_alive(child), "the child to be gone")
    [successor] = worker.children()
    await in_state(site, successor, "paused")
    [record] = await site.found([waiting])
    assert record.state is State.QUEUED
    await order(site, successor, "resume")
    await site.stream.ended([waiting])


@pytest.mark.slow
async def test_a_signal_and_an_order_are_independent(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "1", *QUICK)
    [child] = await worker.ready()
    await send(worker, signal.SIGTSTP)
    await order(site, child, "pause")
    await in_state(site, child, "paused")
    [waiting] = await site.enqueue("nap", 1, 0.05)
    await send(worker, signal.SIGCONT)
    await worker.logged("worker is no longer quiet: it fetches again")
    await in_state(site, child, "paused")
    [record] = await site.found([waiting])
    assert record.state is State.QUEUED

    await send(worker, signal.SIGTSTP)
    await order(site, child, "resume")
    await in_state(site, child, "quiet")
    [record] = await site.found([waiting])
    assert record.state is State.QUEUED
    await send(worker, signal.SIGCONT)
    await site.stream.ended([waiting])


@pytest.mark.slow
async def test_children_that_are_stopped_are_not_replaced_and_the_last_ends_the_worker(
    site: Site,
) -> None:
    worker = site.worker("-c", "5", "-p", "2", *QUICK)
    one, two = await worker.ready()
    running = await site.enqueue("nap", 10, 0.6)
    await site.stream.started(running)
    await order(site, one, "stop")
    await until(lambda: not is_alive(one), "the first child to end")
    assert worker.children() == [two]
    await site.stream.ended(running)

    await order(site, two, "stop")
    assert await worker.wait() == 0
    assert site.stream.count(running, *TROUBLE) == 0
    assert {tuple(site.stream.kinds(id)) for id in running} == {
        ("enqueued", "started", "completed")
    }
    assert len(worker.log("child ended", exit_code=0)) == 2
    assert worker.log("child died") == []


def well(pid: int) -> bool:
    """Whether a probe finds nothing wrong with a worker that wants one child."""
    found = [each for each in read_all() if each.pid == pid]
    return [(each.wanted, len(each.children), each.problems()) for each in found] == [(1, 1, [])]


@pytest.mark.slow
async def test_a_child_that_was_stopped_stays_away_when_the_others_are_replaced(
    site: Site,
) -> None:
    worker = site.worker("-c", "5", "-p", "2", *QUICK)
    one, two = await worker.ready()
    await order(site, one, "stop")
    await until(lambda: not is_alive(one), "the first child to end")
    await until(lambda: well(worker.pid), "probes to find the worker well with one child")
    await send(worker, signal.SIGHUP)
    await until(lambda: not is_alive(two), "the second child to be replaced")
    assert len(worker.children()) == 1
    [handle] = await site.enqueue("nap", 1, 0.05)
    await site.stream.ended([handle])
    await send(worker, signal.SIGTERM)
    assert await worker.wait() == 0
