"""What goes into a spool and what comes out of it."""

from __future__ import annotations

import enum

import msgspec

_MIB = 1024 * 1024
_DAY = 86_400.0


class Kind(enum.IntEnum):
    """What a record is. The number is stored: none is ever used for something else."""

    SUBMISSION = 1  # a task that the broker is to get
    OUTCOME = 2  # how an attempt ended, that the broker is to get
    DONE = 3  # a checkpoint of the spool's own: these records are confirmed
    REJECTED = 4  # a record that the broker will never take, kept to be seen
    LOCAL_STARTED = 5  # this process is about to run the submission that ``about`` names
    LOCAL_DONE = 6  # it ran it, and the payload is all that is left to send


class Entry(msgspec.Struct, frozen=True):
    """Something to append.

    The payload is opaque. ``about`` is the sequence of the submission that a ``LOCAL_STARTED`` or
    ``LOCAL_DONE`` is about, and 0 for the others. Only SUBMISSION, OUTCOME, LOCAL_STARTED and
    LOCAL_DONE are appended; DONE and REJECTED are written by ``confirm`` and ``reject``.
    """

    kind: Kind
    payload: bytes
    about: int = 0


class Record(msgspec.Struct, frozen=True):
    """Something that was appended.

    ``started`` says of a submission that a ``LOCAL_STARTED`` about it was appended, and no
    ``LOCAL_DONE`` so far: the process that appended it runs it, or died with it.
    """

    sequence: int
    kind: Kind
    payload: bytes
    at: float  # unix seconds of the append; an adopted record keeps that of its first owner
    started: bool = False


class Rejection(msgspec.Struct, frozen=True):
    """The payload of a REJECTED record, encoded with ``encode``: why, and what was rejected."""

    code: str  # one word: "too_old", "conflict", ...
    message: str  # for people; holds no arguments
    kind: Kind  # of the rejected record
    payload: bytes  # of the rejected record
    at: float  # when that was appended, unix seconds

    def encode(self) -> bytes:
        """Return it as a payload."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> Rejection:
        """Return what ``encode`` made a payload of; raises ``msgspec.DecodeError``."""
        return msgspec.msgpack.decode(payload, type=cls)


class SpoolLimits(msgspec.Struct, frozen=True):
    """How much a spool holds. At the first two it refuses; it never drops the oldest."""

    max_bytes: int = 256 * _MIB  # on the disk, of one process
    max_count: int = 1_000_000  # records that are not confirmed
    max_age: float = 7 * _DAY  # seconds; older ones become rejected records, with code "too_old"


class SpoolStats(msgspec.Struct, frozen=True):
    """What a spool holds, as far as this process owns it."""

    depth: int  # records that are not confirmed
    bytes: int  # on the disk, with what is confirmed but not removed yet
    oldest_at: float | None  # unix seconds of the oldest that is not confirmed
    rejected: int  # records that are kept to be seen
    quarantined: int  # pieces of files that could not be read and were put aside
    adopted: int  # records that were taken over from dead processes
