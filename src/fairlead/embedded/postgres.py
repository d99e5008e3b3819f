"""A PostgreSQL of one's own, in a directory: it starts by itself and is shared.

It is shared as the embedded Valkey is, by flocks that the end of a process ends:

    change.lock   held for moments: only its holder may start or stop the server
    server.lock   held by the server itself and its children, which inherit it; says its pid
    users.lock    shared by all who use the server. The last one out stops it

A process that is killed leaves the server running, and the next one to start here adopts it;
``dies_with_owner`` is for programs (a demo, a test) that want it gone even then.

.fairlead/postgres/   0700; of the account that runs the server, if this process is root
    data/             what PostgreSQL keeps
    program-*/        a copy of its programs, if that account cannot run them where they are
    server.log        what it says; an older one is server.log.1
    .s.PGSQL.5432     the socket, unless the path is too long for one. There is no port: whoever
                      cannot enter the directory cannot reach the server, so it asks no password
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from fairlead.embedded import postgres_server as server
from fairlead.embedded.directory import LockFile
from fairlead.embedded.options import DEFAULT_PATH, check_timeout
from fairlead.embedded.valkey_server import check_system
from fairlead.model.errors import FairleadError, InvalidOption, Refused, Unreachable
from fairlead.runtime.process_hooks import at_fork, at_the_end

_SOCKET = ".s.PGSQL.5432"
_LONGEST_SOCKET = 103  # bytes; macOS has room for so many, Linux for four more
_LARGEST_LOG = 5 * 1024 * 1024  # bytes, looked at when a server starts
_LOG_BYTES = 2 * 1024  # at the end of the log, that an error repeats
_PAUSE = 0.005  # seconds between two looks at a server that starts
_CHANGE_IN = 30.0  # seconds to wait for another process's stop before leaving


class EmbeddedPostgres:
    """One use of the server in ``path``; several in one process, or in many, share the server.

    ``fsync=False`` is for tests: a crash of the operating system damages the data. With
    ``dies_with_owner`` a server that is started *here* ends with this process, or with ``stop``,
    whoever else still uses it. ``start_timeout`` is for a server whose files are made already.

    May be used from several threads. A forked child has no part in its parent's use. A process
    that ends in good order stops what it has not stopped.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        *,
        fsync: bool = True,
        dies_with_owner: bool = False,
        start_timeout: float = 30.0,
    ) -> None:
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise InvalidOption("path", path, "the path of a directory")
        check_system()
        self._fsync = fsync
        self._dies_with_owner = dies_with_owner
        self._start_timeout = check_timeout(start_timeout)
        self._root = Path(os.path.realpath(path)) / "postgres"
        self._data = self._root / "data"
        self._log = self._root / "server.log"
        self._change = LockFile(self._root / "change.lock")
        self._server = LockFile(self._root / "server.lock")
        self._users = LockFile(self._root / "users.lock")
        self._lifeline: int | None = None  # our end of the pipe, of a server that dies with us
        self._tied = 0  # the pid of that server
        self._is_used = False
        self._lock = threading.Lock()
        _instances.add(self)

    def __repr__(self) -> str:
        return f"EmbeddedPostgres({str(self._root.parent)!r})"

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        """Where the server is, also while it does not run."""
        return f"postgresql://{server.USER}@/postgres?host={quote(str(self._sockets()), safe='')}"

    @property
    def pid(self) -> int:
        """The process id of the server; 0 if none was ever started."""
        holder = self._server.holder() if self._root.exists() else None
        return 0 if holder is None else holder.pid

    def start(self) -> str:
        """Start the server, or join the one that runs; its DSN, once it takes connections.

        Starts it again if it has died. Raises ``Unreachable`` if it takes too long, ``Refused`` if
        it cannot work until somebody does something about it.
        """
        with self._lock, self._explained():
            account = server.service_account()
            self._prepare(account)
            with self._changing(self._start_timeout):
                had = self._is_used
                self._users.refresh()
                self._users.try_shared()  # it can be had: it is taken only under change.lock
                try:
                    self._answering(account)
                except BaseException:
                    if not had:
                        self._leave(LockFile.release)
                    raise
                self._is_used = True
                _in_use.add(self)
            return self.dsn

    def stop(self) -> None:
        """Leave; the last one out stops the server and waits for its end. Never raises.

        The data stays. Without effect on what is not started, so it may be called twice.
        """
        with self._lock:
            if not self._is_used:
                return
            try:
                with self._explained(), self._changing(_CHANGE_IN):
                    self._server.refresh()
                    is_tied = self._tied != 0 and self._tied == self.pid
                    if is_tied or self._users.try_exclusive():
                        server.end(self._server)
                        self._tidy()
                    self._leave(LockFile.release)  # before anybody else may change anything
            except FairleadError:  # another process has been starting it, and will use it
                if not self._root.exists():  # nobody else could find it any more
                    server.end(self._server)
            finally:
                self._leave(LockFile.release)

    # -- the directory --------------------------------------------------------------------------

    def _prepare(self, account: server.Account | None) -> None:
        parent = self._root.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if account is not None:
            self._open_way(parent, account)
        _make_private(self._root, account)
        ignored = self._root / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")

    def _open_way(self, parent: Path, account: server.Account) -> None:
        """Let the server's account pass to its own folder; what else is here stays closed."""
        closed = server.closed_to(parent, account)
        if closed == parent and parent.stat().st_uid == os.geteuid():
            # To pass is not to list or to read: what lies beside has rights of its own.
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o011)
            closed = server.closed_to(parent, account)
        if closed is not None:
            raise Refused(
                "permission",
                f"PostgreSQL does not run as root, and uid {account.uid}, as which it is started, "
                f"may not pass {str(closed)!r}; choose another path (embedded:///var/lib/fairlead),"
                f" run Fairlead as another user, or chmod o+x {str(closed)!r}",
            )

    def _sockets(self) -> Path:
        """The folder of the socket: here, or a private one in /tmp if the path is too long."""
        if len(os.fsencode(self._root / _SOCKET)) <= _LONGEST_SOCKET:
            return self._root
        digest = hashlib.sha256(os.fsencode(self._root)).hexdigest()[:16]
        name = f"fairlead-{os.geteuid()}-{digest}"
        places = [Path(base) / name for base in (tempfile.gettempdir(), "/tmp")]  # noqa: S108 - private below it
        fits = (each for each in places if len(os.fsencode(each / _SOCKET)) <= _LONGEST_SOCKET)
        return next(fits, places[-1])

    def _tidy(self) -> None:
        """Remove the folder of the socket from where nobody else would."""
        sockets = self._sockets()
        if sockets != self._root:
            with contextlib.suppress(OSError):
                for each in (_SOCKET, f"{_SOCKET}.lock"):
                    (sockets / each).unlink(missing_ok=True)
                sockets.rmdir()

    def _open_log(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > _LARGEST_LOG:
                self._log.replace(self._log.with_suffix(".log.1"))
        return os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            text = self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
            lines = [line for line in text.splitlines() if line.strip()][-8:]
            return f". Its log {str(self._log)!r} ends with:" + "".join(f"\n    {x}" for x in lines)
        return ""

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Refused(
                "directory",
                f"the embedded PostgreSQL cannot use {str(self._root)!r} "
                f"({error.filename or self._root}: {error.strerror or error}); make it writable "
                "for this user and see that the disk has room, or choose another path",
            ) from error

    # -- the server -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self, timeout: float) -> Iterator[None]:
        self._change.refresh()
        if not self._change.wait_exclusive(time.monotonic() + timeout):
            self._change.close()
            raise Unreachable(
                "another process has been starting or stopping the embedded PostgreSQL in "
                f"{str(self._root)!r} for {timeout:g} s; try again"
            )
        try:
            yield
        finally:
            self._change.release()

    def _answering(self, account: server.Account | None) -> None:
        """Return once the server answers; started here, but not twice."""
        launched = False
        deadline = time.monotonic() + self._start_timeout
        place = str(self._sockets() / _SOCKET)
        while True:
            self._server.close()  # the file may be another than the last time
            if self._server.try_exclusive():
                if launched:
                    self._server.release()
                    raise Refused(
                        "server",
                        f"the embedded PostgreSQL in {str(self._root)!r} ended while it started"
                        + self._last_words(),
                    )
                self._launch(account)
                launched, deadline = True, time.monotonic() + self._start_timeout
            holder = self._server.holder()
            pid = 0 if holder is None else holder.pid
            if server.is_ready(self._data, pid) and server.answers(place):
                if launched and self._lifeline is not None:
                    self._tied = pid
                return
            if time.monotonic() > deadline:
                if launched:
                    server.end(self._server)
                raise Unreachable(
                    f"the embedded PostgreSQL in {str(self._root)!r} (pid {pid or 'unknown'}) does "
                    f"not answer after {self._start_timeout:g} s; if it hangs, `kill` it where it "
                    "runs, which keeps its data, and try again" + self._last_words()
                )
            time.sleep(_PAUSE)

    def _launch(self, account: server.Account | None) -> None:
        """Start a server and leave to it the lock that we have."""
        self._cut_lifeline()
        output = self._open_log()
        lifeline: int | None = None
        try:
            programs = server.usable_programs(self._root, account)
            if not self._data.exists():
                try:
                    server.initialize(programs, self._data, account, output, fsync=self._fsync)
                except Refused as error:
                    raise Refused(error.cause, f"{error}{self._last_words()}") from None
            if (sockets := self._sockets()) != self._root:
                _make_private(sockets, account)
            if self._dies_with_owner or _process.ends:
                lifeline, self._lifeline = os.pipe()
            # It wrote itself into the file whose lock we have: it and its children are gone.
            last = self._server.holder()
            signs = (self._data / "postmaster.pid", sockets / f"{_SOCKET}.lock")
            server.forget(signs, 0 if last is None else last.pid)
            os.ftruncate(self._server.fd, 0)
            server.launch(
                programs,
                self._data,
                sockets,
                self._server,
                output,
                account=account,
                fsync=self._fsync,
                lifeline=lifeline,
            )
        finally:
            self._server.close()  # not released: the server has it now
            os.close(output)
            if lifeline is not None:
                os.close(lifeline)

    def _leave(self, close: Callable[[LockFile], None]) -> None:
        for lock in (self._users, self._server, self._change):
            close(lock)
        self._cut_lifeline()
        self._is_used = False
        _in_use.discard(self)

    def _cut_lifeline(self) -> None:
        lifeline, self._lifeline, self._tied = self._lifeline, None, 0
        if lifeline is not None:
            os.close(lifeline)

    def _after_fork(self) -> None:
        """In a forked child: these are the parent's locks, and unlocking one would be for both."""
        self._lock = threading.Lock()
        self._leave(LockFile.close)


def _make_private(folder: Path, account: server.Account | None) -> None:
    """Make a folder that only the server's user can enter, or refuse the one that is there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()  # links are not followed: whoever made one chose where it leads
    owner = os.geteuid() if account is None else account.uid
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
        raise Refused(
            "permission",
            f"{str(folder)!r} is no directory, or another user's (uid {found.st_uid}); move it "
            "away, run this as that user, or choose another path",
        )
    if found.st_uid != owner and account is not None:
        os.chown(folder, account.uid, account.gid)
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)


class _Process:
    """What is known of this process."""

    ends = False  # servers in use have been stopped, and nobody would stop another one


_process = _Process()
_instances: weakref.WeakSet[EmbeddedPostgres] = weakref.WeakSet()
_in_use: set[EmbeddedPostgres] = set()


def _after_fork() -> None:
    for instance in list(_instances):
        instance._after_fork()


def _at_exit() -> None:
    _process.ends = True
    for instance in list(_in_use):
        instance.stop()


at_fork(after_in_child=_after_fork)
at_the_end(_at_exit)
