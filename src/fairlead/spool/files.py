"""The edge to the file system: private files, whole writes, and what is on the disk for sure."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

_PIECE = 8 * 1024 * 1024  # bytes of a read
_VOLATILE = frozenset({"tmpfs", "ramfs", "overlay", "aufs"})


def create(path: Path) -> int:
    """Make a file that is not there yet, for this user only, to append to; return its number."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)


def write(fd: int, data: bytes) -> None:
    """Write all of it, however many calls that takes."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, data[done:])


def sync(fd: int) -> None:
    """Return once what was written is on the disk."""
    if sys.platform == "darwin":  # where fsync leaves it in the cache of the drive
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def sync_folder(folder: Path) -> None:
    """Return once the names of the files in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(path: Path) -> bytes:
    """Return all of a file."""
    with path.open("rb", buffering=0) as file:
        pieces = []
        while piece := file.read(_PIECE):
            pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def replace(path: Path, pieces: list[bytes]) -> None:
    """Give a file other content, in one step, also if the machine stops meanwhile."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fd = create(fresh)
    try:
        for piece in pieces:
            write(fd, piece)
        sync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    finally:
        os.close(fd)
    fresh.replace(path)
    sync_folder(path.parent)


def volatile(path: Path) -> str | None:
    """Return the type of the file system at a path if it is one that is soon gone, else None."""
    whole = Path(os.path.realpath(path))
    found, longest = "", -1
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            # The kernel writes blanks and the like in a name as three octal digits.
            name = left.split()[4].encode("latin-1", "replace").decode("unicode_escape")
            if whole.is_relative_to(name) and len(name) >= longest:
                found, longest = right.split()[0], len(name)
    return found if found in _VOLATILE else None
