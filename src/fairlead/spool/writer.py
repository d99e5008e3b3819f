"""Writes records to the open segment, and syncs them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairlead.spool import files
from fairlead.spool.clock import Clock
from fairlead.spool.frames import FRAME, HEADER, Frame, Reference, encode, new_header
from fairlead.spool.records import Kind
from fairlead.spool.segment import Segment

_log = logging.getLogger(__name__)

_REFERENCE = len(Reference(bytes(16), 0).encode())


class Draft(NamedTuple):
    """A record that is to be appended."""

    kind: Kind
    payload: bytes
    at: float  # by the steady clock
    about: Reference | None = None


def size_of(draft: Draft) -> int:
    """Return the bytes that a record takes on the disk."""
    return FRAME + len(draft.payload) + (0 if draft.about is None else _REFERENCE)


class Writer:
    """One segment, open to append to. Its caller sees to it that one thread does."""

    def __init__(self, path: Path, owner: bytes, first: int, clock: Clock) -> None:
        """Make the file. Raises ``OSError``."""
        header = new_header(owner, first, clock.boot, clock.offset())
        self.segment = Segment(path, header, first)
        self._clock = clock
        self._fd = files.create(path)

    def has_room(self, size: int, full: int) -> bool:
        """Return whether the file can take so many bytes, and tells the right time."""
        return self.segment.size + size <= full and not self._clock.is_set(self.segment.header)

    def append(self, first: int, drafts: Sequence[Draft]) -> list[Frame]:
        """Write records in one piece and return where they are, once they are on the disk.

        Raises ``OSError``: then ``distrust`` is all that may be called.
        """
        header = self.segment.header
        is_new = len(self.segment) == 0
        pieces = [header.encode()] if is_new else []
        place = HEADER if is_new else self.segment.size
        frames = []
        for sequence, draft in enumerate(drafts, first):
            about = () if draft.about is None else (draft.about.encode(),)
            at = header.offset + draft.at
            piece = encode(header, draft.kind, sequence, at, (*about, draft.payload))
            frames.append(Frame(place, place + len(piece), draft.kind, sequence, at))
            place += len(piece)
            pieces.append(piece)
        if os.fstat(self._fd).st_nlink == 0:  # somebody removed it; writing to it would work
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        files.write(self._fd, b"".join(pieces))
        files.sync(self._fd)
        if is_new:
            files.sync_folder(self.segment.path.parent)
        return frames

    def distrust(self, refused: range) -> None:
        """Cut the file back to what was acknowledged, and close it for good.

        Where even that fails, the refused records are marked as confirmed. Where that fails too,
        they may come back once this process is dead; draining them is idempotent.
        """
        segment = self.segment
        try:
            if len(segment) == 0:
                segment.path.unlink(missing_ok=True)
            else:
                os.ftruncate(self._fd, segment.size)
                files.sync(self._fd)
        except OSError:
            try:
                segment.mark_numbers(refused)
            except OSError as error:
                _log.warning("refused records may be left in %s: %s", segment.path, error.strerror)
        finally:
            self.close()

    def close(self) -> None:
        """Close the file; a second time it does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
