"""The time limit of a call is for silence, not for length: bytes that move are waited for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from fairlead.model.errors import Ambiguous
from tests.broker.redis.harness import Opener
from tests.support.servers import Running

CHUNK = 64 * 1024


class Slow:
    """A link to a server that lets so many bytes through at a time, and pauses in between."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.pause = 0.0
        self.open = asyncio.Event()
        self.open.set()
        self.url = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._ends: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, up = await asyncio.open_unix_connection(self._path)
        writer.transport.set_write_buffer_limits(0)
        up.transport.set_write_buffer_limits(0)
        self._ends += [writer, up]
        self._tasks += [
            asyncio.create_task(self._copy(reader, up)),
            asyncio.create_task(self._copy(there, writer)),
        ]

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if len(data) > 1024:
                    await asyncio.sleep(self.pause)
                await self.open.wait()
                to.write(data)
                await to.drain()
            to.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
async def slow(valkey: Running) -> AsyncIterator[Slow]:
    link = Slow(valkey.path)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)  # those it accepts have it too
    sock.bind(("127.0.0.1", 0))
    listener = await asyncio.start_server(link.serve, sock=sock, limit=CHUNK)
    link.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    yield link
    await link.close()
    listener.close()


async def test_a_long_reply_is_not_cut_while_its_bytes_come(
    valkey: Running, slow: Slow, connect: Opener
) -> None:
    broker = connect(slow.url, call_timeout=0.3, connect_timeout=2.0, patience=0.5)
    valkey.admin("SET", "large", bytes(1_500_000))
    await broker.command("PING")
    slow.pause = 0.05
    began = time.monotonic()
    reply = await broker.command("GET", "large")
    assert len(reply) == 1_500_000
    assert time.monotonic() - began > 0.6  # longer than silence and the time of the call


async def test_a_long_request_is_not_cut_while_its_bytes_go(
    valkey: Running, slow: Slow, connect: Opener
) -> None:
    broker = connect(slow.url, call_timeout=0.5, connect_timeout=2.0)
    await broker.command("PING")
    slow.pause = 0.01
    began = time.monotonic()
    assert await broker.command("SET", "large", bytes(12_000_000)) == b"OK"
    assert time.monotonic() - began > 1.0
    assert broker.doubts == 0


async def test_a_reply_that_stops_in_the_middle_is_silence(
    valkey: Running, slow: Slow, connect: Opener
) -> None:
    broker = connect(slow.url, call_timeout=0.3, connect_timeout=2.0)
    valkey.admin("SET", "large", bytes(1_500_000))
    await broker.command("PING")
    slow.pause = 0.02
    call = asyncio.create_task(broker.command("GET", "large", patience=0))
    await asyncio.sleep(0.1)
    slow.open.clear()
    began = time.monotonic()
    with pytest.raises(Ambiguous, match="no reply within"):
        await call
    assert time.monotonic() - began < 5.0


async def test_a_request_that_stops_in_the_middle_is_silence(slow: Slow, connect: Opener) -> None:
    broker = connect(slow.url, call_timeout=0.3, connect_timeout=2.0)
    await broker.command("PING")
    slow.open.clear()
    others = []
    began = time.monotonic()
    call = asyncio.create_task(broker.command("SET", "large", bytes(12_000_000), patience=0))
    for _ in range(10):  # whatever is sent behind it does not make it move
        await asyncio.sleep(0.02)
        others.append(asyncio.create_task(broker.command("PING", patience=0)))
    with pytest.raises(Ambiguous, match="no reply within"):
        await call
    assert time.monotonic() - began < 2.0
    await asyncio.gather(*others, return_exceptions=True)


async def test_a_call_behind_a_long_reply_keeps_its_own_time(
    valkey: Running, slow: Slow, connect: Opener
) -> None:
    broker = connect(slow.url, call_timeout=1.0, connect_timeout=2.0)
    valkey.admin("SET", "large", bytes(2_500_000))
    await broker.command("PING")
    slow.pause = 0.03
    long = asyncio.create_task(broker.command("GET", "large"))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    with pytest.raises(Ambiguous, match="within the time of the call"):
        await broker.command("ECHO", "behind", patience=0.2)
    assert not long.done()  # it did not wait for the reply before it
    assert time.monotonic() - began < 2.0
    assert len(await long) == 2_500_000
    assert await broker.command("ECHO", "next") == b"next"
