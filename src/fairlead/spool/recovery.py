"""Reading the segments that a dead process left.

What is readable stays, whatever is wrong around it. What is not readable at the end of the last
segment is what the process was writing when it died: nobody was told that it is stored, and it is
cut off. Anything else that is not readable was damaged later; it is put into the quarantine.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fairlead.spool import files
from fairlead.spool.frames import (
    FRAME,
    HEADER,
    Frame,
    Header,
    Reference,
    Scan,
    is_referring,
    read_header,
    scan,
)
from fairlead.spool.records import Kind
from fairlead.spool.segment import AWAITED, GONE, HELD, Segment

_log = logging.getLogger(__name__)


class Newer(Exception):
    """A file was written by a later version of Fairlead, and is left alone."""


class Link(NamedTuple):
    """A record that says something about another one."""

    kind: Kind
    about: Reference
    own: Reference


class Found(NamedTuple):
    """A segment as it was found, and what its records say about others."""

    segment: Segment
    links: list[Link]


class Quarantine:
    """Where unreadable bytes go; counts them."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self.count = 0

    def keep(self, source: Path, offset: int, data: bytes) -> bool:
        """Put bytes of a file aside; return whether they are on the disk there."""
        name = f"{source.parent.name}-{source.stem}-{offset}.bad"
        self._note(source, offset, len(data), name)
        try:
            target = self._folder() / name
            if not target.exists():
                files.replace(target, [data])
        except OSError as error:
            _log.warning("the spool cannot put unreadable bytes aside: %s", error.strerror)
            return False
        return True

    def move(self, source: Path) -> None:
        """Put a whole file aside, of which nothing can be read."""
        name = f"{source.parent.name}-{source.name}.bad"
        self._note(source, 0, source.stat().st_size, name)
        source.rename(self._folder() / name)

    def lose(self, path: Path, count: int) -> None:
        """Count records whose file is gone."""
        self.count += count
        _log.error(
            "a file of the spool was removed with %d records that are not delivered: %s",
            count, path,
        )  # fmt: skip

    def _note(self, source: Path, offset: int, length: int, name: str) -> None:
        self.count += 1
        _log.error(
            "%d bytes of a spool cannot be read and are put aside: %s at %d, kept as %s",
            length, source, offset, name,
        )  # fmt: skip


def segments(folder: Path, stream: str) -> list[Path]:
    """Return the segments of a stream in a folder, by their first sequence."""
    return sorted(folder.glob(f"{stream}-*.segment"))


def found_bytes(folder: Path) -> int:
    """Return how many bytes the segments in a folder have."""
    return sum(path.stat().st_size for path in folder.glob("*.segment"))


def recover(folder: Path, stream: str, quarantine: Quarantine) -> list[Found]:
    """Read, and mend, the segments of a stream in a folder that nobody else uses.

    Raises ``Newer`` before anything is changed if one of them is of a later version, and
    ``OSError`` if the disk does not let them be read.
    """
    paths = segments(folder, stream)
    for path in paths:
        with path.open("rb") as file:
            header = read_header(file.read(HEADER))
        if header is not None and not header.is_known:
            raise Newer(path)
    for rest in folder.glob(f"{stream}-*.new"):  # of a rewrite that was not finished
        rest.unlink(missing_ok=True)
    found = [_read(path, quarantine, is_last=path == paths[-1]) for path in paths]
    return [each for each in found if each is not None]


def state_of(kind: Kind) -> int:
    """Return the state of a record that nothing else is known of."""
    return HELD if kind is Kind.LOCAL_STARTED else AWAITED


def _read(path: Path, quarantine: Quarantine, *, is_last: bool) -> Found | None:
    data = files.read(path)
    header = read_header(data)
    if header is None:
        if len(data) <= HEADER:  # it was being made; there is no record in it
            path.unlink()
        else:
            quarantine.move(path)
        return None
    result = scan(header, data)
    segment = Segment(path, header, header.first)
    marked = segment.marked()
    links = _links(header, data, result.frames, marked)
    frames = _mend(path, header, data, result, quarantine, is_last=is_last)
    for frame in frames:
        segment.add(frame, GONE if frame.sequence in marked else state_of(frame.kind))
    return Found(segment, links)


def _links(header: Header, data: bytes, frames: list[Frame], marked: set[int]) -> list[Link]:
    """Return what records say about others.

    That a submission was done or rejected counts also if the record that says so is confirmed:
    the mark of the submission may be lost.
    """
    links = []
    for frame in frames:
        started = frame.kind is Kind.LOCAL_STARTED
        if is_referring(frame.kind) and not (started and frame.sequence in marked):
            about, _ = Reference.split(data[frame.offset + FRAME : frame.end])
            links.append(Link(frame.kind, about, Reference(header.owner, frame.sequence)))
    return links


def _mend(
    path: Path,
    header: Header,
    data: bytes,
    result: Scan,
    quarantine: Quarantine,
    *,
    is_last: bool,
) -> list[Frame]:
    """Take what is not readable out of a file; return where its frames are then."""
    bad, frames = list(result.bad), result.frames
    if not is_last and result.end < len(data):
        bad.append((result.end, len(data)))
    if bad:
        kept = [quarantine.keep(path, start, data[start:end]) for start, end in bad]
        with _attempted(path):
            return rewrite(path, header, data, frames) if all(kept) else frames
    elif result.end < len(data):
        with _attempted(path):
            os.truncate(path, result.end)
    return frames


def rewrite(path: Path, header: Header, data: bytes, frames: list[Frame]) -> list[Frame]:
    """Write a file anew with these frames only; return where they are now."""
    moved, place = [], HEADER
    for frame in frames:
        length = frame.end - frame.offset
        moved.append(frame._replace(offset=place, end=place + length))
        place += length
    files.replace(path, [header.encode(), *(data[f.offset : f.end] for f in frames)])
    return moved


@contextlib.contextmanager
def _attempted(path: Path) -> Iterator[None]:
    """Go on with a file as it is if it cannot be mended: what is readable is known all the same."""
    try:
        yield
    except OSError as error:
        _log.warning("the spool cannot mend %s: %s", path, error.strerror)
