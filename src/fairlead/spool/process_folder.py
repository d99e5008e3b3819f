"""The folder of one process below the root, its lock, and the folders of others.

docs/internals/spool.md shows what lies in them. The kernel lets go of the lock when the process
ends, however that happens, also in another container of this machine. Whoever gets the lock of
another's folder may take what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairlead.embedded.directory import LockFile
from fairlead.model.errors import Refused
from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime import native_threads
from fairlead.runtime.identity import host
from fairlead.runtime.ids import new_id
from fairlead.runtime.private_folders import make_private
from fairlead.spool import files

QUARANTINE = "quarantine"

LOCK = "lock"
_UNBORN = ".new-"  # in front of the name of a folder whose lock is not held yet
_GONE = ".gone-"  # in front of the name of one that is being removed
_FORGOTTEN = 60.0  # seconds after which a folder that was never finished is removed
_ADVICE = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EFBIG: "raise the limit of the size of files",
    errno.EACCES: "make the folder writable for this user, or choose another path",
    errno.EPERM: "make the folder writable for this user, or choose another path",
    errno.EROFS: "make the file system writable, or choose another path",
}


def failure(path: Path, error: Exception) -> SpoolFailed:
    """Return an error of the file system as one that says what to do."""
    if isinstance(error, SpoolFailed):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    advice = _ADVICE.get(
        (error.errno or 0) if isinstance(error, OSError) else 0, "look at the disk"
    )
    return SpoolFailed(f"the spool cannot write to {str(path)!r} ({why}); {advice}")


class Owner(msgspec.Struct, frozen=True):
    """What a lock file says: which process made it, for people, and for which broker."""

    pid: int
    host: str
    since: float  # unix seconds
    broker: str = ""  # which one is to get what is in the folder; see ``Spool.open``


class ProcessFolder:
    """The folder of this process. It is made when it is first needed."""

    def __init__(self, root: Path, broker: str = "") -> None:
        self.root, self.broker = root, broker
        self.name = new_id()
        self._lock: LockFile | None = None
        self._making = native_threads.new_lock()
        self._locks: set[LockFile] = set()  # all that a forked child must not keep

    @property
    def owner(self) -> bytes:
        """Who this is in the headers of files: 16 bytes."""
        return bytes.fromhex(self.name)

    @property
    def path(self) -> Path:
        """Where the folder is, or will be."""
        return self.root / self.name

    def folder(self) -> Path:
        """Return the folder; make and lock it if that was not done. Raises ``SpoolFailed``."""
        with self._making:
            if self._lock is None or not self.path.is_dir():
                try:
                    self._make()
                except (OSError, Refused) as error:
                    raise failure(self.root, error) from error
            return self.path

    def _make(self) -> None:
        if self._lock is not None:  # somebody removed it; the name is not used again
            self._release(self._lock)
            self.name = new_id()
        prepare(self.root)
        unborn = self.root / (_UNBORN + self.name)
        make_private(unborn)
        lock = LockFile(unborn / LOCK)
        self._locks.add(lock)
        try:
            os.fchmod(lock.fd, 0o600)
            if not lock.try_exclusive():
                raise OSError(errno.EBUSY, "the lock of a new folder is taken")
            owner = Owner(os.getpid(), host(), time.time(), self.broker)
            files.write(lock.fd, msgspec.json.encode(owner))
            files.sync(lock.fd)  # what is in the folder goes nowhere if nothing says for whom it is
            unborn.rename(self.path)
            files.sync_folder(self.root)
        except OSError:
            self._release(lock)
            raise
        self._lock = lock

    def others(self) -> list[str]:
        """Return the names of the folders of other processes, dead or not."""
        return [name for name in owners(self.root) if name != self.name]

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[Path | None]:
        """Hold the lock of a dead process's folder; give None if it lives, or another one has it.

        The folder may be removed meanwhile, with ``remove``.
        """
        folder = self.root / name
        lock = LockFile(folder / LOCK)
        self._locks.add(lock)
        try:
            yield folder if _claim(lock, folder / LOCK) else None
        finally:
            self._locks.discard(lock)
            lock.release()

    def remove(self, name: str) -> None:
        """Remove a folder that is claimed, with what is left in it."""
        _remove(self.root / name)

    def sweep(self) -> None:
        """Remove folders that a process made or removed only half, when it was killed."""
        with contextlib.suppress(OSError):
            for folder in self.root.iterdir():
                if folder.name.startswith((_UNBORN, _GONE)):
                    with contextlib.suppress(OSError):
                        if time.time() - folder.stat().st_mtime > _FORGOTTEN:
                            _delete(folder)

    def quarantine(self) -> Path:
        """Return the folder for what cannot be read."""
        folder = self.root / QUARANTINE
        make_private(folder)
        return folder

    def close(self, *, is_empty: bool) -> None:
        """Remove the folder if it is empty, and let go of it."""
        if self._lock is not None:
            if is_empty:
                with contextlib.suppress(OSError):
                    _remove(self.path)
            self._release(self._lock)
            self._lock = None

    def leave(self) -> None:
        """In a forked child: close what the parent has locked, without unlocking it."""
        for lock in list(self._locks):
            lock.close()

    def _release(self, lock: LockFile) -> None:
        self._locks.discard(lock)
        lock.release()


def prepare(root: Path) -> None:
    """Make the root, for this user only, and keep it out of version control."""
    root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(root)
    ignored = root / ".gitignore"
    if not ignored.exists():
        ignored.touch(0o600)
        ignored.write_text("*\n")
        files.sync_folder(root.parent)


def owners(root: Path) -> list[str]:
    """Return the names of all folders of processes, the oldest first."""
    try:
        return sorted(entry.name for entry in root.iterdir() if is_owner(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def owner_of(folder: Path) -> Owner:
    """Return what the lock file of a folder says; nobody, and no broker, if it is unreadable."""
    try:
        return msgspec.json.decode((folder / LOCK).read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return Owner(0, "", 0.0)


def is_owner(name: str) -> bool:
    """Return whether a folder of this name belongs, or belonged, to a process."""
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def _claim(lock: LockFile, path: Path) -> bool:
    """Lock another's folder; return whether that was possible, and it is still there."""
    try:
        if not path.exists() or not lock.try_exclusive():  # opening it would make it
            return False
        # Another process may have taken and removed it between our opening it and locking it.
        return os.path.samestat(os.fstat(lock.fd), path.stat())
    except OSError:
        return False


def _remove(folder: Path) -> None:
    """Take the folder away under another name first: half of one is never adopted."""
    gone = folder.with_name(_GONE + folder.name)
    folder.rename(gone)
    _delete(gone)


def _delete(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink(missing_ok=True)
    folder.rmdir()
