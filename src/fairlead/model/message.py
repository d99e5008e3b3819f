"""The stored unit: a version, a fixed header that brokers read, a body that they never do.

Stored messages are arrays that only grow at the end. A reader keeps trailing fields it does not
know, and hands a message of a newer version back as unroutable instead of guessing at its body.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.model.errors import InvalidInput

VERSION = 1
LEVELS = ("critical", "high", "normal", "low")  # the priorities of an app that names no others
#: The names of all levels; a message's level is an index into these. Apps with more than four
#: priorities call them by labels of their own.
LEVEL_NAMES = (*LEVELS, "level-4", "level-5", "level-6", "level-7")

MAX_CRASHES = 100
_RUNS, _CRASHES = 2**11, 2**7  # what the two limits in the flags stay below
_HEADER = 10  # fields of a message of this version, in their stored order
_JUST_HEADER = 0x90 | _HEADER  # how an array of so many fields begins in msgpack
encode = _encode = msgspec.msgpack.Encoder().encode  # a value, as it stands in stored bytes
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode
UNREADABLE = (ValueError, TypeError, RecursionError)  # what msgspec raises for bad bytes


# No cycle can be made of it, a body or a loan, and thousands come at once: the collector need not
# know them.
class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A task as it is stored: written once, never changed.

    The bounds hold for what is read; ``broker.submission_checks`` is for what callers made.
    """

    version: Annotated[int, Meta(ge=1)] = VERSION
    id: str
    queue: str
    tenant: str
    level: Annotated[int, Meta(ge=0, le=len(LEVEL_NAMES) - 1)] = 2  # index into LEVEL_NAMES
    # What one dispatch takes from the tenant's share; finite.
    cost: Annotated[float, Meta(gt=0, le=sys.float_info.max)] = 1.0
    limiters: tuple[str, ...] = ()  # named limiters it needs room in, all or none
    flags: int = 0  # how often it may run (run_limits); not part of the content
    body: bytes  # an encoded Body; opaque to brokers
    trace: bytes = b""  # an encoded Trace: where it came from, not part of the content
    extra: tuple[Any, ...] = ()  # trailing fields of a later release, kept as they are

    def encode(self) -> bytes:
        """The stored form."""
        return _encode(
            (
                self.version,
                self.id,
                self.queue,
                self.tenant,
                self.level,
                self.cost,
                self.limiters,
                self.flags,
                self.body,
                self.trace,
                *self.extra,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Message:
        """The message, whatever its version: the header's place never changes."""
        try:
            if data and data[0] == _JUST_HEADER:
                return _decode_message(data)
            # A later release wrote more fields: msgspec would take the first for ``extra``.
            fields = _decode_any(data)
            if len(fields) < _HEADER:
                raise ValueError(f"it has {len(fields)} of {_HEADER} fields")
            message = _decode_message(_encode(fields[:_HEADER]))
            return msgspec.structs.replace(message, extra=tuple(fields[_HEADER:]))
        except UNREADABLE as error:
            raise InvalidInput(f"not a stored message: {error}") from None

    def without_body(self) -> Message:
        """What is left of a message that will never run."""
        return msgspec.structs.replace(self, body=b"", trace=b"")

    def same_content(self, other: Message) -> bool:
        """Whether both ask for the same work; where they came from does not matter."""
        return (
            self.body == other.body
            and self.queue == other.queue
            and self.tenant == other.tenant
            and self.level == other.level
            and self.cost == other.cost
            and self.limiters == other.limiters
            and self.version == other.version
        )


def shares_head(message: Message, like: Message) -> bool:
    """Whether all but the id and the contents are the same objects, as calls of one task share."""
    return message.tenant is like.tenant and shares_options(message, like)


def shares_options(message: Message, like: Message) -> bool:
    """The same, whatever their tenants are."""
    return (
        message.queue is like.queue
        and message.level is like.level
        and message.cost is like.cost
        and message.limiters is like.limiters
        and message.flags is like.flags
        and message.version is like.version
    )


def run_flags(max_retries: int, max_crashes: int | None) -> int:
    """The flags of a message that may run so often: what a broker asks when a worker is gone."""
    return max_retries + 1 + (0 if max_crashes is None else (max_crashes + 1) * _RUNS)


def run_limits(flags: int) -> tuple[int | None, int | None]:
    """How often a task may run, and how many crashes in a row it may survive; None: not said."""
    runs, crashes = flags % _RUNS, flags // _RUNS % _CRASHES
    return runs or None, crashes - 1 if crashes else None


class Body(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a worker needs to run one attempt; brokers never look inside."""

    task: str
    arguments: bytes  # values.pack_arguments
    task_version: int = 1
    max_retries: int | None = None  # None: as registered
    timeout: float | None = None  # seconds; None: as registered
    retention: float | None = None  # seconds; None: as registered, else the queue's
    # Of a task that reads results: whose they are, id and name of the task ("" if nobody said it).
    # A third text is the id that encoded arguments have for it, where that is another.
    depends_on: tuple[tuple[str, ...], ...] = ()

    def encode(self) -> bytes:
        """The bytes that travel in ``Message.body``; most have no field for dependencies."""
        if self.depends_on:
            return _encode(self)
        fields = self.task, self.arguments, self.task_version
        return _encode((*fields, self.max_retries, self.timeout, self.retention))

    @classmethod
    def decode(cls, data: bytes) -> Body:
        """The body of a message of this version."""
        try:
            return read_body(data)
        except UNREADABLE as error:
            raise InvalidInput(f"not a stored body: {type(error).__name__}") from None


class BodyFrame:
    """A body around its arguments: what calls of one kind share, encoded once.

    ``before``, the arguments by ``encode``, and ``after`` are together what ``Body.encode`` gives.
    """

    __slots__ = ("after", "before")

    def __init__(self, body: Body, depends_on: tuple[tuple[str, ...], ...] = ()) -> None:
        fields = body.task_version, body.max_retries, body.timeout, body.retention
        after = [*fields, depends_on] if depends_on else fields
        self.before = bytes([0x90 + 2 + len(after)]) + _encode(body.task)
        self.after = b"".join(map(_encode, after))

    def around(self, arguments: bytes) -> bytes:
        """Return the bytes that ``Body.encode`` would with these arguments."""
        return self.before + _encode(arguments) + self.after


def task_name(body: bytes) -> str:
    """The name of the task in a body, or in the beginning of one; empty if it is not there.

    The name is the first field, so that whoever only shows it need not read the arguments.
    """
    kind = body[1] if len(body) > 1 and body[0] & 0xF0 == 0x90 else 0
    if 0xA0 <= kind <= 0xBF:  # MessagePack: a text of up to 31 bytes, 255, 65,535
        start, size = 2, kind - 0xA0
    elif kind == 0xD9:
        start, size = 3, int.from_bytes(body[2:3])
    elif kind == 0xDA:
        start, size = 4, int.from_bytes(body[2:4])
    else:
        return ""
    return body[start : start + size].decode(errors="replace")


class Trace(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a task came from: travels with it, is not part of its content.

    A message whose task came from nowhere and has no headers has none: its correlation is its id.
    """

    correlation_id: str
    headers: dict[str, str] = {}

    def encode(self) -> bytes:
        """The bytes that travel in ``Message.trace``."""
        return _encode(self)

    @classmethod
    def of(cls, message: Message) -> Trace:
        """The trace of a message, which may not have been stored."""
        try:
            return read_trace(message.trace) if message.trace else cls(correlation_id=message.id)
        except UNREADABLE as error:
            raise InvalidInput(f"not a stored trace: {type(error).__name__}") from None


_decode_message = msgspec.msgpack.Decoder(Message).decode
#: ``Body.decode`` for those who mind its call: raises one of ``UNREADABLE``.
read_body = msgspec.msgpack.Decoder(Body).decode
read_trace = msgspec.msgpack.Decoder(Trace).decode  # for those that are stored


class ErrorInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An error as text. It is never turned back into an exception object."""

    type: str
    """The name of the class of the exception."""
    message: str
    """Its text."""
    traceback: str = ""
    """Its traceback; empty: none."""


class Leased(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message on loan to one incarnation; ``token`` proves the loan in every write."""

    message: Message
    token: int
    attempt: int  # 1 for the first run; attempts that were not burnt do not count
    generation: int = 0  # how often an operator put it back from the dead
    crashes: int = 0  # processes it took down in a row; from 2 on it should run alone
    unroutable: int = 0  # hand-backs in a row because no handler knew it
    started: bool = True  # granted to run at once, rather than to be held
    enqueued_at: float = 0.0  # unix seconds, the broker's clock
    deadline_at: float | None = None  # must have started by then; the broker's clock
