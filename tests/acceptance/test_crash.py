"""Workers that are killed, stopped and left alone: nothing is lost, and nobody does it twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest

from fairlead import State
from fairlead.model.events import Event
from tests.acceptance.harness import Record, Site
from tests.support.checker import History
from tests.support.worker_process import WorkerProcess, is_alive, moment, until

TASKS = """
@app.task(name="doze")
def doze(ctx: Context, first: float, later: float = 0.1) -> int:
    record("begin", ctx)
    time.sleep(first if ctx.attempt == 1 else later)
    record("end", ctx)
    return ctx.token


@app.task(name="program")
def program(ctx: Context) -> None:
    record("begin", ctx)
    if ctx.attempt == 1:
        import subprocess

        process = subprocess.Popen(["sh", "-c", "sleep 300; true"])
        line = json.dumps({"what": "program", "pid": process.pid, "at": time.time()}) + "\\n"
        os.write(_records, line.encode())
        process.wait()
"""


def attempts(site: Site, ids: Sequence[str]) -> list[list[Event]]:
    """The started events of each task."""
    return [site.stream.of([id], "started") for id in ids]


def runs(site: Site) -> dict[str, list[Record]]:
    """What began, by task."""
    found = defaultdict(list)
    for record in site.records("begin"):
        found[record.id].append(record)
    return found


def judged(site: Site, ids: Sequence[str]) -> History:
    """The history as the broker and the handlers tell it."""
    history = History()
    for id in ids:
        history.attempted(id)
        history.acknowledged(id)
    for record in site.records("end"):
        history.finished(record.id, record.token, record.at)
    history.read(site.stream.events)
    return history


@pytest.mark.serial
async def test_what_a_killed_child_ran_is_running_again_within_a_second_of_its_replacement(
    site: Site,
) -> None:
    worker = site.worker("-c", "100", "-p", "1")
    [old] = await worker.ready()
    ids = await site.enqueue("nap", 100, 60.0, 1.0)
    await site.stream.started(ids)
    await site.recorded("begin", 100)

    before = time.time()
    worker.kill_child(old)
    [new] = await worker.ready(but=[old])
    await site.stream.ended(ids)

    born = moment(worker.born()[new])
    assert max(again.at for _, again in attempts(site, ids)) <= born + 1.0
    # Each attempt is counted once, and the crash is what it is charged to.
    for id in ids:
        assert site.stream.kinds(id) == ["enqueued", "started", "recovered", "started", "completed"]
    assert [[e.attempt for e in starts] for starts in attempts(site, ids)] == [[1, 2]] * 100
    assert {event.reason for event in site.stream.of(ids, "recovered")} == {"crash"}
    assert {(r.state, r.attempts) for r in await site.found(ids)} == {(State.COMPLETED, 2)}
    # Nobody else ran it while the killed one was alive.
    for first, second in runs(site).values():
        assert (first.pid, second.pid) == (old, new)
        assert second.at > before
    assert judged(site, ids).verdict().defects == {}


@pytest.mark.slow
async def test_the_log_names_what_ran_in_a_child_that_died(site: Site) -> None:
    worker = site.worker("-c", "30", "-p", "1")
    [old] = await worker.ready()
    ids = await site.enqueue("nap", 20, 60.0)
    await site.recorded("begin", 20)

    worker.kill_child(old)

    died = await worker.logged("child died", pid=old)
    assert died["signal"] in (9, "9", "SIGKILL")
    assert sorted(died["running"]) == sorted(ids)
    await site.stream.ended(ids)


@pytest.mark.slow
async def test_the_other_child_goes_on_while_one_is_killed(site: Site) -> None:
    worker = site.worker("-c", "10", "-p", "2")
    one, other = await worker.ready()
    ids = await site.enqueue("nap", 20, 3.0)
    await site.recorded("begin", 20)

    worker.kill_child(one)
    await site.stream.ended(ids)

    mine = {record.id for record in site.records("begin") if record.pid == other}
    undisturbed = [id for id, found in runs(site).items() if len(found) == 1]
    assert set(undisturbed) <= mine
    assert len(undisturbed) == 10
    assert other in worker.children()


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(90)
async def test_a_machine_that_is_gone_is_made_up_for_by_another_when_its_lease_ends(
    site: Site,
) -> None:
    lease = 5.0
    await site.store.sweep()
    dying = site.worker("-c", "30", "-p", "2", "--lease", "5", host="one")
    await dying.ready()
    ids = await site.enqueue("nap", 40, 60.0)
    await site.recorded("begin", 40)
    await site.stream.started(ids)  # what the broker has not heard of is not charged
    standing = site.worker("-c", "40", "-p", "1", "--lease", "5", host="another")
    [rescuer] = await standing.ready()
    await site.sweeps()
    assert site.stream.count(ids, "recovered") == 0

    dying.kill_tree()
    gone = time.time()
    await site.stream.ended(ids, seconds=lease + 15.0)

    back = [event.at for event in site.stream.of(ids, "recovered")]
    assert len(back) == 40
    assert max(back) <= gone + lease + 5.0
    # Nor before: as far as the other machine can know, the first one may still be at it.
    assert min(back) >= gone + lease * 2 / 3 - 0.5
    assert max(again.at for _, again in attempts(site, ids)) <= gone + lease + 5.5
    assert {r.pid for r in site.records("begin") if r.attempt == 2} == {rescuer}
    assert {(r.state, r.attempts) for r in await site.found(ids)} == {(State.COMPLETED, 2)}
    assert judged(site, ids).verdict().defects == {}


@pytest.mark.slow
async def test_a_worker_that_starts_on_the_same_host_gives_back_at_once_what_the_dead_held(
    site: Site,
) -> None:
    dying = site.worker("-c", "30", "-p", "2", "--lease", "30")
    await dying.ready()
    ids = await site.enqueue("nap", 40, 60.0)
    await site.recorded("begin", 40)
    await site.stream.started(ids)  # what the broker has not heard of is not charged

    dying.kill_tree()
    gone = time.time()
    successor = site.worker("-c", "40", "-p", "1", "--lease", "30")
    [pid] = await successor.ready()
    await site.stream.ended(ids)

    born = moment(successor.born()[pid])
    back = [event.at for event in site.stream.of(ids, "recovered")]
    assert len(back) == 40
    assert max(back) <= born + 2.0
    assert max(back) < gone + 15.0  # no lease can have ended by then
    assert {(r.state, r.attempts) for r in await site.found(ids)} == {(State.COMPLETED, 2)}
    assert judged(site, ids).verdict().defects == {}


@pytest.mark.slow
async def test_a_worker_that_starts_takes_nothing_from_one_that_lives_on_the_same_host(
    site: Site,
) -> None:
    first = site.worker("-c", "20", "-p", "2")
    await first.ready()
    ids = await site.enqueue("nap", 20, 4.0)
    await site.recorded("begin", 20)

    second = site.worker("-c", "20", "-p", "1")
    await second.ready()
    await site.stream.ended(ids)

    assert {tuple(site.stream.kinds(id)) for id in ids} == {("enqueued", "started", "completed")}


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_what_a_stopped_worker_says_after_its_lease_changes_nothing(site: Site) -> None:
    await site.store.sweep()
    stopped = site.worker("-c", "10", "-p", "1", "--lease", "3", host="one")
    [child] = await stopped.ready()
    await site.sweeps()
    ids = await site.enqueue("nap", 5, 2.0, 0.5) + await site.enqueue("doze", 5, 2.0, 0.5)
    await site.recorded("begin", 10)

    stopped.stop()
    other = site.worker("-c", "10", "-p", "1", "--lease", "3", host="another")
    [rescuer] = await other.ready()
    await site.stream.ended(ids, seconds=25.0)
    results = [await site.app.handle(id).aresult(timeout=0) for id in ids]
    finished = await site.found(ids)

    stopped.cont()

    def told(*kinds: str) -> set[tuple[str, int]]:
        return {(e["task_id"], e["token"]) for kind in kinds for e in stopped.log(kind)}

    begun = {(r.id, r.token) for r in site.records("begin") if r.pid == child}
    await until(
        lambda: told("outcome fenced", "lease lost") == begun,
        lambda: f"all that was lost to be told\n{stopped.tail()}",
    )
    assert await site.found(ids) == finished
    winners = {r.id: r.token for r in site.records("end") if r.pid == rescuer}
    assert results == [winners[id] for id in ids]
    history = judged(site, ids)
    for id, result in zip(ids, results, strict=True):
        history.result(id, result)
    assert history.verdict().defects == {}

    # It is none the worse for it.
    other.signal(signal.SIGTERM)
    assert await other.wait() == 0
    more = await site.enqueue("nap", 5, 0.1)
    await site.stream.ended(more)
    assert stopped.children() == [child]


@pytest.mark.slow
async def test_outcomes_that_come_too_late_are_refused_and_counted(site: Site) -> None:
    slow = site.worker("-c", "10", "-p", "1", host="one")
    [child] = await slow.ready()
    ids = await site.enqueue("nap", 5, 2.0, 0.1) + await site.enqueue("doze", 5, 2.0, 0.1)
    await site.recorded("begin", 10)

    # Somebody takes it for dead, and it cannot know before its next heartbeat.
    slow.stop()
    await site.store.give_back(slow.born()[child]["incarnation"])
    other = site.worker("-c", "10", "-p", "1", host="another")
    [rescuer] = await other.ready()
    await site.stream.ended(ids)
    finished = await site.found(ids)
    slow.cont()

    late = {(r.id, r.token) for r in site.records("begin") if r.pid == child}
    assert len(late) == 10
    await until(
        lambda: {(e["task_id"], e["token"]) for e in slow.log("outcome fenced")} == late,
        lambda: f"the late outcomes to be refused\n{slow.tail()}",
    )
    await site.stream.until(
        lambda: {(e.task, e.token) for e in site.stream.of(ids, "fenced")} == late,
        "the refusals to be written down",
    )
    await site.eventually(
        lambda found: [w for w in found if w.pid == child and w.details["fenced"] == 10],
        "the refused outcomes to be counted",
    )
    assert await site.found(ids) == finished
    assert {r.pid for r in site.records("begin") if r.attempt == 2} == {rescuer}
    assert judged(site, ids).verdict().defects == {}


@pytest.mark.slow
async def test_a_child_that_stands_still_is_ended_and_its_tasks_finish(site: Site) -> None:
    worker = site.worker("-c", "10", "-p", "2", "--stall-timeout", "3")
    one, other = await worker.ready()
    ids = await site.enqueue("nap", 20, 2.0, 0.5)
    await site.recorded("begin", 20)

    worker.stop([one])
    at = time.time()
    stalled = await worker.logged("child stalled", pid=one)
    await until(lambda: not is_alive(one), f"{one} to be killed", 5.0)
    await site.stream.ended(ids)
    await worker.ready(but=[one])

    assert 2.0 <= moment(stalled) - at <= 8.0
    assert max(event.at for event in site.stream.of(ids, "completed")) < at + 20.0
    moved = {record.id for record in site.records("begin") if record.pid == one}
    assert len(moved) == 10
    for id in ids:
        assert site.stream.count([id], "started") == (2 if id in moved else 1)
    assert other in worker.children()
    assert judged(site, ids).verdict().defects == {}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["child", "tree"])
async def test_who_stands_still_beyond_the_lease_and_goes_on_leaves_no_task_behind(
    site: Site, what: str
) -> None:
    """Nobody ended the leases meanwhile: nobody else can have the tasks, so this worker must."""
    worker = site.worker("-c", "10", "-p", "1", "--lease", "2", "--stall-timeout", "60")
    [child] = await worker.ready()
    ids = await site.enqueue("nap", 5, 1.0) + await site.enqueue("doze", 5, 1.0)
    await site.recorded("begin", 10)

    pids = [child] if what == "child" else worker.tree()
    worker.stop(pids)
    await asyncio.sleep(3.5)
    assert site.stream.count(ids, "recovered") == 0
    worker.cont(pids)
    await site.stream.ended(ids)

    assert worker.children() == [child]
    assert {event.kind for event in site.stream.of(ids, "dead", "fenced", "cancelled")} == set()
    assert judged(site, ids).verdict().defects == {}


@pytest.mark.slow
async def test_a_child_whose_supervisor_is_killed_ends_itself(site: Site) -> None:
    worker = site.worker("-c", "5", "-p", "2")
    children = await worker.ready()
    await site.enqueue("nap", 10, 60.0)
    await site.recorded("begin", 10)

    worker.kill_supervisor()

    await until(
        lambda: not any(map(is_alive, children)),
        lambda: f"the orphans {children} to end themselves\n{worker.tail()}",
        5.0,
    )
    assert worker.tree() == []


async def test_each_child_imports_the_app_and_is_registered_and_the_supervisor_does_neither(
    site: Site,
) -> None:
    worker = site.worker("-q", "default=6,other=1", "-c", "7", "-p", "2", host="box")
    children = await worker.ready()
    await _are_registered(site, worker, children)

    worker.kill_child(children[0])
    new = await worker.ready(but=children[:1])
    await _are_registered(site, worker, new)

    importers = {record.pid for record in site.records("import")}
    assert worker.pid not in importers
    assert {*children, *new} <= importers


async def _are_registered(site: Site, worker: WorkerProcess, children: list[int]) -> None:
    for pid in children:
        record = await site.registered(pid)
        assert record.host == "box"
        assert sorted(record.queues) == ["default", "other"]
        assert record.concurrency == 7
        assert "nap" in record.tasks
        assert record.incarnation == worker.born()[pid]["incarnation"]


async def test_a_program_of_a_handler_does_not_outlive_a_worker_whose_supervisor_was_killed(
    site: Site,
) -> None:
    worker = site.worker("-c", "2", "-p", "1")
    [child] = await worker.ready()
    await site.enqueue("program")
    [program] = await site.recorded("program", 1)
    await until(lambda: len(worker.below(program.pid)) == 2, "a shell, and what it runs")
    started = worker.below(program.pid)

    worker.kill_supervisor()

    await until(lambda: not is_alive(child), f"child {child} to end", 20.0)
    # They were killed before; to be gone takes a moment on a busy machine.
    await until(lambda: not any(map(is_alive, started)), "its programs to end", 2.0)


@pytest.mark.parametrize(
    "end",
    [
        "all killed",
        pytest.param("supervisor killed", marks=pytest.mark.slow),
        pytest.param("child killed", marks=pytest.mark.slow),
        pytest.param("stopped", marks=pytest.mark.slow),
    ],
)
async def test_what_may_run_only_once_begins_only_once(site: Site, end: str) -> None:
    worker = site.worker("-c", "10", "-p", "1", "--grace", "0")
    [child] = await worker.ready()
    ids = await site.enqueue("nap", 10, 60.0, max_retries=0)
    await site.recorded("begin", 10)
    if end == "supervisor killed":
        os.kill(worker.pid, signal.SIGKILL)
    elif end == "child killed":
        worker.kill_child(child)
    elif end == "stopped":
        os.kill(worker.pid, signal.SIGTERM)
    else:
        worker.kill_tree()
    await until(lambda: not is_alive(child), "its end")
    site.worker("-c", "10", "-p", "1")
    await site.stream.ended(ids)
    assert {(r.state, r.reason) for r in await site.found(ids)} == {(State.DEAD, "exhausted")}
    assert len(site.records("begin")) == 10
