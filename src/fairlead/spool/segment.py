"""One file of records: what is known of it in memory, and the checkpoints beside it.

The memory of a record is 17 bytes, whatever its payload. A segment has a name in its folder by
which its records are counted there (``base``), and a header by which its first owner counted them.
Both differ once another process has adopted it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path

from fairlead.spool import files
from fairlead.spool.frames import FRAME, Frame, Header, Reference, encode, scan
from fairlead.spool.records import Kind

GONE = 0  # confirmed, or nothing that anybody waits for
AWAITED = 1  # pending
HELD = 2  # not pending itself, but it says something about one that is

_AWAITED = bytes([AWAITED])


def segment_name(stream: str, base: int) -> str:
    """Return the name of the segment whose first sequence this is."""
    return f"{stream}-{base:016x}.segment"


class Segment:
    """The records of one file. Whoever uses it has the lock of its journal."""

    def __init__(self, path: Path, header: Header, base: int) -> None:
        self.path, self.header, self.base = path, header, base
        self.size = 0  # bytes of the file that count
        self.live = 0  # records that are not GONE
        self.live_bytes = 0
        self._numbers = array("I")  # sequence less base
        self._offsets = array("I")
        self._times = array("d")
        self._states = bytearray()
        self._oldest: float | None = None
        self._is_oldest_known = True

    @property
    def marks(self) -> Path:
        """The file of the checkpoints."""
        return self.path.with_suffix(".marks")

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def next(self) -> int:
        """The least sequence behind all of this segment."""
        return self.base + (self._numbers[-1] + 1 if self._numbers else 0)

    @property
    def oldest(self) -> float | None:
        """When the oldest record that is not GONE was appended."""
        if not self._is_oldest_known:
            self._oldest = min(compress(self._times, self._states), default=None)
            self._is_oldest_known = True
        return self._oldest

    def add(self, frame: Frame, state: int) -> None:
        """Take a record in, behind all others."""
        self._numbers.append(frame.sequence - self.header.first)
        self._offsets.append(frame.offset)
        self._times.append(frame.at)
        self._states.append(state)
        self.size = frame.end
        if state != GONE:
            self.live += 1
            self.live_bytes += frame.end - frame.offset
            if self._is_oldest_known and (self._oldest is None or frame.at < self._oldest):
                self._oldest = frame.at

    def find(self, sequence: int) -> int | None:
        """Return the place of a sequence in this segment; None if it has none."""
        number = sequence - self.base
        if not 0 <= number < 1 << 32:
            return None
        place = bisect_left(self._numbers, number)
        found = place < len(self._numbers) and self._numbers[place] == number
        return place if found else None

    def sequence(self, place: int) -> int:
        """Return the sequence at a place."""
        return self.base + self._numbers[place]

    def reference(self, place: int) -> Reference:
        """Return what names the record at a place for ever."""
        return Reference(self.header.owner, self.header.first + self._numbers[place])

    def referred(self, reference: Reference) -> int | None:
        """Return the sequence of a record that is named for ever; None if it is not here."""
        if reference.owner != self.header.owner:
            return None
        sequence = reference.sequence - self.header.first + self.base
        return None if self.find(sequence) is None else sequence

    def state(self, place: int) -> int:
        """Return AWAITED, HELD or GONE."""
        return self._states[place]

    def extent(self, place: int) -> tuple[int, int]:
        """Return where the record at a place begins, and a place behind its end."""
        behind = self._offsets[place + 1] if place + 1 < len(self) else self.size
        return self._offsets[place], behind

    def time(self, place: int) -> float:
        """Return when the record at a place was appended."""
        return self._times[place]

    def drop(self, place: int) -> bool:
        """Take a record off; return whether it was on."""
        if self._states[place] == GONE:
            return False
        self._states[place] = GONE
        start, end = self.extent(place)
        self.live -= 1
        self.live_bytes -= end - start
        if self._is_oldest_known and self._oldest == self._times[place]:
            self._is_oldest_known = False
        return True

    def count_awaited(self) -> int:
        """Return the number of pending records."""
        return self._states.count(_AWAITED)

    def awaited(self, after: int) -> Iterator[int]:
        """Iterate over the places of pending records behind a sequence."""
        if not self.live or self.next <= after:
            return
        place = bisect_left(self._numbers, max(after + 1 - self.base, 0))
        while (place := self._states.find(_AWAITED, place)) >= 0:
            yield place
            place += 1

    def older(self, moment: float) -> list[int]:
        """Return the places of pending records that were appended before a moment."""
        oldest = self.oldest
        if oldest is None or oldest >= moment:
            return []
        return [place for place in self.awaited(0) if self._times[place] < moment]

    def mark(self, places: Sequence[int]) -> None:
        """Write down that records are confirmed. Raises ``OSError``."""
        first, numbers = self.header.first, self._numbers
        self.mark_numbers([first + numbers[place] for place in places])

    def mark_numbers(self, numbers: Iterable[int]) -> None:
        """Write down that records are confirmed, by the numbers that their first owner gave them.

        Also those that are in the file and not in memory. Raises ``OSError``.
        """
        packed = array("Q", numbers)
        data = encode(self.header, Kind.DONE, 0, 0.0, (_little(packed).tobytes(),))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.marks, flags, 0o600)
        try:
            files.write(fd, data)
        finally:
            os.close(fd)

    def sync_marks(self) -> None:
        """Return once the checkpoints are on the disk."""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self.marks, os.O_RDONLY | os.O_CLOEXEC)
            try:
                files.sync(fd)
            finally:
                os.close(fd)

    def marked(self) -> set[int]:
        """Return the numbers, of the first owner, that are marked on the disk.

        What cannot be read of them is passed over: those records are drained once more.
        """
        found: set[int] = set()
        try:
            data = files.read(self.marks)
        except FileNotFoundError:
            return found
        for frame in scan(self.header, data, start=0, ordered=False).frames:
            packed = array("Q")
            payload = data[frame.offset + FRAME : frame.end]
            if frame.kind is Kind.DONE and len(payload) % packed.itemsize == 0:
                packed.frombytes(payload)
                found.update(_little(packed))
        return found

    def remove(self) -> None:
        """Delete the files; checkpoints last, so that nothing comes back without them."""
        self.path.unlink(missing_ok=True)
        self.marks.unlink(missing_ok=True)


def _little(numbers: array[int]) -> array[int]:
    """Turn numbers of this machine to little-endian, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
