"""``ctx.log("text")``: from the handler to whoever reads the task."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from fairlead import Context, Fairlead, Reject, ResultGone, Retry, ZlibCodec
from fairlead.broker import connect
from fairlead.broker.requests import Write
from fairlead.model.errors import Unreachable
from fairlead.model.log_lines import MAX_CHUNK_LINES
from fairlead.testing import Kit
from fairlead.worker.run.progress_writer import ProgressWriter
from tests.api.app import open_api
from tests.cli.running import answered
from tests.support.servers import shared


@pytest.mark.parametrize("is_async", [True, False])
async def test_lines_of_all_attempts_are_there_with_the_outcome(
    app: Fairlead, is_async: bool
) -> None:
    def work(ctx: Context) -> None:
        ctx.log("begins", count=ctx.attempt, path=object())
        ctx.log.info("a line of the worker's own log")
        if ctx.attempt == 1:
            raise Retry(0)
        ctx.log("ends\ud800", ratio=float("inf"))
        raise Reject("no")

    async def awork(ctx: Context) -> None:
        work(ctx)

    task: Any = app.task(name="work")(awork if is_async else work)
    handle = await task.aenqueue()
    await app.drain()
    log = await handle.alogs()
    assert [(line.attempt, line.text, line.fields) for line in log] == [
        (1, "begins", {"count": 1, "path": "<object>"}),
        (2, "begins", {"count": 2, "path": "<object>"}),
        (2, "ends?", {"ratio": "inf"}),
    ]
    assert log[0].at <= log[1].at
    assert log[1:] == log.lines[1:]
    assert await asyncio.to_thread(handle.logs) == log
    with pytest.raises(ResultGone):
        await app.handle("nothing").alogs()


async def test_lines_are_bounded_and_the_newest_stay(app: Fairlead) -> None:
    @app.task(name="many")
    async def many(ctx: Context) -> None:
        for number in range(3_000):
            ctx.log(f"{number}")
        ctx.log("x" * 10_000, large="y" * 100_000)

    handle = await many.aenqueue()
    await app.drain()
    log = await handle.alogs()
    assert (len(log), log.dropped) == (500, 2_501)
    assert log.lines[0].text == "2501"
    assert (len(log.lines[-1].text), list(log.lines[-1].fields)) == (2_000, ["large"])


async def test_light_attempts_keep_lines_and_codecs_hide_them() -> None:
    store = connect("memory://")
    app = Fairlead(store=store, codec=ZlibCodec(threshold=10))

    @app.task(name="work")
    async def work(ctx: Context, number: int) -> int:
        if number % 2:
            ctx.log("secret " * 20, number=number)
        return number

    handles = [await work.aenqueue(number) for number in range(40)]
    await app.drain()
    for number, handle in enumerate(handles):
        assert [line.fields for line in await handle.alogs()] == [{"number": number}] * (number % 2)
        assert await handle.aresult(timeout=10) == number
    records = await store.find([each.id for each in handles], parts="all")
    assert "secret" not in repr(records)


async def test_lines_of_a_running_attempt_are_sent_together() -> None:
    app = Fairlead("memory://")
    writes: list[int] = []
    seen = asyncio.Event()

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        threads = [threading.Thread(target=ctx.log, args=(f"{n}",)) for n in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await seen.wait()

    report, sent = ProgressWriter.report, asyncio.Event()

    async def counted(self: ProgressWriter, write: Write) -> bool:
        writes.append(len(write.value))
        done = await report(self, write)
        sent.set()
        return done

    handle = await work.aenqueue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressWriter, "report", counted)
        async with app.worker():
            async with asyncio.timeout(30):
                await sent.wait()
            assert len(await handle.alogs()) == 30
            assert len(writes) <= 2
            seen.set()
            await handle.aresult(timeout=30)
    assert len(writes) <= 2


async def test_a_broker_that_takes_no_lines_costs_nothing_but_them() -> None:
    app = Fairlead("memory://")

    @app.task(name="work", max_retries=0)
    async def work(ctx: Context) -> str:
        ctx.log("lost")
        return "done"

    async def away(self: ProgressWriter, write: Write, limit: float | None = None) -> None:
        raise Unreachable("away")

    handle = await work.aenqueue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressWriter, "write", away)
        await app.drain()
    assert await handle.aresult(timeout=10) == "done"
    assert len(await handle.alogs()) == 0


class Picky:
    """A codec that cannot encode some lines."""

    name = "picky"

    def encode(self, data: bytes) -> bytes | None:
        if b"bad" in data:
            raise ValueError(data)
        return None

    def decode(self, data: bytes) -> bytes:
        return data


async def test_lines_that_no_codec_takes_are_counted_and_said_once_for_a_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Fairlead("memory://", codec=Picky())

    @app.task(name="work")
    async def work(ctx: Context) -> None:
        for _ in range(2 * MAX_CHUNK_LINES):
            ctx.log("bad")
        ctx.log("good")

    handles = [await work.aenqueue() for _ in range(2)]
    await app.drain()
    for handle in handles:
        log = await handle.alogs()
        assert ([line.text for line in log], log.dropped) == (["good"], 2 * MAX_CHUNK_LINES)
    said = [line for line in caplog.messages if line.startswith("log lines")]
    text = "CodecError: log lines could not be encoded by codec 'picky': ValueError"
    assert said == [f"log lines of task {handle.id} dropped: {text}" for handle in handles]


def test_the_kit_shows_what_a_handler_logs() -> None:
    app = Fairlead("memory://")

    @app.task(name="work")
    def work(ctx: Context) -> None:
        ctx.log("text", n=1)

    with Kit(app) as kit:
        context = kit.context("work")
        work(context)
        assert [(line.text, line.fields) for line in context.logged] == [("text", {"n": 1})]


def test_the_command_line_shows_them() -> None:
    with shared() as running:
        with Fairlead(running.url) as app:

            @app.task(name="work")
            async def work(ctx: Context) -> None:
                ctx.log("sent", to="Ada")

            handle = work.enqueue()
            asyncio.run(app.drain())
        shown = answered("task", "show", handle.id, "--url", running.url).stdout
        assert 'attempt 1: sent to="Ada"' in shown
        found = json.loads(
            answered("task", "show", handle.id, "--json", "--url", running.url).stdout
        )
        assert (found["log"][0]["text"], found["log_dropped"]) == ("sent", 0)


async def test_the_api_shows_them() -> None:
    async with open_api() as (api, client):
        app = api.app

        @app.task(name="logs")
        async def work(ctx: Context) -> None:
            ctx.log("sent", password="hidden?")

        handle = await work.aenqueue()
        await app.drain()
        answer = await client.get(f"/api/v1/tasks/{handle.id}/log")
        assert answer.status_code == 200, answer.text
        (line,) = answer.json()["lines"]
        assert (line["attempt"], line["text"]) == (1, "sent")
        assert (await client.get("/api/v1/tasks/nothing/log")).status_code == 404
