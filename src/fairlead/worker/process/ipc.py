"""What the processes of a worker say to each other: small messages over a socket pair.

Each is its length in four bytes and then MessagePack. Bytes that are no message end the connection:
both ends are the same release, so nothing but a mistake could have sent them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from fairlead.broker.requests import BeatReply
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from fairlead.telemetry.counters import Counted

_LENGTH = struct.Struct("<I")
_LIMIT = 64 * 1024 * 1024  # bytes; a result is far smaller
_BEHIND = 256 * 1024  # bytes that the other end has yet to read
_FLUSH = 2.0  # seconds that it has for them when this one ends


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Supervisor to child, first: what to run, and how."""

    app: str  # module:attribute
    url: str | None = None  # of --url: the app must not name another one
    terminal: bool = False  # somebody sees what it says
    queues: dict[str, float] | None = None
    strict: bool = False
    concurrency: int = 10
    threads: int = 10
    slots: int = 2
    grace: float = 30.0
    lease: float | None = None
    max_tasks: int = 0  # 0: no limit
    max_rss: int = 0  # bytes; 0: no limit
    max_age: float = 0.0  # seconds; 0: no limit
    task_timeout: float | None = None  # of tasks that say nothing of theirs; None: the app's
    overdue: float = 60.0  # seconds that a handler may go on after it was told to stop
    quiet: bool = False  # it must not fetch
    paused: bool = False  # nor by an order that the child before it had
    rows: int = 0  # of the shared state
    stacks: int = -1  # file descriptor that stacks are written to
    shared_state: int = -1  # its file descriptor
    log_format: str = "auto"
    log_level: str = "info"
    log_tasks: bool = False
    log_errors: bool = False
    first: bool = True  # no child before it, nor beside it
    debug: bool = False  # show the whole traceback of an app that cannot be imported
    metrics: bool = False  # it is to count attempts, and say so
    hooks: bool = True  # of the app: call them here
    until_empty: bool = False  # end once nothing is queued where it fetches from


class Introduction(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Child to supervisor, once it knows the app: who it is and where its broker is."""

    incarnation: str
    url: str  # may hold a password: never logged
    lease: float
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    versions: dict[str, int]  # of those tasks that are not in their first
    places: tuple[tuple[str, str], ...]  # of each task: file and name of its function
    catalog: bytes = b""  # what is told of these tasks; empty: nothing
    concurrency: int
    started_at: float
    spool: str = ""  # the directory in which it keeps outcomes; empty: it keeps none

    def task_of(self, number: int) -> str:
        """The name of a task by its place; empty if it has none."""
        return self.tasks[number] if number < len(self.tasks) else ""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Child to supervisor: it cannot begin, and will not the next time either."""

    text: str
    code: int


class Retiring(msgspec.Struct, frozen=True, tag=True):
    """Child to supervisor: it should be replaced, or only end."""

    why: str
    replaced: bool = True


class CountersReport(msgspec.Struct, frozen=True, tag=True):
    """Child to supervisor, if the plan asks for it: what it counted so far."""

    counted: Counted


class HeartbeatReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Supervisor to child after each heartbeat: what the broker answered, None if it did not."""

    reply: BeatReply | None = None
    took: float = 0.0  # seconds since the heartbeat began


class Order(msgspec.Struct, frozen=True, tag=True):
    """Supervisor to child: be ``quiet`` (fetch no more), ``resume``, ``stop`` in good time,
    ``leave`` now.
    """

    what: Literal["quiet", "resume", "stop", "leave"]


class SlotPlan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to slot process, first: where the tasks are, and under whose lease they run."""

    app: str  # module:attribute
    path: list[str]  # for imports
    incarnation: str = ""
    patience: float = 2.0
    task_timeout: float | None = None  # as in the worker
    log_format: str = ""  # empty: leave logging alone
    log_level: str = "info"


class Run(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to slot process: run this."""

    lease: Leased
    dice: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Worker to slot process: end what runs, for this reason."""

    why: Literal["timeout", "cancel", "release", "lost"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Slot process to worker: it ran, and this follows; None if there is nothing to say."""

    settlement: Settlement | None
    last: bool = False  # something of it goes on: the process ends


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Slot process to worker: ready for work."""


Message = (
    Plan | Introduction | Refusal | Retiring | CountersReport | HeartbeatReport | Order | SlotPlan
    | Run | Stop | Outcome | Ready
)  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Channel:
    """One end of a socket pair, on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """The channel over one end of the pair, which it owns from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send, without waiting: the other end reads all the time, or is about to be killed."""
        if not self._writer.is_closing():
            self._writer.write(framed(message))

    @property
    def is_behind(self) -> bool:
        """Whether the other end has not read for some time: what may wait should."""
        return self._writer.transport.get_write_buffer_size() > _BEHIND

    async def receive(self) -> Any:
        """The next message; None once the other end is gone."""
        try:
            length = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))[0]
            return _decode(await self._reader.readexactly(_checked(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Return when all that was sent is on its way, or the other end does not read."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_FLUSH):
                await self._writer.drain()

    def close(self) -> None:
        """Close this end; the other sees it."""
        self._writer.close()


def framed(message: Message) -> bytes:
    """A message as it travels."""
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


def receive_now(end: socket.socket) -> Any:
    """The next message, read without a loop; None once the other end is gone."""
    head = _exactly(end, _LENGTH.size)
    if head is None:
        return None
    body = _exactly(end, _checked(_LENGTH.unpack(head)[0]))
    return None if body is None else _decode(body)


def _exactly(end: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def _checked(length: int) -> int:
    if length > _LIMIT:
        raise ValueError(f"a message of {length} bytes; the limit is {_LIMIT}")
    return int(length)


@contextlib.contextmanager
def closing(end: socket.socket) -> Iterator[None]:
    """Close it unless all goes well."""
    try:
        yield
    except BaseException:
        end.close()
        raise
