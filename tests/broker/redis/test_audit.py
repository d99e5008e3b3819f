"""The audit finds a sound shard sound, and names what is wrong with any other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.audit.audit import audit
from fairlead.broker.redis.keys import KINDS
from fairlead.broker.requests import QueueChange
from fairlead.model.errors import Refused
from tests.broker.redis.sample import MADE, PREFIX, Spoiler, fill
from tests.broker.redis.spoiled import SPOILED
from tests.broker.redis.spoiled_documents import SPOILED_DOCUMENTS
from tests.broker.redis.spoiled_pins import SPOILED_PINS
from tests.support.copies import Copy
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, submit

ALL_SPOILED = {**SPOILED, **SPOILED_PINS, **SPOILED_DOCUMENTS}


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[Running, Copy]]:
    """A server, and what something of everything looks like on it."""
    with server() as started, redis.Redis(unix_socket_path=started.path) as client:
        copy = Copy(client)

        async def make() -> None:
            async with opened(started) as broker:
                await fill(broker)

        asyncio.run(make())
        copy.take()
        yield started, copy


@pytest.fixture
def running(filled: tuple[Running, Copy]) -> Running:
    return filled[0]


@pytest.fixture
def client(running: Running) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=running.path) as client:
        client.flushdb()
        yield client


@pytest.fixture
async def broker(filled: tuple[Running, Copy], client: redis.Redis) -> AsyncIterator[RedisBroker]:
    """Has something of everything."""
    running, copy = filled
    copy.restore()
    async with opened(running) as broker:
        yield broker


@contextlib.asynccontextmanager
async def opened(running: Running) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(running.url, test_clock=True, event_bytes=4096)
    try:
        yield broker
    finally:
        await broker.close()


async def test_a_shard_with_something_of_everything_is_sound(
    broker: RedisBroker, client: redis.Redis
) -> None:
    assert await broker.audit() == []

    snapshot = await broker.snapshot()
    counts = (
        *(snapshot.ready, snapshot.scheduled, snapshot.retrying, snapshot.deferred),
        *(snapshot.running, snapshot.completed, snapshot.dead, snapshot.cancelled),
    )
    assert all(count > 0 for count in counts), snapshot
    families = {key[len(PREFIX) :].partition(b":")[0] for key in client.scan_iter(count=500)}
    kinds = {name.rstrip(":").encode() for name in KINDS}
    # A tenant that is ahead of its clock, 1,000 holes in a line, another shard, a worker that
    # waits, and a tenant in more queues than one call gives something to: not to be had.
    missing = {b"saved", b"gaps", b"outbox", b"offers", b"handed", b"applying"}
    assert kinds - families == missing


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ALL_SPOILED)
async def test_what_is_spoiled_is_named(
    broker: RedisBroker, client: redis.Redis, what: str
) -> None:
    spoil, finding = ALL_SPOILED[what]
    spoil(Spoiler(client))

    found = await broker.audit()
    assert any(finding in each for each in found), found
    assert all(each == each.strip() and "\n" not in each for each in found)


async def test_numbers_of_the_shard_that_are_none_are_refused_and_named(
    broker: RedisBroker, client: redis.Redis, running: Running
) -> None:
    Spoiler(client).do("HSET", "meta", "numbers", "?")
    live = RedisBroker(running.url)  # with a test's clock an audit is a verb, too
    with pytest.raises(Refused, match="doctor --audit"):
        await Client(broker).enqueue(submit("t"))
    assert "'meta' holds what cannot be read for 'numbers'" in await live.audit()
    await live.close()


async def test_what_only_one_of_two_walks_sees_is_no_finding(
    broker: RedisBroker, client: redis.Redis
) -> None:
    """As on a server that is in use: the first walk missed a task that moved."""
    session = await broker.here()
    walks = 0

    async def command(*args: Any) -> Any:
        nonlocal walks
        reply = await session.server.command(*args)
        if args[0] == "SCAN" and args[1] == b"0":
            walks += 1
        if args[0] == "LRANGE" and walks == 1:
            return []
        return reply

    assert await audit(command, broker.keys, test_clock=True) == []
    assert walks == 2

    walks = 0
    found = await audit(command, broker.keys, test_clock=True, confirm=False)
    assert f"task {MADE} is queued but stands 0 times in lines" in found
    assert walks == 1


async def test_the_walk_is_made_of_small_steps(running: Running, client: redis.Redis) -> None:
    """No command that grows with what is stored: everybody else waits while one runs."""
    opened = RedisBroker(running.url)
    try:
        c = Client(opened)
        for start in range(0, 1500, 500):
            await opened.enqueue(
                c.call(), [submit(f"t-{start + i}", tenant=f"x{i % 3}") for i in range(500)]
            )
        client.config_resetstat()
        told: list[int] = []
        session = await opened.here()

        assert await audit(session.server.command, opened.keys, progress=told.append) == []
        assert told[-1] == len(list(client.scan_iter(count=500)))
        stats = client.info("commandstats")
        used = {name.removeprefix("cmdstat_") for name in stats}
        steps = {"scan", "hscan", "sscan", "zscan", "lrange", "type", "xlen", "time"}
        assert used <= steps | {"xrange", "xrevrange", "config|resetstat", "info"}, used
        assert stats["cmdstat_lrange"]["calls"] >= 3 * 2
    finally:
        await opened.close()


async def test_a_server_with_nothing_is_sound(running: Running, client: redis.Redis) -> None:
    opened = RedisBroker(running.url)
    try:
        assert await opened.audit() == []
        client.set("of-somebody-else", "?")
        assert await opened.audit() == []
    finally:
        await opened.close()


async def test_a_key_that_is_gone_before_it_is_read_is_none(valkey: Running) -> None:
    broker = RedisBroker(valkey.url, test_clock=True)
    c = Client(broker)
    await c.configure(QueueChange(queue="default", keep_completed_count=1))
    await c.settle(*map(completed, await c.run(*(submit(f"job-{n}") for n in range(3)))))
    command = (await broker.here()).server.command
    over: list[str] = []

    async def meanwhile(*args: Any) -> Any:
        if args[0] == "TYPE" and "}:tombs:" in args[1] and not over:
            over.append(args[1])
            while (await broker.tidy(now=NOW + 4000.0)).more:  # as a worker does
                pass
        return await command(*args)

    assert await audit(meanwhile, broker.keys, test_clock=True) == []
    assert over
    await broker.close()
