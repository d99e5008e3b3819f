"""What handlers leave behind: one number for each task that ran, in a file for each process.

Nothing is added to what a peer says to its server, and a mark costs a Python process a fraction of
a microsecond. A file is a row of little-endian 64-bit integers, and zero means that there is none
yet. Adapters in other languages write the same files.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

__all__ = ("FOLDER", "Marks", "count", "read")

FOLDER = "PEERS_MARKS"  # the variable that says where the files are

_SUFFIX = ".marks"
_WIDTH = 8  # bytes
_MOST = 1 << 20  # marks of one process; the file has holes, and takes no room until it is written


class Marks:
    """The marks of this process. May be used by several threads, and after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: memoryview[int] | None = None
        self._numbers = itertools.count()
        os.register_at_fork(after_in_child=self._forget)

    def ran(self) -> None:
        """Mark the moment, in nanoseconds."""
        self._put(time.time_ns())

    def ran_after(self, sent: int) -> None:
        """Mark how many nanoseconds ago ``sent`` was."""
        self._put(max(time.time_ns() - sent, 1))

    def _put(self, value: int) -> None:
        slots = self._slots or self._open()
        slots[next(self._numbers)] = value  # next() of a count is atomic, so no lock is needed

    def _open(self) -> memoryview[int]:
        with self._lock:
            if self._slots is None:
                path = Path(os.environ[FOLDER], f"{os.getpid()}{_SUFFIX}")
                with path.open("w+b") as file:
                    file.truncate(_MOST * _WIDTH)
                    self._slots = memoryview(mmap.mmap(file.fileno(), _MOST * _WIDTH)).cast("q")
            return self._slots

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._slots = None
        self._numbers = itertools.count()


def count(folder: Path) -> dict[str, int]:
    """Return how many marks each process has made so far; cheap enough to ask again and again."""
    return {path.name: _length(path) for path in _files(folder)}


def read(folder: Path) -> dict[str, list[int]]:
    """Return the marks of each process that made any."""
    found = {}
    for path in _files(folder):
        values = array("q")
        with path.open("rb") as file:
            values.frombytes(file.read(_length(path) * _WIDTH))
        if sys.byteorder == "big":
            values.byteswap()
        if values:
            found[path.name] = values.tolist()
    return found


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob(f"*{_SUFFIX}"))


def _length(path: Path) -> int:
    """Find the first zero by halving: marks have no gap but that of a moment."""
    with path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END) // _WIDTH
        while low < high:
            middle = (low + high) // 2
            file.seek(middle * _WIDTH)
            if any(file.read(_WIDTH)):
                low = middle + 1
            else:
                high = middle
    return low
