"""Reading records back from segments."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from fairlead.spool.frames import FRAME, Header, Reference, is_referring, read_frame
from fairlead.spool.records import Kind


class Where(NamedTuple):
    """Where a pending record is, in a file that is open for whoever reads it."""

    fd: int
    header: Header
    sequence: int
    start: int
    end: int  # a place behind its end; there may be others' bytes in between
    is_started: bool


class Stored(NamedTuple):
    """A record as it was read; with ``kind`` None if it could not be."""

    sequence: int
    kind: Kind | None
    payload: bytes  # what was read in its place, if it could not be
    at: float
    is_started: bool = False
    about: Reference | None = None


def read_records(places: Iterable[Where]) -> list[Stored]:
    """Read records; those that the disk does not give are left out."""
    found = []
    for where in places:
        try:
            data = os.pread(where.fd, where.end - where.start, where.start)
        except OSError:
            continue
        found.append(_record(where, data))
    return found


def _record(where: Where, data: bytes) -> Stored:
    frame = read_frame(where.header, data, 0)
    if frame is None:
        return Stored(where.sequence, None, data, 0.0)
    payload, about = data[FRAME : frame.end], None
    if is_referring(frame.kind):
        about, payload = Reference.split(payload)
    return Stored(where.sequence, frame.kind, payload, frame.at, where.is_started, about)
