"""Programs that run their tasks themselves while a real server is stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import Context, Fairlead, Retry, TaskFailed
from fairlead.fallback.fallback import Fallback
from fairlead.model.errors import InvalidOption
from tests.fallback.test_servers import BACK, until
from tests.support.servers import Running, server


@pytest.fixture
def running() -> Iterator[Running]:
    with server(aof=True, config={"appendfsync": "always"}) as made:
        yield made


@asynccontextmanager
async def opened(url: str, folder: Path, **options: Any) -> AsyncIterator[Fairlead]:
    """An app that runs tasks of the queue ``mail`` itself."""
    settings = {"local_queues": ["mail"]} | options
    async with Fairlead(url, fallback="local", spool=folder, **settings) as app:
        fallback = fallback_of(app)
        fallback.options = msgspec.structs.replace(fallback.options, silence=10.0)  # a busy machine
        yield app


def fallback_of(app: Fairlead) -> Fallback:
    fallback = app._clients.fallback
    assert fallback is not None
    return fallback


async def until_back(app: Fairlead) -> None:
    fallback = fallback_of(app)
    await until(lambda: fallback.state == "healthy" and not fallback.spool.depth)


async def test_tasks_run_here_while_the_server_is_away_and_only_their_ends_are_sent(
    running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(running.url, tmp_path / "spool") as app:
        ran: list[tuple[int, str]] = []

        @app.task(queue="mail")
        def send(number: int) -> int:
            ran.append((number, threading.current_thread().name))
            return number * 10

        @app.task(queue="mail")
        async def asend(ctx: Context, number: int) -> str:
            ran.append((number, ctx.queue))
            await ctx.aprogress(0.5)
            return f"sent {number}"

        @app.task(queue="other")
        def work(number: int) -> None:
            ran.append((number, "a worker"))

        running.stop()
        first = [await send.aenqueue(number) for number in range(5)]
        second = await asend.aenqueue(5)
        left = await work.aenqueue(6)
        assert {each.durability for each in (*first, second, left)} == {"spooled"}
        assert [await each.aresult(timeout=BACK) for each in first] == [0, 10, 20, 30, 40]
        assert await second.aresult(timeout=BACK) == "sent 5"
        assert await first[0].astate() == "completed"
        assert await asyncio.to_thread(first[1].result, 0) == 10
        assert await left.astate() == "spooled"
        assert sorted(number for number, _ in ran) == list(range(6))
        assert all(name != "MainThread" for _, name in ran)

        running.start()
        await until_back(app)
        found = [await each.ainfo() for each in (*first, second)]
        assert {(each.state, each.reason, each.attempts) for each in found} == {
            ("completed", "local", 1)
        }
        assert await first[3].aresult(timeout=0) == 30, "from the broker"
        page = await app._clients.store.events()
        kinds = [each.kind for each in page.events if each.task == first[0].id]
        assert kinds == ["enqueued", "completed"], "nobody had it on loan"
        async with app.worker():
            await left.aresult(timeout=BACK)
        assert len(ran) == 7
        assert fallback_of(app).local.ran == 6
    said = [each.message for each in caplog.records if "in this process" in each.message]
    assert said == [
        "tasks of these queues run in this process now: mail",
        "no more tasks run in this process: 6 ended here, 0 are left to the broker",
    ]


async def test_attempts_have_what_they_have_in_a_worker_but_for_the_broker(
    running: Running, tmp_path: Path
) -> None:
    async with opened(running.url, tmp_path / "spool") as app:
        seen: list[str] = []

        @app.on_startup
        async def pool() -> AsyncIterator[str]:
            seen.append("opened")
            yield "a pool"
            seen.append("closed")

        @app.around_run
        async def around(ctx: Context) -> AsyncIterator[None]:
            seen.append(f"around {ctx.task}")
            yield

        @app.task(queue="mail", name="uses")
        async def uses(ctx: Context) -> str:
            return str(ctx.resources["pool"])

        @app.task(queue="mail", name="hangs", timeout=0.2, max_retries=0)
        async def hangs() -> None:
            await asyncio.sleep(60)

        @app.task(queue="mail", name="child")
        def child() -> str:
            return "child"

        @app.task(queue="mail", name="parent")
        def parent(ctx: Context) -> str:
            if not fallback_of(app).outages.away():
                return ctx.enqueue(child.call()).id
            ctx.progress(1)
            ctx.enqueue(child.call())
            return "not reached"

        @app.task(queue="mail", name="pulls")
        async def pulls(ctx: Context) -> Any:
            return await ctx.xcom.apull("key", "from the broker")

        @app.task(queue="mail", name="fails", max_retries=3)
        def fails(ctx: Context) -> str:
            if fallback_of(app).outages.away():
                raise Retry(0)
            return f"attempt {ctx.attempt}"

        running.stop()
        used, hung = await uses.aenqueue(), await hangs.aenqueue()
        again = [await each.aenqueue() for each in (parent, pulls, fails)]
        assert await used.aresult(timeout=BACK) == "a pool"
        with pytest.raises(TaskFailed, match=r"took longer than 0\.2 s"):
            await hung.aresult(timeout=BACK)
        assert {await each.astate() for each in again} == {"spooled"}
        local = fallback_of(app).local
        await until(lambda: local._left == 3)
        assert [each.task for each in app.exceptions] == ["hangs"]

        running.start()
        await until_back(app)
        assert "closed" in seen, "the resources are closed when nothing runs here any more"
        assert await hung.astate() == "dead"
        async with app.worker():
            results = [await each.aresult(timeout=BACK) for each in again]
        assert results[1:] == ["from the broker", "attempt 1"]
        assert seen.count("around hangs") == 1


async def test_what_runs_when_the_server_is_back_is_finished_and_never_lent(
    running: Running, tmp_path: Path
) -> None:
    async with opened(running.url, tmp_path / "spool") as app:
        begun, go_on = threading.Event(), threading.Event()
        ran: list[int] = []

        @app.task(queue="mail")
        def slow(number: int) -> int:
            ran.append(number)
            begun.set()
            go_on.wait(BACK)
            return number

        running.stop()
        handle = await slow.aenqueue(1)
        await until(begun.is_set)
        running.start()
        await until(lambda: fallback_of(app).state == "draining")
        async with app.worker():
            second = await slow.aenqueue(2)
            await until(lambda: ran == [1, 2])
            go_on.set()
            assert await second.aresult(timeout=BACK) == 2
            await until_back(app)
            assert await handle.aresult(timeout=BACK) == 1
        assert ran == [1, 2]
        assert (await handle.ainfo()).reason == "local"


async def test_a_handler_that_runs_when_the_program_ends_is_handed_back(
    running: Running, tmp_path: Path
) -> None:
    running.stop()
    async with opened(running.url, tmp_path / "spool") as app:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        @app.task(queue="mail", name="long")
        async def long() -> None:
            loop.call_soon_threadsafe(begun.set)
            await asyncio.sleep(60)

        await long.aenqueue()
        async with asyncio.timeout(BACK):
            await begun.wait()
        began = time.monotonic()
    assert time.monotonic() - began < 8.0
    running.start()
    async with opened(running.url, tmp_path / "spool") as app:

        @app.task(queue="mail", name="long")
        async def short() -> str:
            return "done"

        await short.aenqueue()
        await until(lambda: fallback_of(app).spool.stats().adopted == 1)
        await until_back(app)
        assert (await app.asnapshot()).ready == 2


async def test_resources_that_cannot_be_opened_leave_tasks_to_the_broker(
    running: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(running.url, tmp_path / "spool", local_queues=["mail", "more"]) as app:
        fine = False

        @app.on_startup
        async def pool() -> str:
            if not fine:
                raise RuntimeError("no database")
            return "a pool"

        @app.task(queue="mail")
        def send(number: int) -> int:
            return number

        running.stop()
        handles = [await send.aenqueue(number) for number in range(10)]
        local = fallback_of(app).local
        await until(lambda: local._left > 0)
        assert {await each.astate() for each in handles} == {"spooled"}
        running.start()
        await until_back(app)
        fine = True
        async with app.worker():
            assert [await each.aresult(timeout=BACK) for each in handles] == list(range(10))
    said = [each for each in caplog.records if each.message == "tasks cannot run in this process"]
    assert len(said) == 1, "once in an outage"


def test_the_queues_have_to_be_named() -> None:
    with pytest.raises(InvalidOption, match=r"at least one queue with fallback=\"local\""):
        Fairlead("memory://", fallback="local")
    with pytest.raises(InvalidOption, match="local_queues"):
        Fairlead("memory://", fallback="local", local_queues=["not a name!"])
