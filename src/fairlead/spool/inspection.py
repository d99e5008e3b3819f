"""Looking at the spools below a root without taking or changing anything.

What a living process writes or removes meanwhile may be seen or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fairlead.embedded.directory import LockFile
from fairlead.spool import files
from fairlead.spool.frames import FRAME, Frame, Reference, is_referring, read_header, scan
from fairlead.spool.process_folder import LOCK, QUARANTINE, owner_of, owners
from fairlead.spool.records import Kind, Record
from fairlead.spool.recovery import segments
from fairlead.spool.segment import Segment


class SpoolFolder(msgspec.Struct, frozen=True):
    """The spool of one process, dead or alive."""

    name: str
    pid: int  # 0 if nothing says
    host: str
    lives: bool
    depth: int  # records that are not confirmed
    rejected: int
    bytes: int
    oldest_at: float | None  # unix seconds, of those that are not confirmed
    broker: str  # which one is to get them; empty if nothing says


class _Seen(NamedTuple):
    """A record in the bytes of its file."""

    data: bytes
    frame: Frame
    sequence: int
    own: Reference

    @property
    def about(self) -> Reference | None:
        """The record that it says something about."""
        if not is_referring(self.frame.kind):
            return None
        return Reference.split(self.data[self.frame.offset + FRAME : self.frame.end])[0]

    def record(self, *, started: bool) -> Record:
        payload = self.data[self.frame.offset + FRAME : self.frame.end]
        if is_referring(self.frame.kind):
            payload = Reference.split(payload)[1]
        return Record(self.sequence, self.frame.kind, payload, self.frame.at, started)


def folders(root: Path) -> list[SpoolFolder]:
    """Return what processes have in their spools; the oldest folder first."""
    found = []
    for name in owners(root):
        folder = root / name
        owner = owner_of(folder)
        times = [seen.frame.at for seen, _ in _waiting(folder)]
        found.append(
            SpoolFolder(
                name=name,
                pid=owner.pid,
                host=owner.host,
                lives=_lives(folder),
                depth=len(times),
                rejected=sum(1 for _ in _seen(folder, "rejected")),
                bytes=_bytes(folder),
                oldest_at=min(times, default=None),
                broker=owner.broker,
            )
        )
    return found


def stored(root: Path, name: str, *, rejected: bool = False) -> Iterator[Record]:
    """Iterate over what is not confirmed in one folder, or over the rejected records there.

    One file at a time is in memory.
    """
    if rejected:
        for seen in _seen(root / name, "rejected"):
            yield seen.record(started=False)
    else:
        for seen, started in _waiting(root / name):
            yield seen.record(started=started)


def put_aside(root: Path) -> int:
    """Return how many pieces of files are in the quarantine."""
    with contextlib.suppress(OSError):
        return sum(1 for _ in (root / QUARANTINE).iterdir())
    return 0


def _waiting(folder: Path) -> Iterator[tuple[_Seen, bool]]:
    """Iterate over what is not confirmed, and whether it was started."""
    over: set[Reference] = set()
    started: set[Reference] = set()
    for stream in ("rejected", "work"):
        for seen in _seen(folder, stream):
            if (about := seen.about) is not None:
                (started if seen.frame.kind is Kind.LOCAL_STARTED else over).add(about)
    for seen in _seen(folder, "work"):
        if seen.own not in over and seen.frame.kind is not Kind.LOCAL_STARTED:
            yield seen, seen.own in started


def _seen(folder: Path, stream: str) -> Iterator[_Seen]:
    """Iterate over the records of a stream that are not marked as confirmed."""
    for path in _segments(folder, stream):
        try:
            data = files.read(path)
            header = read_header(data)
            if header is None or not header.is_known:
                continue
            marked = Segment(path, header, header.first).marked()
        except OSError:  # its owner has removed it, or another one has taken it
            continue
        base = int(path.stem.rpartition("-")[2], 16) - header.first
        for frame in scan(header, data).frames:
            if frame.sequence not in marked:
                own = Reference(header.owner, frame.sequence)
                yield _Seen(data, frame, base + frame.sequence, own)


def _segments(folder: Path, stream: str) -> list[Path]:
    """Return the segments of a stream in a folder that may go at any moment."""
    try:
        return segments(folder, stream)
    except OSError:  # its owner has removed it, or another one has taken it
        return []


def _lives(folder: Path) -> bool:
    """Return whether a process has the lock of a folder."""
    if not (folder / LOCK).exists():  # opening it would make it
        return False
    lock = LockFile(folder / LOCK)
    try:
        return lock.is_held()
    except OSError:
        return False
    finally:
        lock.close()


def _bytes(folder: Path) -> int:
    found = 0
    for path in _segments(folder, "*"):
        with contextlib.suppress(OSError):
            found += path.stat().st_size
    return found
