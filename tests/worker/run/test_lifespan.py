"""What a worker opens before it fetches, and closes when nothing runs any more."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fairlead import Context, Fairlead, InvalidInput
from fairlead.worker.run.lifespan import Lifespan


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://")


async def test_every_kind_of_function_opens_a_resource_that_handlers_find(app: Fairlead) -> None:
    seen: list[Any] = []

    @app.on_startup
    def plain() -> int:
        return 1

    @app.on_startup
    async def awaited() -> int:
        return app.resources["plain"] + 1  # type: ignore[no-any-return]

    @app.on_startup
    def generator() -> Iterator[int]:
        seen.append(("open", threading.get_ident()))
        yield 3
        seen.append(("close", threading.get_ident()))

    @app.on_startup
    async def stream() -> AsyncIterator[int]:
        async with asyncio.TaskGroup():  # which must be left by the task that entered it
            yield 4
        seen.append("stream closed")

    @app.on_shutdown
    def bye() -> None:
        seen.append("bye")

    @app.on_shutdown
    async def later() -> None:
        seen.append("later")

    @app.task
    async def on_the_loop(ctx: Context) -> list[int]:
        return [ctx.resources[name] for name in ("plain", "awaited", "generator", "stream")]

    @app.task
    def in_a_thread(ctx: Context) -> bool:
        return dict(ctx.resources) == dict(app.resources)

    one, two = await on_the_loop.aenqueue(), await in_a_thread.aenqueue()
    assert dict(app.resources) == {}
    assert await app.drain() == 2
    assert await one.aresult(0) == [1, 2, 3, 4]
    assert await two.aresult(0) is True
    (opened, thread), *rest, (closed, same) = seen
    assert (opened, rest, closed) == ("open", ["later", "bye", "stream closed"], "close")
    assert thread == same != threading.get_ident()
    assert dict(app.resources) == {}


async def test_it_runs_once_before_the_first_task_and_after_the_last(app: Fairlead) -> None:
    seen: list[str] = []

    @app.on_startup
    async def database() -> AsyncIterator[str]:
        seen.append("open")
        yield "db"
        seen.append("closed")

    @app.task
    async def work(ctx: Context) -> None:
        seen.append(ctx.resources["database"])

    await work.aenqueue()
    async with app.worker(), app.worker():
        await app.drain()
        assert app.resources["database"] == "db"
        with pytest.raises(TypeError):
            app.resources["database"] = 1  # type: ignore[index]
    assert seen == ["open", "db", "closed"]
    await work.aenqueue()
    assert await app.drain() == 1
    assert seen[3:] == ["open", "db", "closed"]


async def test_an_error_at_startup_ends_the_worker_and_closes_what_was_open(app: Fairlead) -> None:
    seen: list[str] = []

    @app.on_startup
    def first() -> Iterator[None]:
        yield
        seen.append("first closed")

    @app.on_startup
    async def second() -> None:
        raise ConnectionError("no database")

    @app.on_startup
    def third() -> None:
        seen.append("third opened")

    @app.task
    def work() -> None:
        seen.append("ran")

    await work.aenqueue()
    with pytest.raises(ConnectionError, match="no database"):
        async with app.worker():
            seen.append("in the block")
    with pytest.raises(ConnectionError):
        await app.drain()
    assert seen == ["first closed"] * 2


async def test_errors_at_the_end_are_logged_and_hide_nothing(
    app: Fairlead, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @app.on_startup
    async def good() -> AsyncIterator[None]:
        yield
        seen.append("good closed")

    @app.on_startup
    def bad() -> Iterator[None]:
        yield
        raise ValueError("cannot close")

    @app.on_shutdown
    async def worse() -> None:
        raise KeyError("worse")

    with pytest.raises(LookupError, match="from the block"):
        async with app.worker():
            raise LookupError("from the block")
    assert seen == ["good closed"]
    lines = [line.message for line in caplog.records if line.levelno == logging.ERROR]
    assert lines == ["shutdown failed: worse", "shutdown failed: bad"]


@pytest.mark.parametrize("kind", ["async", "stubborn", "sync"])
async def test_what_hangs_at_the_end_is_given_up(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    go = threading.Event()
    lifespan = Lifespan(patience=0.05)

    async def hangs() -> None:
        await asyncio.sleep(60)

    async def stubborn() -> None:
        while not go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                seen.append("not me")

    def blocks() -> None:
        go.wait(30)

    async def other() -> AsyncIterator[None]:
        yield
        seen.append("other closed")

    functions: dict[str, Callable[[], Any]] = {
        "async": hangs, "stubborn": stubborn, "sync": blocks,
    }  # fmt: skip
    lifespan.add("startup", other)
    lifespan.add("shutdown", functions[kind])
    began = time.monotonic()
    async with lifespan:
        pass
    assert time.monotonic() - began < 5
    assert seen[-1] == "other closed"
    assert any("shutdown given up" in line.message for line in caplog.records)
    go.set()
    await asyncio.sleep(0.1)  # so that the stubborn one ends before its loop does


async def test_a_worker_that_is_cancelled_while_it_starts_leaves_nothing_open(
    app: Fairlead,
) -> None:
    seen: list[str] = []
    reached = asyncio.Event()

    @app.on_startup
    async def first() -> AsyncIterator[None]:
        yield
        seen.append("closed")

    @app.on_startup
    async def slow() -> None:
        reached.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("stopped")

    async def serve() -> None:
        async with app.worker():
            seen.append("in the block")

    task = asyncio.create_task(serve())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["stopped", "closed"]


def test_functions_that_cannot_be_called_are_refused(app: Fairlead) -> None:
    def takes(argument: int) -> None: ...

    def yields() -> Iterator[None]:
        yield

    def database() -> None: ...

    app.on_startup(database)
    with pytest.raises(InvalidInput, match="'database' is registered already"):
        app.on_startup(database)
    with pytest.raises(InvalidInput, match="asks for some"):
        app.on_startup(takes)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="for on_startup"):
        app.on_shutdown(yields)
    with pytest.raises(InvalidInput, match="is no function"):
        app.on_startup(5)  # type: ignore[type-var]
