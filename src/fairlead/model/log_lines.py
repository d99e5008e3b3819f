"""Lines that handlers keep with their task, and how they are stored.

They lie beside the checkpoint of the task, in one stored part. Workers send chunks of lines. A
broker appends them, reads nothing but the four bytes before each, and drops the oldest chunks of
too many. ``lua/write.lua`` does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, overload

import msgspec

from fairlead.model.argument_packing import unpack
from fairlead.model.codecs import Codecs
from fairlead.model.errors import InvalidInput

MAX_LINES = 500  # of a task that are kept
MAX_LOG = 64 * 1024  # bytes of them
MAX_CHUNK_LINES, MAX_CHUNK = 100, 16 * 1024  # lines and bytes that are appended at once
MAX_LINE = 4 * 1024  # bytes of a line with its fields
_LONGEST = 2_000  # characters of its text

_MARK = b"\xc1\x00"  # no checkpoint begins so, nor does the name of a codec have no letters
_SIZE = Struct("<I")  # of the checkpoint
_NONE = 2**32 - 1  # instead of its size: there is none
_HEAD = Struct("<II")  # of the log: how many lines were dropped, how many there are
_CHUNK = Struct("<HH")  # before the lines of a chunk: how many; how many went before they were sent
_ENTRY = Struct("<IHH")  # the same in a log, behind the size of the lines


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that a handler kept with its task."""

    at: float
    """Unix seconds, by the clock of the worker."""
    attempt: int
    """The attempt that wrote it."""
    text: str
    """What it says."""
    fields: dict[str, Any] = {}
    """What was given with it, as plain data."""


class LogLines(msgspec.Struct, frozen=True):
    """The lines of a task, oldest first. ``dropped`` is how many older ones are gone."""

    lines: tuple[LogLine, ...] = ()
    """The lines that are kept, oldest first."""
    dropped: int = 0
    """How many older ones are not kept any more."""

    def __iter__(self) -> Iterator[LogLine]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> LogLine: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LogLine, ...]: ...
    def __getitem__(self, index: int | slice) -> LogLine | tuple[LogLine, ...]:
        return self.lines[index]


_encode = msgspec.msgpack.Encoder().encode


def packed_line(at: float, attempt: int, text: str, fields: bytes) -> bytes:
    """Return a line as bytes; ``fields`` are packed. What is too long is cut."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    text = text.encode("utf-8", "replace").decode()  # without lone surrogates
    head = b"\x94" + _encode(at) + _encode(attempt) + _encode(text)
    if len(head) + len(fields) > MAX_LINE:
        fields = _encode({"fields": f"left out: {len(fields)} bytes"})
    return head + fields


def chunk_of(lines: Sequence[bytes], missed: int, codecs: Codecs | None) -> bytes:
    """Return packed lines as a worker sends them; ``missed`` are those that it dropped before."""
    data = b"\xdc" + len(lines).to_bytes(2) + b"".join(lines)
    if codecs is not None:
        data = codecs.encode(data, "log lines", 2 * MAX_CHUNK)
    return _CHUNK.pack(len(lines), min(missed, 65_535)) + data


def is_chunk(data: bytes) -> bool:
    """Return whether these bytes may be a chunk: not empty, and within the bounds of one."""
    if not _CHUNK.size < len(data) <= _CHUNK.size + 2 * MAX_CHUNK:
        return False
    count: int = _CHUNK.unpack_from(data)[0]
    return 1 <= count <= MAX_CHUNK_LINES


def kept_parts(stored: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Return the checkpoint and the log of what is stored for both."""
    if stored is None or not stored.startswith(_MARK):
        return stored, None
    start = len(_MARK) + _SIZE.size
    (size,) = _SIZE.unpack_from(stored, len(_MARK))
    if size == _NONE:
        return None, stored[start:]
    return stored[start : start + size], stored[start + size :]


def with_checkpoint(stored: bytes | None, checkpoint: bytes) -> bytes:
    """Return what is stored once there is another checkpoint."""
    return _joined(checkpoint, kept_parts(stored)[1])


def with_lines(stored: bytes | None, chunk: bytes) -> bytes:
    """Return what is stored with more lines; the oldest chunks of too many are dropped."""
    checkpoint, log = kept_parts(stored)
    dropped, lines = _HEAD.unpack_from(log) if log else (0, 0)
    count, missed = _CHUNK.unpack_from(chunk)
    entries = (log[_HEAD.size :] if log else b"") + _SIZE.pack(len(chunk) - _CHUNK.size) + chunk
    dropped, lines, place = dropped + missed, lines + count, 0
    while lines > MAX_LINES or len(entries) - place > MAX_LOG:
        size, count, _ = _ENTRY.unpack_from(entries, place)
        place += _ENTRY.size + size
        dropped, lines = dropped + count, lines - count
    return _joined(checkpoint, _HEAD.pack(min(dropped, _NONE), lines) + entries[place:])


def read_log(log: bytes | None, codecs: Codecs | None = None) -> LogLines:
    """Return the lines of a stored log; ``CodecError`` if they cannot be decoded here."""
    if not log:
        return LogLines()
    dropped, _ = _HEAD.unpack_from(log)
    place, lines = _HEAD.size, []
    while place < len(log):
        size, _, _ = _ENTRY.unpack_from(log, place)
        place += _ENTRY.size
        plain = unpack(log[place : place + size], "the log lines", codecs)
        try:
            lines += msgspec.convert(plain, list[LogLine], builtin_types=(bytes,))
        except msgspec.ValidationError:
            raise InvalidInput("not stored log lines") from None
        place += size
    return LogLines(tuple(lines), dropped)


def _joined(checkpoint: bytes | None, log: bytes | None) -> bytes:
    if log is None:
        return checkpoint or b""
    size = _NONE if checkpoint is None else len(checkpoint)
    return _MARK + _SIZE.pack(size) + (checkpoint or b"") + log
