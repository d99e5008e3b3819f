"""Blocking calls end when their caller wants, and lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from fairlead.broker import connect as open_store
from fairlead.model.errors import Ambiguous, Unreachable
from tests.broker.redis.harness import (
    Opener,
    blocked,
    clients,
)
from tests.support.proxy import Proxy
from tests.support.servers import (
    Running,
    server,
)


async def test_a_blocking_call_gets_what_is_pushed(valkey: Running, connect: Opener) -> None:
    broker = connect(valkey.url)
    for word in ("one", "two"):
        waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=5))
        await blocked(valkey)
        await broker.command("RPUSH", "bell", word)
        assert await waiting == [b"bell", word.encode()]

    assert clients(valkey, "connected") == 3  # main, blocker, this one


async def test_a_blocking_call_ends_by_our_own_clock(valkey: Running, connect: Opener) -> None:
    broker = connect(valkey.url)
    began = time.monotonic()

    assert await broker.block("BLPOP", "bell", seconds=0.1) is None
    assert 0.1 <= time.monotonic() - began < 2.0
    assert clients(valkey, "blocked") == 0


async def test_a_cancelled_blocking_call_is_freed_and_gives_nothing_away(
    valkey: Running, connect: Opener
) -> None:
    broker = connect(valkey.url)
    strays: list[Any] = []
    waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=60, on_stray=strays.append))
    await blocked(valkey)
    waiting.cancel()
    for _ in range(10):  # no word of the server is waited for
        await asyncio.sleep(0)
    assert waiting.cancelled()

    await blocked(valkey, 0)
    await broker.command("RPUSH", "bell", "one")
    assert await broker.block("BLPOP", "bell", seconds=1) == [b"bell", b"one"]
    assert strays == []


async def test_what_arrives_with_the_cancellation_is_handed_over(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url)
    came = asyncio.get_running_loop().create_future()

    async def on_stray(reply: Any) -> None:
        came.set_result((reply, await broker.command("ECHO", "usable")))

    waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=60, on_stray=on_stray))
    await blocked(valkey)
    between.swallow(up=False)
    valkey.admin("RPUSH", "bell", "one")
    await blocked(valkey, 0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    between.heal()

    assert await asyncio.wait_for(came, 5) == ([b"bell", b"one"], b"usable")


async def test_a_black_hole_ends_a_blocking_call_in_time(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url, call_timeout=0.3)
    waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=0.3))
    await blocked(valkey)
    between.swallow()
    began = time.monotonic()

    assert await waiting is None
    assert time.monotonic() - began < 5.0

    await broker.close()
    assert time.monotonic() - began < 2
    between.heal()


async def test_a_blocking_call_tells_of_a_lost_connection(
    valkey: Running, between: Proxy, connect: Opener
) -> None:
    broker = connect(between.url)
    waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=60))
    await blocked(valkey)
    between.cut()
    with pytest.raises(Ambiguous):
        await waiting

    await broker.command("RPUSH", "bell", "one")
    assert await broker.block("BLPOP", "bell", seconds=1) == [b"bell", b"one"]


async def test_a_blocking_call_is_told_when_the_server_steps_down(connect: Opener) -> None:
    with server(tcp=True) as running:
        broker = connect(running.url)
        waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=60))
        await blocked(running)
        running.admin("REPLICAOF", "127.0.0.1", 1)

        with pytest.raises(Unreachable):
            await asyncio.wait_for(waiting, 5)


def test_a_loop_that_ends_while_a_call_blocks_leaves_no_work_half_done(valkey: Running) -> None:
    """A program that ends without closing its app: what is left would be destroyed, with a log."""
    store = open_store(valkey.url)
    waiting = set()

    async def main() -> None:
        waiting.add(asyncio.create_task(store.collect("worker", 0, 30)))
        await blocked(valkey)
        valkey.admin("CLIENT", "PAUSE", 300)  # for a while no call is answered

    with asyncio.Runner() as runner:
        runner.run(main())
        loop = runner.get_loop()
    left = asyncio.all_tasks(loop)
    asyncio.run(store.close())
    assert left == set()


@pytest.mark.parametrize("is_away_before", [True, False])
async def test_who_waits_in_an_outage_opens_nothing_after_a_close(is_away_before: bool) -> None:
    with server() as running:
        broker = open_store(running.url)
        await broker.hello()
        if is_away_before:
            running.kill()
        waiting = asyncio.create_task(broker.wait(["default"], timeout=60.0))
        if not is_away_before:
            await blocked(running)
            running.kill()
        await asyncio.sleep(0.1)  # whatever it tries by then
        await broker.close()
        running.start()
        with contextlib.suppress(Unreachable, Ambiguous):
            assert await waiting is False
        for _ in range(10):  # a task that was left behind would run now
            await asyncio.sleep(0)

        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert clients(running, "connected") == 1  # this one
