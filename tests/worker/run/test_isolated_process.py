"""Handlers in slot processes of their own: real processes, real ends of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead, Handle, Task, TaskFailed
from fairlead.app import Fairlead as App
from fairlead.broker.requests import Call, Fetch
from fairlead.model.lifecycle import State
from tests.support.servers import server
from tests.support.worker_process import is_alive
from tests.worker.harness import until

APP = """
import asyncio, ctypes, mmap, os, signal, subprocess, sys, time
from fairlead import Context, Fairlead

app = Fairlead(os.environ["FAIRLEAD_TEST_URL"])
alone = dict(isolation="process", max_retries=0)


@app.task(**alone)
def where() -> int:
    return os.getpid()


@app.task(**alone)
async def where_async(ctx: Context) -> list[int | str]:
    await asyncio.sleep(0.01)
    return [os.getpid(), ctx.id]


@app.task(**alone)
def segfault() -> None:
    ctypes.string_at(0)


@app.task(**alone)
def leave(code: int) -> None:
    os._exit(code)


@app.task(**alone, max_memory="32MB")
def eat(megabytes: int) -> int:
    kept = []
    for _ in range(megabytes):
        kept.append(bytearray(b"x") * 1_000_000)
        time.sleep(0.002)
    return sum(map(len, kept))


@app.task(**alone, max_memory="32MB")
def reserve(megabytes: int) -> int:
    # Address space is not memory: threads, arenas and mapped files take plenty of it.
    with mmap.mmap(-1, megabytes * 1_000_000) as reserved:
        time.sleep(0.2)
        return len(reserved)


@app.task(**alone, timeout=0.3)
def spin() -> None:
    while True:
        pass


