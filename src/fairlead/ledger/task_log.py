"""What happened to a task, as its row keeps it: chunks of entries, one behind the other.

A chunk is its length (four bytes, big-endian) and a MessagePack array of entries. An entry is an
array whose empty fields at the end are left out; later releases add fields at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

MAX_LOG = 64 * 1024  # bytes of one row; what happens after that is in the row's state only
MAX_ERROR = 2 * 1024  # bytes of the text of one error
_HEAD = 4
_NEARLY = MAX_LOG - 4 * 1024

_encode = msgspec.msgpack.Encoder().encode


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One thing that happened to a task."""

    at: float  # unix seconds, by the broker's clock
    kind: str  # of the event: fairlead.model.events
    state: str = ""  # that the task was in afterwards
    attempt: int = 0
    worker: str = ""  # the incarnation that began the attempt
    reason: str = ""
    error_type: str = ""
    error: str = ""  # its text, cut


def pack_log(entries: Sequence[Sequence[Any]]) -> bytes:
    """One chunk, of fields in the order of ``LogEntry``."""
    data = _encode(entries)
    return len(data).to_bytes(_HEAD, "big") + data


def unpack_log(data: bytes) -> list[LogEntry]:
    """All entries of a row; those of a chunk that cannot be read are left out."""
    found: list[LogEntry] = []
    place = 0
    while place + _HEAD <= len(data):
        begin = place + _HEAD
        place = begin + int.from_bytes(data[place:begin], "big")
        try:
            found += _decode(data[begin:place])
        except msgspec.MsgspecError:
            continue
    return found


def is_full(data: bytes) -> bool:
    """Whether a log is so long that something may have been left out of it."""
    return len(data) > _NEARLY


_decode = msgspec.msgpack.Decoder(list[LogEntry]).decode
