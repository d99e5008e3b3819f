"""The load of ``fairlead bench api``: a process of its own, so that it does not share the server's.

It reads one order as JSON from standard input and writes what it saw to standard output. The HTTP
is written by hand: a client library costs more for a request than the server does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from fairlead.cli.demo.stats import percentile
from fairlead.model.errors import FairleadError
from fairlead.runtime.event_loop import new_runner

__all__ = ("Connection", "main")

_TASK = json.dumps({"task": "bench.noop", "args": ["." * 64]}).encode()
_PATIENCE = 60.0  # seconds for one answer
_PART = 64 * 1024  # bytes of lines that are written at once
_PAUSE = 0.02  # seconds between two events: each is to be seen alone


class Connection(asyncio.Protocol):
    """One connection that is kept: a request, then its answer, and so on."""

    def __init__(self, host: str, token: str) -> None:
        self._head = f"Host: {host}\r\nAuthorization: Bearer {token}\r\n".encode()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of a class of its own

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(FairleadError(f"the server hung up ({error})"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        place = head.find(b"content-length:")
        length = int(head[place + 15 :].split(b"\r\n", 1)[0])
        if len(self._buffer) < end + 4 + length or self._answer is None:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        if not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request and wait for its answer: status and body."""
        if self._transport is None:
            raise FairleadError("the connection is not open")
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        about = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        line = f"{method} {path} HTTP/1.1\r\n".encode()
        self._transport.write(line + self._head + (about if body else b"") + b"\r\n" + body)
        async with asyncio.timeout(_PATIENCE):
            return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


async def _open(order: dict[str, Any]) -> Connection:
    host, port = order["host"], order["port"]
    loop = asyncio.get_running_loop()
    made = await loop.create_connection(
        lambda: Connection(f"{host}:{port}", order["token"]), host, port
    )
    return made[1]


async def _repeat(order: dict[str, Any], paths: Sequence[str], method: str, body: bytes) -> Any:
    """Each connection asks again and again until the time is over."""
    connections = [await _open(order) for _ in range(order["connections"])]
    took: list[float] = []
    ids: list[str] = []

    async def lane(connection: Connection, first: int, until: float) -> None:
        number = first
        while (began := time.perf_counter()) < until:
            status, answer = await connection.request(method, paths[number % len(paths)], body)
            took.append(time.perf_counter() - began)
            number += len(connections)
            if status >= 300:
                raise FairleadError(f"the server answered {status}: {answer[:200]!r}")
            if body and len(ids) < 5_000:
                ids.append(json.loads(answer)["id"])

    await _lanes(connections, lane, 0.3)  # connections, tokens and functions are warm then
    warm = len(took)
    took.clear()
    began = time.perf_counter()
    await _lanes(connections, lane, order["seconds"])
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    figures = {f"p{part}_ms": percentile(took, part) * 1_000 for part in (50, 95, 99)}
    return {"count": len(took) + warm, "rate": len(took) / seconds, **figures, "ids": ids}


async def _lanes(
    connections: Sequence[Connection],
    lane: Callable[[Connection, int, float], Awaitable[None]],
    seconds: float,
) -> None:
    until = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for first, connection in enumerate(connections):
            group.create_task(_run(lane(connection, first, until)))


async def _run(work: Awaitable[None]) -> None:
    await work


async def submit(order: dict[str, Any]) -> Any:
    """Submit single tasks."""
    return await _repeat(order, ["/api/v1/tasks"], "POST", _TASK)


async def read(order: dict[str, Any]) -> Any:
    """Read single tasks."""
    return await _repeat(order, [f"/api/v1/tasks/{id}" for id in order["ids"]], "GET", b"")


async def lines(order: dict[str, Any]) -> Any:
    """Submit many tasks as lines of one request, and read the answer line by line meanwhile."""
    count = order["count"]
    reader, writer = await asyncio.open_connection(order["host"], order["port"], limit=2**20)
    writer.write(
        f"POST /api/v1/tasks/batch HTTP/1.1\r\nHost: {order['host']}:{order['port']}\r\n"
        f"Authorization: Bearer {order['token']}\r\nContent-Type: application/x-ndjson\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n".encode()
    )
    began = time.perf_counter()

    async def write() -> None:
        each = max(_PART // (len(_TASK) + 1), 1)
        for start in range(0, count, each):
            part = (_TASK + b"\n") * min(each, count - start)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with asyncio.timeout(_PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(write())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise FairleadError(f"the server answered {head[:200]!r}")
        answered = 0
        while size := int(await reader.readline(), 16):
            answered += (await reader.readexactly(size + 2)).count(b"\n") - 1
    seconds = time.perf_counter() - began
    writer.close()
    if answered != count + 1:  # the last one counts the others
        raise FairleadError(f"{answered - 1:,} of {count:,} lines were answered")
    return {"count": count, "rate": count / seconds}


async def events(order: dict[str, Any]) -> Any:
    """Listen on many sockets, submit tasks one by one, and see when each socket hears of each."""
    from websockets.asyncio.client import connect

    seen: dict[str, list[float]] = {}
    place = f"ws://{order['host']}:{order['port']}/ws"

    async def listen(ready: asyncio.Event, done: asyncio.Event) -> None:
        async with connect(place, max_queue=1_000) as socket:
            await socket.send(json.dumps({"type": "auth", "token": order["token"]}))
            await socket.send(json.dumps({"type": "subscribe", "types": ["task.submitted"]}))
            async for text in socket:
                event = json.loads(text)
                if event["type"] == "stream.subscribed":
                    ready.set()
                if event["type"] == "task.submitted":
                    seen.setdefault(event["data"]["task_id"], []).append(time.perf_counter())
                if done.is_set():
                    return

    sent: dict[str, float] = {}
    done = asyncio.Event()
    async with asyncio.timeout(_PATIENCE):
        listeners: list[asyncio.Task[None]] = []
        for _ in range(order["sockets"]):
            ready = asyncio.Event()
            listeners.append(asyncio.create_task(listen(ready, done)))
            await ready.wait()
        await asyncio.sleep(1.0)  # the snapshots that come first
        connection = await _open(order)
        for _ in range(order["count"]):
            began = time.perf_counter()
            _, answer = await connection.request("POST", "/api/v1/tasks", _TASK)
            sent[json.loads(answer)["id"]] = began
            await asyncio.sleep(_PAUSE)
        while any(len(seen.get(id, ())) < order["sockets"] for id in sent):  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE)
    for listener in listeners:
        listener.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    took = [at - sent[id] for id in sent for at in seen[id]]
    return {f"p{part}_ms": percentile(took, part) * 1_000 for part in (50, 99, 100)}


def main() -> None:
    """Carry out one order."""
    order = json.loads(sys.stdin.read())
    with new_runner() as runner:
        found = runner.run(
            {"submit": submit, "read": read, "lines": lines, "events": events}[order["what"]](order)
        )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
