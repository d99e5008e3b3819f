"""Codecs around real tasks: what brokers store, and what happens where one is missing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import CodecError, Conflict, Context, Fairlead, State, TooLarge, ZlibCodec
from fairlead.broker import Store, connect
from fairlead.model.priorities import DEFAULT
from fairlead.testing import Kit
from tests.cli.running import answered
from tests.support.servers import server, shared

SECRET = "s3cret-text"


class Sealed:
    """Like encryption: other bytes each time, of which nothing can be guessed."""

    def __init__(self, name: str = "sealed") -> None:
        self.name = name

    def encode(self, data: bytes) -> bytes:
        key = os.urandom(8)
        return key + bytes(byte ^ key[place % 8] for place, byte in enumerate(data))

    def decode(self, data: bytes) -> bytes:
        key, data = data[:8], data[8:]
        return bytes(byte ^ key[place % 8] for place, byte in enumerate(data))


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        made = connect("memory://")
        yield made
        await made.close()
        return
    with shared() as running:
        made = connect(running.url)
        yield made
        await made.close()


async def test_brokers_never_see_what_users_store(store: Store) -> None:
    app = Fairlead(store=store, codec=Sealed())

    @app.task(name="first")
    async def first(ctx: Context, text: str) -> str:
        await ctx.aprogress(text)
        await ctx.acheckpoint([text])
        await ctx.xcom.apush("key", text)
        assert await ctx.alast_checkpoint() == [text]
        return text

    @app.task(name="second")
    async def second(ctx: Context, given: str, more: str) -> list[str]:
        assert ctx.results["first"] == SECRET
        return [given, more, await ctx.xcom.apull("key")]

    call = first.call(SECRET)
    one, two = await app.aenqueue_many([call, second.call(call.output, more=SECRET)])
    await app.drain()
    assert await two.aresult(timeout=10) == [SECRET, SECRET, SECRET]
    info = await one.ainfo(arguments=True)
    assert (info.args, info.progress, info.encoded) == ((SECRET,), SECRET, "")
    records = await store.find([one.id, two.id], parts="all")
    values = await store.pull("default", ["key"])
    assert SECRET not in repr(records) + repr(values)
    assert b"sealed" in (values[0] or b"")


async def test_a_worker_without_the_codec_leaves_the_task_to_others(store: Store) -> None:
    app, other = Fairlead(store=store, codec=Sealed()), Fairlead(store=store)
    ran: list[str] = []
    for each in (app, other):
        each.task(name="work")(ran.append)
    handle = await app.registered("work").aenqueue(SECRET)
    await other.drain()
    info = await other.handle(handle.id).ainfo(arguments=True)
    assert (info.state, info.reason, info.attempts) == (State.RETRYING, "unroutable", 0)
    assert info.error is not None
    assert "task 'work': the arguments cannot be read here: encoded with codec 'sealed'" in (
        info.error.message
    )
    assert (info.args, info.encoded) == (None, "sealed")
    assert ran == []


@pytest.mark.parametrize("uses", ["result", "output", "xcom"])
async def test_what_another_app_encoded_uses_up_no_attempts(store: Store, uses: str) -> None:
    app, other = Fairlead(store=store, codec=Sealed()), Fairlead(store=store)
    ran: list[int] = []

    @app.task(name="first", queue="first")
    async def first(ctx: Context) -> str:
        await ctx.xcom.apush("key", SECRET)
        return SECRET

    @other.task(name="second", queue="second")
    async def second(ctx: Context, given: Any = None) -> Any:
        if uses == "xcom":
            ran.append(ctx.attempt)
            await ctx.xcom.apull("key")

    earlier = await first.aenqueue()
    calls = {
        "result": lambda: second.using(depends_on=[earlier]).call(),
        "output": lambda: second.call(earlier.output),
        "xcom": second.call,
    }
    (handle,) = await other.aenqueue_many([calls[uses]()])
    await app.drain(queues=["first"])
    with pytest.raises(CodecError, match="the result cannot be read here"):
        await other.handle(earlier.id).aresult(timeout=10)
    await other.drain(queues=["second"])
    info = await handle.ainfo()
    assert info.error is not None
    assert "codec 'sealed'" in info.error.message
    if uses == "xcom":  # the handler has begun: not again by itself
        assert (info.state, info.reason, ran) == (State.DEAD, "rejected", [1])
    else:
        assert (info.state, info.reason, info.attempts) == (State.RETRYING, "unroutable", 0)


async def test_the_same_call_is_recognized_although_it_is_encoded_otherwise(store: Store) -> None:
    app, rotated = (
        Fairlead(store=store, codec=Sealed("a")),
        Fairlead(store=store, codec=[Sealed("b"), Sealed("a")]),
    )
    for each in (app, rotated):
        each.task(name="work")(print)
    for each in (app, app, rotated):
        call = each.registered("work").using(id="x")
        await call.aenqueue(SECRET, end="")
        (again,) = await each.aenqueue_many([call.call(SECRET, end="")])
        assert again.duplicate
        with pytest.raises(Conflict):
            await call.aenqueue("other", end="")
    found = await asyncio.to_thread(lambda: call.enqueue(SECRET, end=""))
    assert found.duplicate


async def test_the_short_ways_encode_too() -> None:
    store = connect("memory://")
    app = Fairlead(store=store, codec=ZlibCodec(threshold=10))

    @app.task(name="work")
    async def work(size: int) -> str:
        return SECRET * size

    handles = [await work.aenqueue(100) for _ in range(50)]
    await app.drain()  # all but the first few in light attempts
    for record in await store.find([each.id for each in handles], parts="all"):
        assert record is not None
        assert record.result is not None
        assert SECRET.encode() not in record.result
    sealed = Fairlead(store=store, codec=Sealed())

    @sealed.task(name="send")
    async def send(text: str) -> None: ...

    ids = [(await send.aenqueue(SECRET)).id for _ in range(3)]
    for found in await store.find(ids, parts="all"):
        assert found is not None
        assert SECRET.encode() not in found.message.body


async def test_the_api_says_what_it_cannot_decode(store: Store) -> None:
    from fairlead.api.views.redaction import Redaction
    from fairlead.api.views.tasks import view_of
    from fairlead.client import Client

    app = Fairlead(store=store, codec=Sealed())
    task = app.task(name="work")(lambda text: text)
    handle = await task.aenqueue(SECRET)
    await app.drain()
    for codecs, encoded in ((None, "sealed"), (app._clients.codecs, "")):
        record = await Client(store, codecs=codecs).reader.one(handle.id, "all")
        assert record is not None
        view = view_of(record, Redaction(()), DEFAULT, payload=True)
        assert view.encoded == encoded
        assert (SECRET.encode() in msgspec.json.encode(view)) is (encoded == "")


async def test_schedules_and_large_arguments(store: Store) -> None:
    app = Fairlead(store=store, codec=[ZlibCodec(), Sealed()])

    @app.task(name="work")
    def work(text: str) -> int:
        return len(text)

    large = "x" * 2**21
    handle = await work.aenqueue(large)
    await app.schedules.acreate("nightly", work.call(text=SECRET * 500), every="1h")
    assert (await app.schedules.aget("nightly")).kwargs == {"text": SECRET * 500}
    hidden = await Fairlead(store=store).schedules.aget("nightly")
    assert (hidden.kwargs, "codec 'zlib'" in hidden.problem) == ({}, True)
    await app.drain()
    assert await handle.aresult(timeout=10) == len(large)
    with pytest.raises(TooLarge, match=r"^the arguments are .* as stored with codec 'zlib'"):
        await work.aenqueue(os.urandom(2**20).hex())


def test_declared_schedules_do_not_change_with_the_bytes_of_a_codec() -> None:
    from fairlead.client.schedule_spec import declaration, rule_of

    app = Fairlead("memory://", codec=Sealed())
    task = app.task(name="work")(print)
    one, two = (declaration("x", task.call(SECRET), rule_of("0 3 * * *", {})) for _ in "ab")
    assert one.spec.declared == two.spec.declared
    assert one.spec.template != two.spec.template


def test_the_testing_kit_decodes() -> None:
    app = Fairlead("memory://", codec=Sealed())
    task = app.task(name="work")(print)
    with Kit(app) as kit:
        task.enqueue(SECRET)
        (found,) = kit.enqueued("work")
        assert list(found.arguments.values()) == [SECRET]


APP = """
import os
from fairlead import Context, Fairlead, ZlibCodec

app = Fairlead(os.environ["FAIRLEAD_TEST_URL"], codec=ZlibCodec(threshold=10))

@app.task(name="work", isolation="process")
def work(ctx: Context, text: str) -> dict:
    ctx.progress(text)
    return {"text": text, "pid": os.getpid()}

@app.task(name="start")
async def start(ctx: Context, text: str) -> str:
    await ctx.aenqueue(work.using(id="child").call(text))
    return text
"""


def test_worker_processes_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with server("valkey") as running:
        environment = {**os.environ, "FAIRLEAD_TEST_URL": running.url}
        text = "text " * 100
        with Fairlead(running.url, codec=ZlibCodec(threshold=10)) as app:
            handle = app.send("start", text)
            done = subprocess.run(
                [sys.executable, "-m", "fairlead", "worker", "shop:app", "--until-empty"],
                cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert handle.result(timeout=10) == text, done.stderr
            child = app.handle("child").result(timeout=10)
            assert (child["text"], child["pid"] != os.getpid()) == (text, True)
        shown = answered("task", "show", "child", "--payload", "--json", "--url", running.url)
        found = json.loads(shown.stdout)
        assert (found["args"], found["result"], found["encoded"]) == (None, None, "zlib")
        assert text not in shown.stdout
