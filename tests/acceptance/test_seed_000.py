"""What the document about a fair queue with dependencies promises, section after section.

It describes queues by user with priorities, dependencies that are tracked from both sides, values
that tasks leave for each other, schedules, and what is cleaned up when. Tests whose parameter is a
broker run in memory and on a real server. The docstring of a test names the section. Where Fairlead
keeps a promise in another way, the docstring says so.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from fairlead import (
    Backoff,
    Context,
    DependencyCycle,
    Fairlead,
    Handle,
    InvalidCron,
    ResultGone,
    State,
    UnknownDependency,
)
from fairlead.broker.memory import MemoryBroker
from tests.support.servers import shared

DAY = 86_400.0


@pytest.fixture(params=["memory", "valkey"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[Fairlead]:
    """A queue in memory and on a server; what it stores is sound after each test."""
    if request.param == "memory":
        async with Fairlead("memory://") as app:
            yield app
            assert await app._clients.store.audit() == []
        return
    with shared() as running:
        async with Fairlead(running.url) as app:
            yield app
            assert await app._clients.store.audit() == []


async def served(app: Fairlead, handles: list[Handle[Any]]) -> None:
    """Let one worker with one slot run these, one after the other."""
    async with app.worker(concurrency=1):
        for handle in handles:
            await handle.aresult(timeout=30)


async def states(app: Fairlead, *ids: str) -> list[str]:
    return [str(await app.handle(id).astate()) for id in ids]


# -- Redis Key Structure ------------------------------------------------------------------------


async def test_all_keys_have_one_namespace() -> None:
    """Key structure: one prefix for all keys. Here it is ``fl1:``."""
    with shared() as running:
        async with Fairlead(running.url) as app:
            work = app.task(name="work")(lambda: None)
            first = await work.aenqueue()
            await work.using(depends_on=[first], tenant="default").aenqueue()
            await work.using(delay=60).aenqueue()
            await app.drain()
        with redis.Redis.from_url(running.url) as server:
            keys = [key.decode() for key in server.scan_iter()]
    assert keys
    assert {key.partition(":")[0] for key in keys} == {"fl1"}


async def test_users_are_served_in_turn(queue: Fairlead) -> None:
    """Core queues: a queue for each user. One with many tasks does not hold up another."""
    order: list[str] = []

    @queue.task(name="work")
    async def work(user: str) -> None:
        order.append(user)

    many = await queue.aenqueue_many(work.using(tenant="u1").call("u1") for _ in range(20))
    few = await queue.aenqueue_many(work.using(tenant="u2").call("u2") for _ in range(3))
    await served(queue, [*many, *few])
    assert order[:6] in (["u1", "u2"] * 3, ["u2", "u1"] * 3)


async def test_critical_tasks_of_a_user_go_first_in_the_order_they_came(queue: Fairlead) -> None:
    """Core queues: critical tasks are a FIFO before all others of the user."""
    order: list[str] = []

    @queue.task(name="work")
    async def work(name: str) -> None:
        order.append(name)

    calls = [work.call(f"n{n}") for n in range(5)]
    calls += [work.using(priority="critical").call(f"c{n}") for n in range(3)]
    await served(queue, await queue.aenqueue_many(calls))
    assert order == ["c0", "c1", "c2", "n0", "n1", "n2", "n3", "n4"]


async def test_tasks_are_listed_by_state_and_described_by_id(queue: Fairlead) -> None:
    """State management: a registry for each state, and the metadata of each task."""
    work = queue.task(name="work")(lambda n: n)
    queued = await work.using(priority="high").aenqueue(1)
    waits = await work.using(depends_on=[queued]).aenqueue(2)
    later = await work.using(delay=60).aenqueue(3)
    for state, handle in (("queued", queued), ("deferred", waits), ("scheduled", later)):
        (found,) = (await queue.apage(state=state, arguments=True)).tasks
        assert (found.id, found.task, found.state) == (handle.id, "work", state)
        assert found == await handle.ainfo(arguments=True)
    info = await waits.ainfo(arguments=True)
    assert (info.args, info.priority, info.waiting_for) == ((2,), "normal", (queued.id,))
    snapshot = await queue.asnapshot()
    assert (snapshot.ready, snapshot.deferred, snapshot.scheduled) == (1, 1, 1)


async def test_a_task_stands_in_the_registry_of_its_state_and_in_no_other(queue: Fairlead) -> None:
    """State management: a registry for each of all states, also of what is over."""
    began, go = asyncio.Event(), asyncio.Event()

    @queue.task(name="work", max_retries=1, backoff=Backoff(initial=300, jitter="none"))
    async def work(how: str = "") -> None:
        if how == "fails":
            raise ValueError
        if how == "waits":
            began.set()
            await go.wait()

    handles = {
        "completed": await work.aenqueue(),
        "retrying": await work.aenqueue("fails"),
        "dead": await work.using(max_retries=0).aenqueue("fails"),
    }
    await queue.drain()
    handles["running"] = await work.aenqueue("waits")
    async with queue.worker():
        await began.wait()
        await queue.aconfigure_queue("default", paused=True)
        handles["queued"] = await work.aenqueue()
        handles["deferred"] = await work.using(depends_on=[handles["queued"]]).aenqueue()
        handles["scheduled"] = await work.using(delay=60).aenqueue()
        handles["cancelled"] = await work.aenqueue()
        assert await handles["cancelled"].acancel()
        registries = {
            state: [task.id for task in (await queue.apage(state=state)).tasks] for state in State
        }
        go.set()
    assert registries == {state: [handles[state].id] for state in State}


async def test_values_for_other_tasks_have_a_time_to_live() -> None:
    """Cross-task communication: values under keys, gone after their TTL."""
    store = MemoryBroker(test_clock=True)
    app, seen = Fairlead(store=store), []

    @app.task(name="push")
    async def push(ctx: Context) -> None:
        await ctx.xcom.apush("key", {"n": 1}, ttl=60)

    @app.task(name="pull")
    async def pull(ctx: Context) -> None:
        seen.append(await ctx.xcom.apull("key"))

    await push.aenqueue()
    await app.drain()
    pushed = (await store.hello()).now
    for seconds in (0, 59, 61):
        await store.promote(now=pushed + seconds)
        await pull.aenqueue()
        await app.drain()
    assert seen == [{"n": 1}, {"n": 1}, None]


async def test_schedules_are_stored_and_bad_ones_refused(queue: Fairlead) -> None:
    """Schedules. There is no lock to be held: any worker fires a slot, and each is fired once."""
    work = queue.task(name="work")(lambda: None)
    await queue.schedules.acreate("nightly", work, "0 3 * * *", tz="Europe/Berlin")
    (found,) = await queue.schedules.alist()
    assert (found.name, found.task, found.next_at is not None) == ("nightly", "work", True)
    with pytest.raises(InvalidCron, match=r"field 1 \(minute\) has '99' at column 1"):
        await queue.schedules.acreate("never", work, "99 3 * * *")
    assert [each.name for each in await queue.schedules.alist()] == ["nightly"]


# -- Dependency management ----------------------------------------------------------------------


async def test_what_waits_is_released_step_by_step(queue: Fairlead) -> None:
    """Complex dependency example: D needs A, B and C; E needs A and B; F needs C."""
    work = queue.task(name="work")(lambda: None)
    needs = {"A": "", "B": "", "C": "", "D": "ABC", "E": "AB", "F": "C"}
    await queue.aenqueue_many(
        work.using(id=name, queue=name, depends_on=list(parents)).call()
        for name, parents in needs.items()
    )
    assert await states(queue, *"ABC") == ["queued"] * 3
    assert await states(queue, *"DEF") == ["deferred"] * 3
    waited_for = await queue._clients.store.find(["default:A", "default:B", "default:C"])
    assert [record and record.dependents for record in waited_for] == [2, 2, 2]
    left = {"A": ("BC", "B", "C"), "B": ("C", "", "C"), "C": ("", "", "")}
    for name, waiting in left.items():
        await queue.drain(queues=[name])
        for child, parents in zip("DEF", waiting, strict=True):
            info = await queue.handle(child).ainfo()
            assert info.waiting_for == tuple(f"default:{parent}" for parent in parents)
            assert info.state == ("deferred" if parents else "queued")
    assert await queue.drain() == 3


async def test_a_dependency_must_be_there_or_come_along(queue: Fairlead) -> None:
    """Enqueuing. An id that is not there is refused; in one batch the order does not matter."""
    work = queue.task(name="work")(lambda: None)
    with pytest.raises(UnknownDependency):
        await work.using(id="child", depends_on=["parent"]).aenqueue()
    assert (await queue.asnapshot()).depth == 0
    child = work.using(id="child", depends_on=["parent"]).call()
    await queue.aenqueue_many([child, work.using(id="parent").call()])
    assert await states(queue, "parent", "child") == ["queued", "deferred"]
    assert await queue.drain() == 2


async def test_dependency_data_go_when_tasks_finish() -> None:
    """Completion and cancellation cleanup: both directions go, those of many edges too.

    What is left in ``ties`` is one letter of each parent with many dependents, and goes with it.
    """
    with shared() as running:
        async with Fairlead(running.url) as app:
            work = app.task(name="work")(lambda: None)
            parents = [await work.aenqueue() for _ in range(20)]  # more than fit into one text
            for _ in range(20):
                await work.using(depends_on=parents).aenqueue()
            await (await work.using(depends_on=parents).aenqueue()).acancel()

            def kinds() -> set[str]:
                with redis.Redis.from_url(running.url) as server:
                    return {key.decode().split(":")[2] for key in server.scan_iter()}

            assert {"before", "after", "ties"} <= kinds()
            await app.drain()
            assert not {"before", "after", "jobs", "undone"} & kinds()
            assert set(running.admin("HVALS", "fl1:{0}:ties")) <= {b"d"}


async def test_a_cancelled_task_is_taken_out_on_both_sides(queue: Fairlead) -> None:
    """Cleanup on cancellation. Children lose that edge with the policy ``run``; it is said once."""
    work = queue.task(name="work", on_dependency_failure="run")(lambda: None)
    parent = await work.aenqueue()
    other = await work.aenqueue()
    child = await work.using(depends_on=[parent, other]).aenqueue()
    grandchild = await work.using(depends_on=[child]).aenqueue()
    assert await parent.acancel()
    assert (await child.ainfo()).waiting_for == (other.id,)
    assert await child.acancel()
    found = await queue._clients.store.find([parent.id, other.id])
    assert [record and record.dependents for record in found] == [0, 0]
    assert await grandchild.astate() is State.QUEUED
    assert await queue.drain() == 2


async def test_children_of_a_failed_task_stay_deferred() -> None:
    """State transition rules: dependencies of a failure stay unresolved. One word for all tasks."""
    app, works = Fairlead("memory://", max_retries=0, on_dependency_failure="wait"), False

    @app.task(name="work")
    def work() -> None:
        if not works:
            raise ValueError

    parent = await work.aenqueue()
    child = await work.using(depends_on=[parent]).aenqueue()
    await app.drain()
    assert (await parent.astate(), await child.astate()) == (State.DEAD, State.DEFERRED)
    works = True
    assert await parent.arequeue()
    assert await app.drain() == 2
    assert await child.astate() is State.COMPLETED


async def test_a_delay_is_independent_of_dependencies(queue: Fairlead) -> None:
    """States: what is due later and depends on others is deferred first, then scheduled."""
    work = queue.task(name="work")(lambda: None)
    parent = await work.aenqueue()
    child = await work.using(depends_on=[parent], delay=60).aenqueue()
    assert await child.astate() is State.DEFERRED
    await queue.drain()
    assert await child.astate() is State.SCHEDULED


async def test_data_of_failed_tasks_expire_after_a_week() -> None:
    """TTL cleanup: seven days. What still waits for a failed task ends then, and goes later."""
    store = MemoryBroker(test_clock=True)
    app = Fairlead(store=store, max_retries=0, on_dependency_failure="wait")

    @app.task(name="fail")
    def fail() -> None:
        raise ValueError

    handle = await fail.aenqueue()
    child = await fail.using(depends_on=[handle]).aenqueue()
    await app.drain()
    ended = (await handle.ainfo()).finished_at
    assert ended is not None
    await store.promote(now=ended + 7 * DAY - 60)
    assert [await handle.astate(), await child.astate()] == [State.DEAD, State.DEFERRED]
    await store.tidy(now=ended + 7 * DAY + 60)  # as a janitor does
    with pytest.raises(ResultGone):
        await handle.astate()
    info = await child.ainfo()
    assert (info.state, info.reason) == (State.DEAD, f"dependency_failed: {handle.id}")
    await store.tidy(now=ended + 14 * DAY + 120)
    with pytest.raises(ResultGone):
        await child.astate()
    assert await store.audit() == []


async def test_orphaned_dependency_data_are_found_and_cleaned_up() -> None:
    """Maintenance cleanup. Only damage from outside makes orphans; it is a command, not a loop."""
    with shared() as running:
        async with Fairlead(running.url) as app:
            work = app.task(name="work")(lambda: None)
            lost = await work.aenqueue()
            waits = await work.using(depends_on=[lost]).aenqueue()
            runs = await work.using(depends_on=[lost], on_dependency_failure="run").aenqueue()
            for key in ("tasks", "records"):
                running.admin("HDEL", f"fl1:{{0}}:{key}", lost.id)
            orphan = f"task {waits.id} waits for {lost.id}, which no longer exists"
            assert orphan in await app._clients.store.audit()
            repair = ("doctor", "--repair", "--yes", "--url", running.url)
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fairlead", *repair, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await done.communicate()
            assert "2 tasks let go that waited for one which is lost" in out.decode()
            assert done.returncode in (0, 1)  # 1: nobody works here, which is a warning
            assert await app._clients.store.audit() == []
            info = await waits.ainfo()
            assert (info.state, info.reason) == (State.DEAD, f"dependency_failed: {lost.id}")
            assert await app.drain() == 1
            assert await runs.astate() is State.COMPLETED


# -- Examples -----------------------------------------------------------------------------------


async def test_a_linear_pipeline_is_declared_with_its_tasks(queue: Fairlead) -> None:
    """Example 1: extract, transform, load, by the ids that they declare."""

    @queue.task(id="extract")
    def extract() -> dict[str, int]:
        return {"records": 1000}

    @queue.task(id="transform", depends_on=["extract"])
    def transform(ctx: Context) -> dict[str, int]:
        return {"processed": 2 * ctx.results["extract"]["records"]}

    @queue.task(id="load", depends_on=["transform"])
    def load(ctx: Context) -> dict[str, bool]:
        return {"loaded": ctx.results["transform"]["processed"] == 2000}

    handle = await load.aenqueue()
    names = ("extract", "transform", "load")
    assert await states(queue, *names) == ["queued", "deferred", "deferred"]
    await queue.drain()
    assert await handle.aresult(timeout=10) == {"loaded": True}


async def test_fan_out_and_fan_in_are_declared_with_their_tasks(queue: Fairlead) -> None:
    """Example 2: one task, two that need it, one that needs both."""
    ran: list[str] = []

    def step(name: str, *parents: str) -> Any:
        def run() -> None:
            ran.append(name)

        return queue.task(name=name, id=name, queue=name, depends_on=parents)(run)

    step("prepare")
    step("process_a", "prepare")
    step("process_b", "prepare")
    await step("combine", "process_a", "process_b").aenqueue()
    await queue.drain(queues=["prepare"])
    assert await states(queue, "process_a", "process_b", "combine") == ["queued"] * 2 + ["deferred"]
    await queue.drain(queues=["process_a"])
    assert await states(queue, "combine") == ["deferred"]
    await queue.drain()
    assert ran == ["prepare", "process_a", "process_b", "combine"]


async def test_cycles_are_refused_when_tasks_are_created(queue: Fairlead) -> None:
    """Example 3: a cycle is a validation error, also of a task with itself; nothing is written."""
    work = queue.task(name="work")(lambda: None)
    ring = [work.using(id=a, depends_on=[b]).call() for a, b in ("ab", "bc", "ca")]
    with pytest.raises(DependencyCycle):
        await queue.aenqueue_many(ring)
    with pytest.raises(DependencyCycle):
        await work.using(id="x", depends_on=["x"]).aenqueue()
    assert (await queue.asnapshot()).depth == 0


async def test_dependencies_are_counted_and_leave_nothing_behind(queue: Fairlead) -> None:
    """Monitoring points: deferred tasks, and how long it took to release them."""
    work = queue.task(name="work")(lambda: None)
    parent = await work.aenqueue()
    await queue.aenqueue_many(work.using(depends_on=[parent]).call() for _ in range(5))
    assert (await queue.asnapshot()).deferred == 5
    await queue.drain()
    stats = (await queue.astats()).queues["default"]
    assert (stats.enqueued, stats.completed, stats.deferred) == (6, 6, 0)
    assert stats.release.count == 5


# -- Core queues: six priorities ----------------------------------------------------------------

SIX = {"critical": 0, "5": 1, "4": 2, "3": 3, "2": 4, "1": 5}


@pytest.fixture(params=["memory", "valkey"])
async def six(request: pytest.FixtureRequest) -> AsyncIterator[Fairlead]:
    """A queue with the document's six priorities, the score of the higher ones lower."""
    with shared() as running:
        url = "memory://" if request.param == "memory" else running.url
        async with Fairlead(url, priorities=SIX) as app:
            yield app
            assert await app._clients.store.audit() == []


