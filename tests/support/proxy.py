"""A proxy between client and server that breaks connections where a test wants it.

It understands just enough of the protocol to tell one command and one reply from the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable

Matches = Callable[[bytes], bool]

_PIECE = 32 * 1024  # bytes
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, not with a goodbye


class Fault:
    """What happens to the reply of one command; ``happened`` is set once it did."""

    def __init__(self, number: int, share: float) -> None:
        self.number = number  # of the command, counted from when the fault was planted
        self.share = share  # of the reply that still gets through
        self.happened = asyncio.Event()


class Proxy:
    """Counts the commands for which ``matching`` holds; only they can be struck by a fault."""

    def __init__(self, path: str, port: int, matching: Matches) -> None:
        self.seen = 0
        self.connections = 0  # accepted so far
        self.delay = 0.0  # seconds, each way
        self.rate = 0.0  # bytes a second of replies, over all connections; 0: no limit
        self.replied = 0  # bytes of replies that were passed on
        self._link = asyncio.Lock()
        self._path, self._port, self._matching = path, port, matching
        self._faults: list[Fault] = []
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._down.set()
        self._pairs: set[_Pair] = set()
        self._listener: asyncio.Server | None = None
        self._own_port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._own_port}"

    def drop_reply(self, number: int = 1) -> Fault:
        """The ``number``-th matching command from now on is executed; its reply never arrives."""
        return self._plant(Fault(self.seen + number, 0.0))

    def cut_reply(self, number: int = 1) -> Fault:
        """The same, but half of the reply arrives."""
        return self._plant(Fault(self.seen + number, 0.5))

    def swallow(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing through in these directions, without closing anything."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def forget(self) -> None:
        """Let nothing through on the connections there are, as a gateway that forgot them does."""
        for pair in self._pairs:
            pair.is_forgotten = True

    def heal(self) -> None:
        self._up.set()
        self._down.set()

    def cut(self) -> None:
        """Reset all connections there are."""
        for pair in list(self._pairs):
            pair.reset()

    async def refuse(self) -> None:
        """Take no new connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            await asyncio.sleep(0)

    async def accept(self) -> None:
        """Take new connections, at the same port as before."""
        self._listener = await asyncio.start_server(
            self._serve, "127.0.0.1", self._own_port, reuse_address=True
        )
        self._own_port = self._listener.sockets[0].getsockname()[1]

    def _plant(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        directions: list[asyncio.Task[None]] = []
        pair = _Pair(writer)
        self._pairs.add(pair)
        try:
            if self._path:
                replies, pair.server = await asyncio.open_unix_connection(self._path)
            else:
                replies, pair.server = await asyncio.open_connection("127.0.0.1", self._port)
            directions = [
                asyncio.create_task(self._upward(reader, pair, pair.server)),
                asyncio.create_task(self._downward(replies, pair)),
            ]
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # there is no server: the client is told so by the reset
        finally:
            for direction in directions:
                direction.cancel()
            pair.reset()
            self._pairs.discard(pair)

    async def _upward(
        self, reader: asyncio.StreamReader, pair: _Pair, server: asyncio.StreamWriter
    ) -> None:
        async for command in _frames(reader):
            fault = None
            if self._matching(command):
                self.seen += 1
                fault = next((f for f in self._faults if f.number == self.seen), None)
            pair.asked.append(fault)
            if not pair.is_forgotten:
                await self._pass(command, self._up, server)

    async def _downward(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        async for reply in _frames(reader):
            fault = pair.asked.popleft() if pair.asked else None
            if fault is not None:
                pair.client.write(reply[: int(len(reply) * fault.share)])
                if fault.share:
                    await pair.client.drain()
                self._faults.remove(fault)
                fault.happened.set()
                return
            if self.rate:
                await self._trickle(reply, pair.client)
            else:
                await self._pass(reply, self._down, pair.client)

    async def _trickle(self, reply: bytes, to: asyncio.StreamWriter) -> None:
        """Pass a reply on at the rate of the link, which connections share piece by piece."""
        for start in range(0, len(reply), _PIECE):
            piece = reply[start : start + _PIECE]
            async with self._link:
                await asyncio.sleep(len(piece) / self.rate)
                await self._down.wait()
                self.replied += len(piece)
                to.write(piece)

    async def _pass(self, frame: bytes, gate: asyncio.Event, to: asyncio.StreamWriter) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        await gate.wait()
        to.write(frame)


class _Pair:
    """The two halves of one connection, and the commands that still await their replies."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None  # until it has been reached
        self.asked: deque[Fault | None] = deque()
        self.is_forgotten = False  # what comes from now on is lost

    def reset(self) -> None:
        for writer in filter(None, (self.client, self.server)):
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(
    *, path: str = "", port: int = 0, matching: Matches | bytes = b"FCALL"
) -> AsyncIterator[Proxy]:
    """A proxy in front of a socket or a port. ``matching`` may be the name of a command."""
    test = matching if callable(matching) else _named(matching)
    made = Proxy(path, port, test)
    await made.accept()
    try:
        yield made
    finally:
        await made.refuse()
        await _turns()  # what was accepted by then becomes a pair
        made.cut()
        made.heal()
        await _turns()  # the connections' own tasks end after their transports


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def _named(name: bytes) -> Matches:
    part = b"\r\n%b\r\n" % name.upper()
    return lambda command: part in command[:64].upper()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """What arrives, one command or reply at a time."""
    buffer = b""
    while True:
        end = _end(buffer, 0)
        if end is not None:
            yield buffer[:end]
            buffer = buffer[end:]
            continue
        try:
            chunk = await reader.read(65536)
        except OSError:
            return
        if not chunk:
            return
        buffer += chunk


def _end(buffer: bytes, start: int) -> int | None:
    """Where the item ends that starts here, if all of it is there."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return None
    kind, after = buffer[start : start + 1], line + 2
    if kind == b"$":
        size = int(buffer[start + 1 : line])
        end = after if size < 0 else after + size + 2
        return end if end <= len(buffer) else None
    if kind == b"*":
        at: int | None = after
        for _ in range(int(buffer[start + 1 : line])):
            at = _end(buffer, at) if at is not None else None
        return at
    return after
