"""The broker goes away and comes back: what is promised to each call meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead import (
    BrokerError,
    Conflict,
    Context,
    Fairlead,
    FairleadError,
    Handle,
    QueueFull,
    SpoolFull,
    TaskFailed,
    TaskRefused,
)
from fairlead.api.settings import ApiSettings
from tests.acceptance.outage_harness import DURABLE, spool_command
from tests.api.app import Api, problem
from tests.support.servers import Running, server
from tests.support.worker_process import until

SOON = 0.3  # seconds for a call that waits for nobody, on a busy machine
BACK = 15.0  # seconds from the return of the server until the spool is empty


class Program:
    """An app with a spool, and a list of what ran in it."""

    def __init__(self, url: str, spool: Path, **options: Any) -> None:
        self.app = Fairlead(url, fallback="spool", spool=spool, **options)
        self.began: list[tuple[str, float]] = []
        self.ended: list[tuple[str, float]] = []

        @self.app.task(name="work")
        async def work(ctx: Context, label: str, seconds: float = 0.0) -> str:
            self.began.append((label, time.time()))
            await asyncio.sleep(seconds)
            self.ended.append((label, time.time()))
            return label

        self.work = work

    @property
    def order(self) -> list[str]:
        return [label for label, _ in self.began]

    def when(self, label: str) -> float:
        """When this one began, which it did once."""
        [at] = [at for name, at in self.began if name == label]
        return at

    @contextlib.asynccontextmanager
    async def working(self, concurrency: int = 10) -> AsyncIterator[None]:
        async with self.app.worker(concurrency=concurrency, grace=5.0):
            yield


@pytest.fixture
def running() -> Iterator[Running]:
    with server(aof=True, config=DURABLE) as made:
        yield made


@pytest.fixture
async def program(running: Running, tmp_path: Path) -> AsyncIterator[Program]:
    made = Program(running.url, tmp_path / "spool")
    await made.app.asnapshot()  # so that no first call of a busy machine takes too long
    yield made
    await made.app.aclose()


async def sent(handles: Sequence[Handle[Any]], seconds: float = BACK) -> None:
    """Wait until none of these is in the spool any more."""
    deadline = time.monotonic() + seconds
    for handle in handles:
        while await handle.astate() == "spooled":
            assert time.monotonic() < deadline, f"{handle.id} is spooled after {seconds:g} s"
            await asyncio.sleep(0.02)


async def rejected(folder: Path, url: str) -> str:
    code, said = await spool_command(folder, url, "list", "--rejected", "--json")
    assert code == 0
    json.loads(said)  # it is JSON
    return said


# -- one task -------------------------------------------------------------------------------------


async def test_a_program_that_starts_without_its_broker_enqueues_and_has_its_results_later(
    running: Running, tmp_path: Path
) -> None:
    running.kill()
    program = Program(running.url, tmp_path / "spool")
    began = time.monotonic()
    handle = await program.work.aenqueue("early")
    assert time.monotonic() - began < 3.0
    assert handle.durability == "spooled"
    assert await handle.astate() == "spooled"
    in_thread = await asyncio.to_thread(program.work.enqueue, "sync")
    assert in_thread.durability == "spooled"
    assert await asyncio.to_thread(lambda: in_thread.state) == "spooled"

    waiting = asyncio.create_task(handle.aresult(timeout=30.0))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await asyncio.to_thread(running.start)
    async with program.working():
        assert await waiting == "early"
        assert await asyncio.to_thread(in_thread.result, 10.0) == "sync"
        await sent([handle, in_thread])
        after = await program.work.aenqueue("late")
        assert after.durability == "committed"
        assert await after.aresult(timeout=10.0) == "late"
    assert sorted(program.order) == ["early", "late", "sync"]
    assert await handle.astate() == "completed"
    await program.app.aclose()


async def test_before_the_first_outage_nothing_is_on_disk(
    running: Running, program: Program, tmp_path: Path
) -> None:
    handle = await program.work.aenqueue("one")
    assert handle.durability == "committed"
    spool = tmp_path / "spool"
    assert not spool.exists() or not [path for path in spool.rglob("*") if path.stat().st_size]


async def test_a_call_that_wants_the_broker_itself_raises_while_it_is_away(
    running: Running, program: Program
) -> None:
    await program.work.aenqueue("before")
    running.kill()
    spooled = await program.work.aenqueue("spooled")  # it is known now that the broker is away
    began = time.monotonic()
    with pytest.raises(BrokerError) as raised:
        await program.work.using(durability="committed").aenqueue("no")
    assert time.monotonic() - began < SOON  # nobody waits for a broker that is known to be away
    assert raised.value.ids
    await asyncio.to_thread(running.start)
    await sent([spooled])
    strict = await program.work.using(durability="committed").aenqueue("yes")
    assert strict.durability == "committed"
    assert await program.app.drain() == 3
    assert sorted(program.order) == ["before", "spooled", "yes"]


async def test_nobody_waits_for_a_server_that_is_silent_but_the_first(
    running: Running, program: Program, tmp_path: Path
) -> None:
    await program.work.aenqueue("before")
    running.pause()
    try:
        began = time.monotonic()
        first = await program.work.aenqueue("first")
        assert 0.0 < time.monotonic() - began < 2.0  # a second of silence, and a busy machine
        assert first.durability == "spooled"
        took, handles = [], [first]
        for number in range(20):
            began = time.monotonic()
            handles.append(await program.work.aenqueue(f"{number}"))
            took.append(time.monotonic() - began)
        assert {handle.durability for handle in handles} == {"spooled"}
        assert sorted(took)[10] < 0.05
        assert max(took) < SOON
    finally:
        running.resume()
    await sent(handles)
    assert await program.app.drain() == 22  # the first, too, ran once: whatever the server did
    assert len(set(program.order)) == 22
    for file in list((tmp_path / "spool").rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # it was drained
            assert file.stat().st_mode & 0o077 == 0, file


@pytest.mark.parametrize(
    "setting", ["maxmemory", pytest.param("min-replicas-to-write", marks=pytest.mark.slow)]
)
async def test_what_a_server_in_trouble_does_not_take_is_spooled(
    running: Running, program: Program, setting: str
) -> None:
    await program.work.aenqueue("before")
    bad, good = {"maxmemory": ("1mb", "0"), "min-replicas-to-write": ("1", "0")}[setting]
    running.admin("CONFIG", "SET", setting, bad)
    began = time.monotonic()
    handle = await program.work.aenqueue("meanwhile")
    assert time.monotonic() - began < 3.0
    assert handle.durability == "spooled"
    running.admin("CONFIG", "SET", setting, good)
    await sent([handle])
    assert await program.app.drain() == 2
    assert program.order == ["before", "meanwhile"]


async def test_no_call_waits_for_a_broker_that_is_known_to_be_away(
    running: Running, program: Program
) -> None:
    before = await program.work.using(delay=60.0).aenqueue("before")
    running.kill()
    spooled = await program.work.aenqueue("spooled")
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "state": before.astate,
        "info": before.ainfo,
        "cancel": before.acancel,
        "stats": program.app.astats,
        "configure": lambda: program.app.aconfigure_tenant("a", weight=2),
        "flow": lambda: program.app.aenqueue_flow(program.work.call("a") >> program.work.call("b")),
        "explain a spooled one": spooled.aexplain,
        "cancel a spooled one": spooled.acancel,
    }
    took: dict[str, float] = {}

    async def call(name: str) -> None:
        began = time.monotonic()
        with pytest.raises(FairleadError):
            await calls[name]()
        took[name] = time.monotonic() - began

    await asyncio.gather(*map(call, calls))
    assert {name: seconds for name, seconds in took.items() if seconds > 1.0} == {}


async def test_what_the_broker_refuses_is_not_spooled(running: Running, program: Program) -> None:
    await program.app.aconfigure_queue("default", max_waiting=1)
    await program.work.using(id="x").aenqueue("one")
    with pytest.raises(QueueFull):
        await program.work.aenqueue("two")
    with pytest.raises(Conflict):
        await program.work.using(id="x").aenqueue("other")
    assert await program.app.drain() == 1


# -- what a call said counts from the call --------------------------------------------------------


async def test_an_outage_changes_neither_delays_nor_deadlines_nor_the_order(
    running: Running, program: Program
) -> None:
    running.kill()
    work, at = program.work, time.time()
    later = await work.using(delay=1.5).aenqueue("later")
    due = await work.using(delay=0.2).aenqueue("due")
    expired = await work.using(deadline=0.3).aenqueue("expired")
    in_time = await work.using(deadline=60.0).aenqueue("in time")
    plain = []
    for number in range(30):
        for tenant in ("a", "b"):
            for priority in ("high", "low"):
                given = work.using(tenant=tenant, priority=priority)
                plain.append(await given.aenqueue(f"{tenant} {priority} {number:02}"))
    await asyncio.sleep(max(0.0, at + 0.5 - time.time()))
    await asyncio.to_thread(running.start)
    await sent([later, due, expired, in_time, *plain])
    async with program.working(concurrency=1):
        assert await later.aresult(timeout=20.0) == "later"
        assert await due.aresult(timeout=20.0) == "due"
        assert await in_time.aresult(timeout=20.0) == "in time"
        for handle in plain:
            await handle.aresult(timeout=20.0)
        with pytest.raises(TaskFailed) as failed:
            await expired.aresult(timeout=5.0)
    assert failed.value.reason == "expired"
    assert at + 1.4 <= program.when("later") <= at + 1.4 + BACK
    assert "expired" not in program.order
    for tenant in ("a", "b"):
        for priority in ("high", "low"):
            name = f"{tenant} {priority} "
            ran = [label for label in program.order if label.startswith(name)]
            assert ran == [f"{name}{number:02}" for number in range(30)]


# -- what only the broker can decide --------------------------------------------------------------


async def test_a_unique_key_is_settled_when_the_broker_is_back_and_the_holder_stands_for_the_other(
    running: Running, program: Program
) -> None:
    held = await program.work.using(unique="held").aenqueue("holder")
    running.kill()
    behind = await program.work.using(unique="held").aenqueue("behind the holder")
    first = await program.work.using(unique="new").aenqueue("first")
    second = await program.work.using(unique="new").aenqueue("second")
    same = await program.work.using(id="taken").aenqueue("same")
    again = await program.work.using(id="taken").aenqueue("same")
    assert {h.durability for h in (behind, first, second, same, again)} == {"spooled"}
    await asyncio.to_thread(running.start)
    await sent([behind, first, second, same, again])
    async with program.working():
        assert await first.aresult(timeout=10.0) == "first"
        assert await held.aresult(timeout=10.0) == "holder"
        assert await same.aresult(timeout=10.0) == "same"
        assert await again.aresult(timeout=10.0) == "same"
        # As with a broker that is there, the holder of the key stands for the other one.
        assert await second.aresult(timeout=10.0) == "first"
        assert await behind.aresult(timeout=10.0) == "holder"
    assert sorted(program.order) == ["first", "holder", "same"]
    print(await second.astate(), await behind.astate(), second.duplicate)


async def test_an_intent_that_the_broker_refuses_leaves_a_record_that_can_be_seen(
    running: Running, program: Program, tmp_path: Path
) -> None:
    await program.work.using(id="taken").aenqueue("original")
    running.kill()
    conflict = await program.work.using(id="taken").aenqueue("another")
    orphan = await program.work.using(id="orphan", depends_on=["nobody"]).aenqueue("orphan")
    fine = await program.work.aenqueue("fine")
    assert {h.durability for h in (conflict, orphan, fine)} == {"spooled"}
    await asyncio.to_thread(running.start)
    await sent([fine, orphan])
    async with program.working():
        assert await fine.aresult(timeout=10.0) == "fine"
        with pytest.raises(FairleadError):
            await orphan.aresult(timeout=10.0)
    assert "another" not in program.order
    assert "orphan" not in program.order
    said = await rejected(tmp_path / "spool", running.url)
    assert conflict.id in said
    assert orphan.id in said
    assert fine.id not in said


async def test_a_task_never_runs_before_the_spooled_one_that_it_depends_on(
    running: Running, program: Program
) -> None:
    running.kill()
    backlog = await program.app.aenqueue_many([program.work.call(f"b{n}") for n in range(500)])
    parent = await program.work.aenqueue("parent", 0.3)
    child = await program.work.using(depends_on=[parent]).aenqueue("child")
    grandchild = await program.work.using(depends_on=[child]).aenqueue("grandchild")
    late: list[Handle[str]] = []
    await asyncio.to_thread(running.start)
    async with program.working():
        # As soon as the broker takes tasks again, while the parent may still be in the spool.
        deadline = time.monotonic() + BACK
        while not late or late[-1].durability == "spooled":
            assert time.monotonic() < deadline
            given = program.work.using(depends_on=[parent])
            late.append(await given.aenqueue(f"late {len(late)}"))
            await asyncio.sleep(0.01)
        results = [await h.aresult(timeout=20.0) for h in (child, grandchild, *late)]
        await backlog[-1].aresult(timeout=20.0)
    assert results[:2] == ["child", "grandchild"]
    done = dict(program.ended)
    for label in ("child", *(f"late {n}" for n in range(len(late)))):
        assert program.when(label) >= done["parent"], label
    assert program.when("grandchild") >= done["child"]


async def test_tasks_that_find_their_queue_full_when_the_broker_is_back_wait_for_room(
    running: Running, program: Program
) -> None:
    """And hold up nobody: those of other queues and tenants go past them."""
    await program.app.aconfigure_queue("full", max_waiting=5)
    running.kill()
    full = [await program.work.using(queue="full").aenqueue(f"full {n}") for n in range(12)]
    free = [await program.work.using(tenant="free").aenqueue(f"free {n}") for n in range(12)]
    await asyncio.to_thread(running.start)
    await sent(free)
    assert {await handle.astate() for handle in free} == {"queued"}
    assert [await handle.astate() for handle in full] == ["queued"] * 5 + ["spooled"] * 7
    async with program.app.worker(queues=["full", "default"]):
        assert [await h.aresult(timeout=30.0) for h in full] == [f"full {n}" for n in range(12)]
    assert len(program.order) == 24


# -- bounds, and what others see ------------------------------------------------------------------


async def test_a_full_spool_refuses_what_is_new_and_keeps_what_it_has(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_SPOOL_MAX_COUNT", "10")
    program = Program(running.url, tmp_path / "spool")
    running.kill()
    handles = [await program.work.aenqueue(f"{n}") for n in range(10)]
    with pytest.raises(SpoolFull):
        await program.app.aenqueue_many([program.work.call(f"many {n}") for n in range(5)])
    with pytest.raises(SpoolFull) as full:
        await program.work.aenqueue("too much")
    assert (full.value.cause, full.value.limit, full.value.setting) == (
        "spool_full",
        10,
        "max_count",
    )
    assert [await h.astate() for h in handles] == ["spooled"] * 10
    await asyncio.to_thread(running.start)
    await sent(handles)
    assert await program.app.drain() == 10
    assert program.order == [f"{n}" for n in range(10)]
    # What was sent makes room for the next outage.
    running.kill()
    again = [await program.work.aenqueue(f"again {n}") for n in range(10)]
    assert {h.durability for h in again} == {"spooled"}
    await program.app.aclose()


async def test_who_waits_for_a_task_that_became_too_old_in_the_spool_is_told(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_SPOOL_MAX_AGE", "200ms")
    program = Program(running.url, tmp_path / "spool")
    running.kill()
    handle = await program.work.aenqueue("old")
    waiting = asyncio.create_task(handle.aresult(timeout=10.0))
    await asyncio.sleep(0.4)
    await asyncio.to_thread(running.start)
    with pytest.raises(TaskRefused):
        await waiting
    assert handle.id in await rejected(tmp_path / "spool", running.url)
    assert await program.app.drain() == 0
    await program.app.aclose()


async def test_callers_over_http_are_told_how_durable_a_task_is_and_when_the_spool_is_full(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_SPOOL_MAX_COUNT", "3")
    program = Program(running.url, tmp_path / "spool")
    await program.app.asnapshot()
    api = Api(program.app, patience=ApiSettings().patience)
    submission = {"task": "work", "args": ["http"]}
    async with api.caller(base_url="http://localhost/api/v1") as client:
        answer = await client.post("/tasks", json=submission)
        assert (answer.status_code, answer.json()["durability"]) == (201, "committed")
        healthy = (await client.get("/health")).json()
        print(healthy)
        assert healthy["status"] != "degraded"
        running.kill()
        ids, states = [], []
        for _ in range(3):
            answer = await client.post("/tasks", json=submission)
            assert answer.status_code == 202, answer.text
            body = answer.json()
            assert body["durability"] == "spooled"
            ids.append(body["id"])
            states.append(body["state"])
        assert len(set(ids)) == 3
        problem(await client.post("/tasks", json=submission), 429, "spool-full")
        strict = await client.post("/tasks", json={**submission, "durability": "committed"})
        assert strict.status_code == 503
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        await asyncio.to_thread(running.start)
        deadline = time.monotonic() + BACK
        while (answer := await client.post("/tasks", json=submission)).status_code != 201:
            assert answer.status_code in (202, 429), answer.text
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        async with program.working():
            for id in ids:
                while (
                    result := await client.get(f"/tasks/{id}/result?wait=10")
                ).status_code == 503:
                    assert time.monotonic() < deadline, result.text
                    await asyncio.sleep(0.05)
                assert (result.status_code, result.json()["state"]) == (200, "completed")
        while (await client.get("/health")).json()["status"] == "degraded":
            assert time.monotonic() < deadline + 10.0
            await asyncio.sleep(0.05)
    await api.server.service.close()
    await program.app.aclose()
    assert states == [None] * 3  # `durability` says where it is; the broker knows no state of it


async def test_what_a_program_left_behind_is_drained_by_the_command_line(
    running: Running, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    gone = Program(running.url, spool)
    running.kill()
    handles = [await gone.work.aenqueue(f"{n}") for n in range(20)]
    began = time.monotonic()
    await gone.app.aclose()
    assert time.monotonic() - began < 7.0  # a broker that is away holds nobody up
    code, said = await spool_command(spool, running.url, "list", "--json")
    assert code == 0
    assert all(handle.id in said for handle in handles) or '"depth": 20' in said
    code, _ = await spool_command(spool, running.url, "drain")
    assert code != 0  # the broker is away
    await asyncio.to_thread(running.start)
    code, _ = await spool_command(spool, running.url, "drain")
    assert code == 0
    other = Program(running.url, tmp_path / "other")
    assert await other.app.drain() == 20
    assert other.order == [f"{n}" for n in range(20)]
    await other.app.aclose()


@pytest.mark.slow
async def test_the_next_app_on_the_same_directory_sends_what_the_last_one_left(
    running: Running, tmp_path: Path
) -> None:
    gone = Program(running.url, tmp_path / "spool")
    running.kill()
    for number in range(20):
        await gone.work.aenqueue(f"{number}")
    await gone.app.aclose()
    await asyncio.to_thread(running.start)
    following = Program(running.url, tmp_path / "spool")
    async with following.working():
        handle = await following.work.aenqueue("mine")
        assert await handle.aresult(timeout=10.0) == "mine"
        await until(lambda: len(following.order) == 21, "what was left behind to run", BACK)
    assert len(set(following.order)) == 21
    await following.app.aclose()
