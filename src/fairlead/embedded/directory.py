"""The directory of an embedded server: who may use it, what lies in it, and its locks.

.fairlead/valkey/    0700, and ours
    appendonlydir/   the data
    state.json       0600: where the socket is, and the password
    server.log       what the server says; an older one is server.log.1
    valkey.sock      unless the path is too long for a socket
    *.lock           see ``fairlead.embedded.valkey``
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairlead.model.errors import Refused
from fairlead.runtime.identity import exists, has_ended, is_near, machine
from fairlead.runtime.private_folders import make_private

try:
    import fcntl
except ImportError:  # Windows, where find_binary refuses before anything is locked
    fcntl = None  # type: ignore[assignment]

_LONGEST_SOCKET = 103  # bytes; macOS has room for so many, Linux for four more
_LARGEST_LOG = 5 * 1024 * 1024  # bytes, looked at when a server starts
_LOG_LINES = 12  # at the end of the log, that an error repeats
_LOG_BYTES = 4 * 1024
_PAUSE = 0.005  # seconds between two tries for a lock: there is no way to wait for one in time

_IDENTITY = ("born", "boot", "namespace")  # behind the pid in a lock file

_CAUSES = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
}
_ADVICE = {
    "permission": "make it writable for this user, or choose another path",
    "disk": "make room on the disk, or choose another path",
    "directory": "choose another path",
}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the server. Kept over restarts, so that whoever was connected can come back."""

    socket: str
    password: str
    started_at: float  # unix seconds

    def __repr__(self) -> str:
        return f"State(socket={self.socket!r}, started_at={self.started_at!r})"


class Holder(msgspec.Struct, frozen=True):
    """The process that wrote itself into a lock file."""

    pid: int
    identity: dict[str, str]  # see ``fairlead.runtime.identity``; empty where nothing says

    def has_ended(self) -> bool:
        """Return whether it has certainly ended; never true for one of another container."""
        if self.identity or machine():
            return has_ended(self.pid, self.identity)
        return sys.platform == "darwin" and not exists(self.pid)  # where pids have one namespace

    def __str__(self) -> str:
        if self.identity and not is_near(self.identity):
            return f"pid {self.pid} of another container or machine"
        return f"pid {self.pid}"


class LockFile:
    """A lock on a file. The kernel lets go of it when the process ends, however that happens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The open file. Known here before it is locked, so that a forked child can close it."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._fd

    def try_shared(self) -> bool:
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        return self._try(fcntl.LOCK_EX)

    def wait_exclusive(self, deadline: float) -> bool:
        """Try until the deadline, on the monotonic clock; whether it was had."""
        while not self.try_exclusive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE)
        return True

    def is_held(self) -> bool:
        """Whether somebody else has it. Not to be asked by whoever has it."""
        if self.try_shared():
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            return False
        return True

    def holder(self) -> Holder | None:
        """Who wrote itself into the file, if anybody did; see ``fairlead.embedded.launcher``."""
        pid, *rest = os.pread(self.fd, 256, 0).decode(errors="replace").split() or [""]
        if not pid.isdecimal():
            return None
        known = len(rest) == len(_IDENTITY)
        return Holder(int(pid), dict(zip(_IDENTITY, rest, strict=True)) if known else {})

    def refresh(self) -> None:
        """Close the file if its name leads to another one by now; the lock on it means nothing."""
        if self._fd is not None:
            with contextlib.suppress(FileNotFoundError):
                if not os.path.samestat(os.fstat(self._fd), self._path.stat()):
                    self.close()

    def release(self) -> None:
        """Unlock, whoever else has inherited the file meanwhile."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the file. Others who inherited it, or left it to us, keep the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def discard(self) -> None:
        """Make the file anew: whoever has a lock on the old one keeps it, and it means nothing."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Directory:
    """``valkey`` inside the path that the user gave. All errors are ``Refused``."""

    def __init__(self, path: Path) -> None:
        # Whichever links lead here: one directory has one name, and so one place for the socket.
        self.root = Path(os.path.realpath(path)) / "valkey"
        self.log = self.root / "server.log"
        self._state = self.root / "state.json"

    def prepare(self) -> None:
        """Make it, for this user only, or refuse what cannot be used."""
        with self.explained():
            self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self.root)
            ignored = self.root / ".gitignore"  # a password and the data are not to be committed
            if not ignored.exists():
                ignored.touch(0o600)
                ignored.write_text("*\n")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of the file system into ones that say what to do."""
        try:
            yield
        except OSError as error:
            cause = _CAUSES.get(error.errno or 0, "directory")
            where = error.filename or self.root
            raise Refused(
                cause,
                f"the embedded server cannot use {str(self.root)!r} "
                f"({where}: {error.strerror or error}); {_ADVICE[cause]}",
            ) from error

    def state(self) -> State | None:
        """What was recorded last; None if there is nothing, or nothing legible."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=State)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def record(self) -> State:
        """Write down how the server that starts next is to be reached."""
        before = self.state()
        state = State(
            socket=str(self._place_for_socket()),
            password=before.password if before else secrets.token_hex(32),
            started_at=time.time(),
        )
        fresh = self._state.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(state))
        fresh.replace(self._state)
        return state

    def places(self) -> set[str]:
        """Return where a server of this very directory may listen, whatever was recorded.

        The record may come from a container that sees the directory at another path, or from the
        directory that this one was copied from.
        """
        here = self.root / "valkey.sock"
        return {str(self._place_for_socket()), *([str(here)] if _fits(here) else [])}

    def open_log(self) -> int:
        """The log, to append to; a long one is put aside first."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _LARGEST_LOG:
                self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def tidy(self, state: State) -> None:
        """Once the server has ended: remove its socket from where nobody else would."""
        place = Path(state.socket)
        if place.parent != self.root:
            with contextlib.suppress(OSError):
                place.unlink(missing_ok=True)
                place.parent.rmdir()

    def last_words(self) -> str:
        """The end of the log, indented, for an error; never the password."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                text = file.read().decode(errors="replace")
            state = self.state()
        except OSError:
            return ""
        if state is not None:
            text = text.replace(state.password, "***")
        lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:]
        return "".join(f"\n    {line}" for line in lines)

    def _place_for_socket(self) -> Path:
        here = self.root / "valkey.sock"
        if _fits(here):
            return here
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        name = f"fairlead-{os.geteuid()}-{digest}"
        places = [Path(base) / name / "valkey.sock" for base in (tempfile.gettempdir(), "/tmp")]  # noqa: S108 - private below it
        place = next((place for place in places if _fits(place)), places[-1])
        make_private(place.parent)
        return place


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= _LONGEST_SOCKET
