"""The bytes of a spool's files: a header, twice, and then one frame for each record.

    header   magic 8, version 2, owner 16, first sequence 8, marker 4, boot 16, offset 8, CRC 4
    frame    CRC 4, marker 4, length 4, kind 1, sequence 8, time 8, payload        (29 bytes + it)

Numbers are little-endian, and a CRC covers all of the frame behind it, or of the header before it.
The marker is chosen by dice for each file. A reader that meets a bad frame looks for the next
marker, and since no caller knows it, no payload can pass for a frame.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from fairlead.spool.records import Kind

_MAGIC = b"FLSPOOL\n"
_VERSION = 1
_HEAD = struct.Struct("<8sH16sQ4s16sd")
_CRC = struct.Struct("<I")
_BODY = struct.Struct("<4sIBQd")  # marker, length, kind, sequence, time
_START = struct.Struct("<I4sIBQd")  # a frame up to its payload
_REFERENCE = struct.Struct("<16sQ")
_KINDS: dict[int, Kind] = {kind.value: kind for kind in Kind}
_REFERRING = frozenset({Kind.REJECTED, Kind.LOCAL_STARTED, Kind.LOCAL_DONE})

HEADER = 2 * (_HEAD.size + _CRC.size)
FRAME = _START.size


class Header(NamedTuple):
    """What a file says of itself."""

    owner: bytes  # the uuid of the process that wrote the records, whoever has them now
    first: int  # sequence of the first record, as that owner counted
    marker: bytes
    version: int = _VERSION
    boot: bytes = bytes(16)  # the start of the machine in which it was begun
    offset: float = 0.0  # the times of its records, less the seconds since that start

    @property
    def is_known(self) -> bool:
        """Whether this version of Fairlead can read the file."""
        return self.version == _VERSION

    def encode(self) -> bytes:
        """Return the bytes that a file begins with: the header and a copy of it."""
        head = _HEAD.pack(
            _MAGIC, self.version, self.owner, self.first, self.marker, self.boot, self.offset
        )
        return 2 * (head + _CRC.pack(zlib.crc32(head)))


class Frame(NamedTuple):
    """One record of a file, as it stands there."""

    offset: int
    end: int
    kind: Kind
    sequence: int
    at: float


class Reference(NamedTuple):
    """Another record, by what never changes: who counted it, and its number there.

    Payloads of REJECTED, LOCAL_STARTED and LOCAL_DONE begin with one.
    """

    owner: bytes
    sequence: int

    def encode(self) -> bytes:
        """Return the bytes that stand in front of the payload."""
        return _REFERENCE.pack(*self)

    @classmethod
    def split(cls, payload: bytes) -> tuple[Reference, bytes]:
        """Return the reference in front of a payload, and the payload."""
        return cls(*_REFERENCE.unpack_from(payload)), payload[_REFERENCE.size :]


class Scan(NamedTuple):
    """What a reader found in a file."""

    frames: list[Frame]
    bad: list[tuple[int, int]]  # from, to: unreadable, with readable frames behind it
    end: int  # of the last readable frame; whatever is behind it is a torn tail, or unreadable


def new_header(owner: bytes, first: int, boot: bytes, offset: float) -> Header:
    """Return the header of a new file."""
    return Header(owner, first, os.urandom(4), boot=boot, offset=offset)


def read_header(data: bytes) -> Header | None:
    """Return the header of a file, from whichever copy is sound; None if neither is."""
    for offset in (0, HEADER // 2):
        head = data[offset : offset + _HEAD.size]
        told = data[offset + _HEAD.size : offset + HEADER // 2]
        if len(told) == _CRC.size and _CRC.unpack(told)[0] == zlib.crc32(head):
            magic, version, owner, first, marker, boot, ahead = _HEAD.unpack(head)
            if magic == _MAGIC:
                return Header(owner, first, marker, version, boot, ahead)
    return None


def is_referring(kind: int) -> bool:
    """Return whether payloads of this kind begin with a reference."""
    return kind in _REFERRING


def encode(header: Header, kind: int, sequence: int, at: float, parts: Sequence[bytes]) -> bytes:
    """Return the frame of one record, whose payload is the parts put together."""
    body = _BODY.pack(header.marker, sum(map(len, parts)), kind, sequence, at)
    crc = zlib.crc32(body)
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join((_CRC.pack(crc), body, *parts))


def read_frame(header: Header, data: bytes | memoryview, offset: int) -> Frame | None:
    """Return the frame that begins at an offset; None if it is not there whole and sound."""
    if offset + FRAME > len(data):
        return None
    crc, marker, length, number, sequence, at = _START.unpack_from(data, offset)
    end = offset + FRAME + length
    kind = _KINDS.get(number)
    if marker != header.marker or end > len(data) or kind is None:
        return None
    if zlib.crc32(data[offset + 4 : end]) != crc:
        return None
    if length < _REFERENCE.size and kind in _REFERRING:
        return None
    return Frame(offset, end, kind, sequence, at)


def scan(header: Header, data: bytes, *, start: int = HEADER, ordered: bool = True) -> Scan:
    """Find all readable frames from an offset; with ``ordered``, those whose sequences grow."""
    view = memoryview(data)
    frames: list[Frame] = []
    bad: list[tuple[int, int]] = []
    place = good = start
    last = header.first - 1
    while 0 <= place < len(data):
        frame = read_frame(header, view, place)
        if frame is None or (ordered and frame.sequence <= last):
            place = data.find(header.marker, place + 5) - 4
            continue
        if frame.offset > good:
            bad.append((good, frame.offset))
        frames.append(frame)
        last = frame.sequence
        place = good = frame.end
    return Scan(frames, bad, good)
