"""Programs that run their tasks themselves while a real server is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead import Context, Fairlead
from fairlead.fallback import Fallback
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