async def enqueued_six(app: Fairlead, each: int) -> tuple[list[str], list[Handle[Any]]]:
    """Tasks of all six, the lowest first, and the order in which they will have run."""
    order: list[str] = []

    @app.task(name="work")
    async def work(name: str) -> None:
        order.append(name)

    calls = [work.using(priority=p).call(f"{p}.{n}") for n in range(each) for p in reversed(SIX)]
    return order, await app.aenqueue_many(calls)


async def test_six_priorities_run_in_the_order_of_their_scores(six: Fairlead) -> None:
    """Core queues: CRITICAL first, then 5 to 1 by score, in the order they came within each."""
    six.declare_queue("default", strict_priorities=True)
    order, handles = await enqueued_six(six, 4)
    await served(six, handles)
    assert order == [f"{p}.{n}" for p in SIX for n in range(4)]
    assert [(await handle.ainfo()).priority for handle in handles[:6]] == list(reversed(SIX))


async def test_none_of_six_priorities_starves(six: Fairlead) -> None:
    """Where the queue is not strict, each of the lower ones has one of eight dispatches."""
    order, handles = await enqueued_six(six, 16)
    await served(six, handles)
    assert [name[0] for name in order[:16]] == ["c"] * 16
    assert "".join(name[0] for name in order[16:32]) == "52545153" * 2