@app.task(**alone, timeout=0.5)
def with_a_child(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with open(path, "w") as file:
        file.write(str(child.pid))
    child.wait()


@app.task(**alone)
def dies_with_a_child(path: str) -> None:
    # The child has the socket to the worker, so its end says nothing.
    if (child := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    with open(path, "w") as file:
        file.write(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(**alone, timeout=0.3)
async def patient() -> None:
    await asyncio.sleep(60)


@app.task(**alone)
def writes(ctx: Context, key: str) -> str:
    ctx.progress(0.5)
    ctx.xcom.push(key, {"n": 1})
    child = ctx.enqueue(where.call())
    return child.id


@app.task(**alone)
def sleeps(seconds: float) -> None:
    time.sleep(seconds)


@app.task(**alone)
def fails() -> None:
    raise LookupError("nothing there")


@app.task(isolation="process", max_retries=1, give_up_on=(LookupError,))
def gives_up() -> None:
    raise LookupError("never")


@app.task(**alone)
def reads(ctx: Context, value: int) -> list[int]:
    return [os.getpid(), value, *ctx.results.values()]


@app.task(max_retries=0)
async def beside() -> int:
    return os.getpid()
"""


DIED = "exhausted: ProcessDied: the process of the attempt"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("valkey") as running:
        yield running.url


@pytest.fixture
async def app(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    name = f"slot_app_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_TEST_URL", url)
    module = __import__(name)
    found: Fairlead = module.app
    found.module = module  # type: ignore[attr-defined]
    async with found.worker(concurrency=4):
        yield found
    await found._clients.store.close()
    del sys.modules[name]


def task(app: App, name: str):  # type: ignore[no-untyped-def]  # whatever the module has
    return getattr(app.module, name)  # type: ignore[attr-defined]


async def state(handle: Handle[object], wanted: State) -> bool:
    return await handle.astate() is wanted


async def outcome(app: App, name: str, *args: object) -> str:
    """How a task that fails is dead."""
    handle = await task(app, name).aenqueue(*args)
    with pytest.raises(TaskFailed) as caught:
        await handle.aresult(timeout=20)
    return f"{caught.value.reason}: {caught.value.error}"


async def test_a_slot_process_is_another_one_and_is_used_again(app: App) -> None:
    first = await (await task(app, "where").aenqueue()).aresult(timeout=20)
    second = await (await task(app, "where").aenqueue()).aresult(timeout=20)
    assert first == second != os.getpid()


async def test_an_async_handler_runs_there_too(app: App) -> None:
    handle = await task(app, "where_async").aenqueue()
    pid, id = await handle.aresult(timeout=20)
    assert pid != os.getpid()
    assert id == handle.id


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("segfault", (), "exhausted: ProcessDied: the process of the attempt was ended by SIGSEGV"),
        (
            "leave",
            (3,),
            "exhausted: ProcessDied: the process of the attempt ended with exit code 3",
        ),
        pytest.param(
            "leave",
            (0,),
            "exhausted: ProcessDied: the process of the attempt ended with exit code 0",
            marks=pytest.mark.slow,
        ),
        ("eat", (2000,), "exhausted: MemoryError: the attempt took more than 33,554,432 bytes"),
        pytest.param(
            "spin",
            (),
            "exhausted: TimeoutError: the attempt took longer than 0.3 s",
            marks=pytest.mark.slow,
        ),
        ("patient", (), "exhausted: TimeoutError: the attempt took longer than 0.3 s"),
        ("fails", (), "exhausted: LookupError: nothing there"),
        ("gives_up", (), "rejected: LookupError: never"),
    ],
)
async def test_how_an_attempt_ends_is_on_its_task_and_nobody_else_notices(
    app: App, name: str, args: tuple[object, ...], expected: str
) -> None:
    others = [await task(app, "beside").aenqueue() for _ in range(3)]
    assert (await outcome(app, name, *args)).startswith(expected)
    for other in others:
        await other.aresult(timeout=10)
        assert (await other.ainfo()).attempts == 1


async def test_what_fits_under_the_cap_is_allowed(app: App) -> None:
    assert await (await task(app, "eat").aenqueue(5)).aresult(timeout=20) == 5_000_000
    size = 1_000_000_000
    assert await (await task(app, "reserve").aenqueue(1000)).aresult(timeout=20) == size


async def test_what_the_handler_started_ends_with_it(app: App, tmp_path: Path) -> None:
    path = tmp_path / "child"
    assert (await outcome(app, "with_a_child", str(path))).startswith("exhausted: TimeoutError")
    stat = Path(f"/proc/{path.read_text()}/stat")
    await until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX")


async def test_what_the_handler_started_ends_with_a_slot_process_that_died(
    app: App, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    assert await outcome(app, "dies_with_a_child", str(file)) == f"{DIED} was ended by SIGKILL"
    pid = int(file.read_text())
    try:
        await until(lambda: not is_alive(pid), 5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_a_slot_writes_and_enqueues_under_the_lease_of_its_worker(app: App) -> None:
    handle = await task(app, "writes").aenqueue("k")
    child = await handle.aresult(timeout=20)
    assert (await app.handle(child).astate()) is not None
    assert await app._clients.store.pull("default", ["k"]) != [None]


async def test_a_running_slot_can_be_cancelled(app: App) -> None:
    handle = await task(app, "sleeps").aenqueue(60)
    await until(lambda: state(handle, State.RUNNING), 20)
    await asyncio.sleep(0.5)  # so that the handler is inside: it has no way to tell
    await handle.acancel()
    await until(lambda: state(handle, State.CANCELLED))


async def test_results_of_dependencies_are_read_there(app: App) -> None:
    first = await task(app, "beside").aenqueue()
    pid = await first.aresult(timeout=20)
    handle = await task(app, "reads").aenqueue(first.output)
    there, value, *found = await handle.aresult(timeout=20)
    assert there != pid == value
    assert found == [pid]


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_crashed_runs_where_no_process_can_find_the_app(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    local = Fairlead("memory://")  # in no module, as one in __main__

    def plain() -> int:
        return os.getpid()

    async def awaited() -> int:
        return os.getpid()

    work: Task[[], int] = local.task(name="work", max_retries=1)(awaited if is_async else plain)
    isolated = local.task(name="isolated", isolation="process", max_retries=0)(plain)
    handles = [await work.aenqueue() for _ in range(2)]
    store, ids = local._clients.store, [handle.id for handle in handles]
    await store.exchange(Call("gone", 1), fetch=Fetch(queues=("default",), max=2))
    await store.give_back("gone", ids, blocked=ids)  # they have to run alone

    async with local.worker():
        assert [await handle.aresult(timeout=10) for handle in handles] == [os.getpid()] * 2
        with pytest.raises(TaskFailed, match="other processes cannot find this app"):
            await (await isolated.aenqueue()).aresult(timeout=10)
    said = [text for text in caplog.messages if "run beside others here, not alone" in text]
    assert len(said) == 1
