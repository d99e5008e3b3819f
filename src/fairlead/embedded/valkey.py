"""A Valkey or Redis server of one's own, in a directory: it starts by itself and is shared.

Whoever opens the directory uses the same server, whichever process started it. Four locks in the
directory say who is who. All are flocks, so the end of a process ends its part, kill -9 included:

    change.lock   held for moments: only its holder may start or stop the server
    server.lock   held by the server itself, which inherits it, and says who that is: two servers
                  never write to the same data, whatever else has been lost or deleted
    users.lock    shared by all who use the server. The last one out stops it; as long as others
                  are in, it goes on, also when whoever started it leaves
    owner.lock    held by the owner: the first to open, and when it has gone the next to open or
                  to call ``ensure``. Any user, owner or not, may bring a dead server back

A directory may be shared by containers, where the pid of one means another process, or none, in the
next. So the lock says in which boot and namespace its pid counts and when that process started. Who
cannot compare that takes nobody for dead and signals nobody: the socket reaches the server anyway.

So nothing is left behind by programs that end in good order, and nothing breaks for the others. A
process that is killed leaves the server running for the next to adopt; ``dies_with_owner`` is for
programs (a demo, a test) that want it gone even then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from fairlead.embedded import server_errors
from fairlead.embedded.allocator import find_allocator, loaded_by
from fairlead.embedded.directory import Directory, Holder, LockFile, State
from fairlead.embedded.endpoint import Endpoint
from fairlead.embedded.options import DEFAULT_PATH, Fsync, check_fsync, check_timeout
from fairlead.embedded.valkey_server import (
    Answer,
    ask,
    check_system,
    end,
    find_binary,
    is_bundled,
    launch,
    listens,
)
from fairlead.model.errors import FairleadError, InvalidOption
from fairlead.runtime.identity import is_same
from fairlead.runtime.process_hooks import at_fork, at_the_end

_PAUSE = 0.005  # seconds between two questions to a server that starts: it cannot call back
_CHANGE_IN = 10.0  # seconds to wait for another process's start or stop before leaving


class EmbeddedValkey:
    """One use of the server in ``path``; several in one process, or in many, share the server.

    ``fsync="always"`` loses nothing that was acknowledged, at a price for every write.
    ``"everysec"`` loses nothing when users are killed, but up to two seconds when the operating
    system crashes, or when the *server* is killed (not stopped) while the disk is busy: it then
    holds writes back until the disk has done what it was told a second ago. Where users of one
    server disagree, ``always`` wins. With ``dies_with_owner`` a server that is started *here* ends
    with this process, or with ``stop``, whoever else still uses it. ``libraries`` are the folders
    in which jemalloc is looked for, instead of those of the system.

    May be used from several threads. A forked child has no part in its parent's use: it calls
    ``start`` for one of its own. A process that ends in good order stops what it has not stopped;
    a server that it starts even later, in an exit handler or another thread, dies with it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = DEFAULT_PATH,
        *,
        fsync: Fsync = "everysec",
        dies_with_owner: bool = False,
        start_timeout: float = 10.0,
        libraries: Sequence[Path] | None = None,
    ) -> None:
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise InvalidOption("path", path, "the path of a directory")
        check_system()
        self._fsync = check_fsync(fsync)
        self._dies_with_owner = dies_with_owner
        self._start_timeout = check_timeout(start_timeout)
        self._libraries = libraries
        self._directory = Directory(Path(path))
        root = self._directory.root
        self._change = LockFile(root / "change.lock")
        self._server = LockFile(root / "server.lock")
        self._users = LockFile(root / "users.lock")
        self._owner = LockFile(root / "owner.lock")
        self._is_owner = False
        self._state: State | None = None  # while in use
        self._lifeline: int | None = None  # our end of the pipe, of a server that dies with us
        self._tied: Holder | None = None  # that server
        self._lock = threading.Lock()
        _instances.add(self)

    def __repr__(self) -> str:
        return f"EmbeddedValkey({str(self._directory.root.parent)!r})"

    def __enter__(self) -> Endpoint:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> Endpoint:
        """Start the server, or join the one that runs. Once joined, only says where it is.

        Raises ``Unreachable`` if it takes longer than ``start_timeout``, ``Refused`` if it cannot
        work until somebody does something about it.
        """
        with self._lock:
            return self._endpoint(self._join() if self._state is None else self._state)

    def ensure(self) -> Endpoint:
        """Make sure that the server answers, and start it again if it has died: for a reconnect.

        Its data is still there, as far as ``fsync`` goes; its password and socket are the same.
        """
        with self._lock:
            state = self._state
            if state is None or ask(state, self._fsync) is not Answer.READY:
                return self._endpoint(self._join())
            with self._directory.explained():
                self._claim()
            return self._endpoint(state)

    def stop(self) -> None:
        """Leave; the last one out stops the server and waits for its end. Never raises.

        The data stays. Without effect on what is not started, so it may be called twice.
        """
        with self._lock:
            if self._state is None:
                return
            try:
                with self._changing(_CHANGE_IN):
                    self._server.refresh()
                    tied = self._tied is not None and self._tied == self._server.holder()
                    if tied or self._users.try_exclusive():
                        end(self._server, self._state)
                        self._directory.tidy(self._state)
                    self._leave(LockFile.release)  # before anybody else may change anything
            except FairleadError:  # or another process has been starting it, and will use it
                self._end_lost()
            finally:
                self._leave(LockFile.release)

    def jemalloc(self) -> Path | None:
        """Return the library that the running server allocates with; None: the C library.

        Raises ``OSError`` where this process cannot see it: the server is in another container, or
        this is not Linux.
        """
        with self._lock:
            holder = self._server.holder()
        if holder is None or not is_same(holder.pid, holder.identity):
            raise ProcessLookupError(f"no process of this machine is the server of {self}")
        return loaded_by(holder.pid)

    def _endpoint(self, state: State) -> Endpoint:
        holder = self._server.holder()
        return Endpoint(
            socket=state.socket,
            password=state.password,
            pid=0 if holder is None else holder.pid,
            owner=self._is_owner,
        )

    def _join(self) -> State:
        """Be a user of a server that answers, whatever it takes."""
        if self._state is not None and self._end_lost():
            self._leave(LockFile.release)
        fresh = self._state is None
        self._directory.prepare()
        with self._directory.explained(), self._changing(self._start_timeout) as deadline:
            try:
                self._users.refresh()
                self._users.try_shared()  # it can be had: it is taken only under change.lock
                state = self._answering(deadline)
                self._claim()
            except BaseException as error:
                interrupted = not isinstance(error, FairleadError)
                if fresh and interrupted and self._users.try_exclusive():
                    end(self._server, self._directory.state())
                if fresh:
                    self._leave(LockFile.release)
                raise
        self._state = state
        _in_use.add(self)
        return state

    def _claim(self) -> None:
        """Own the server, if nobody else does."""
        self._server.refresh()
        self._owner.refresh()
        self._is_owner = self._owner.try_exclusive()  # also true if it is ours already

    def _end_lost(self) -> bool:
        """End the server if its directory was deleted: nobody else could find it any more."""
        lost = not self._directory.root.exists()
        if lost:
            end(self._server, self._state)
        return lost

    @contextlib.contextmanager
    def _changing(self, timeout: float) -> Iterator[float]:
        deadline = time.monotonic() + timeout
        with self._directory.explained():
            self._change.refresh()
            had = self._change.wait_exclusive(deadline)
        if not had:
            self._change.close()
            raise server_errors.busy(self._directory, timeout)
        try:
            yield deadline
        finally:
            self._change.release()

    def _answering(self, deadline: float) -> State:
        """How to reach the server, once it answers; started here, but not twice."""
        launched = False
        while True:
            self._server.close()  # the file may be another than the last time
            if not self._server.try_exclusive():
                state = self._directory.state()
            elif launched:
                self._server.release()
                raise server_errors.died(self._directory)
            else:
                self._check_nobody_listens()
                state, launched = self._launch(), True
                deadline = time.monotonic() + self._start_timeout
            if state is None:
                raise server_errors.stray(self._directory, self._server.holder())
            answer = ask(state, self._fsync)
            holder = self._server.holder()
            if answer is Answer.READY:
                if launched and self._lifeline is not None:
                    self._tied = holder
                return state
            if answer is Answer.SILENT and holder is not None and holder.has_ended():
                # A child of a killed server, which was rewriting its file, still has the lock. It
                # can do no harm to a new server: only its parent would have used what it wrote.
                self._server.discard()
            if time.monotonic() > deadline:
                if answer is Answer.LOADING:  # leave it to that: it will be ready for a later try
                    raise server_errors.loading(self._directory, holder, self._start_timeout)
                if launched:
                    end(self._server, state)
                raise server_errors.silent(self._directory, holder, self._start_timeout)
            time.sleep(_PAUSE)

    def _check_nobody_listens(self) -> None:
        """Refuse to start a server where one listens that has lost its lock."""
        try:
            for place in self._directory.places():
                if listens(place):
                    raise server_errors.unlocked(self._directory, place)
        except BaseException:
            self._server.release()
            raise

    def _launch(self) -> State:
        """Start a server and leave to it the lock that we have."""
        self._cut_lifeline()
        lifeline: int | None = None
        if self._dies_with_owner or _process.ends:
            lifeline, self._lifeline = os.pipe()
        try:
            binary = find_binary()
            allocator = find_allocator(binary, self._libraries) if is_bundled(binary) else None
            state = self._directory.record()
            os.ftruncate(self._server.fd, 0)
            launch(
                self._directory,
                self._server,
                state,
                binary=binary,
                allocator=allocator,
                fsync=self._fsync,
                lifeline=lifeline,
            )
        finally:
            self._server.close()  # not released: the server has it now
            if lifeline is not None:
                os.close(lifeline)
        return state

    def _leave(self, close: Callable[[LockFile], None]) -> None:
        for lock in (self._owner, self._users, self._server, self._change):
            close(lock)
        self._cut_lifeline()
        self._is_owner, self._state = False, None
        _in_use.discard(self)

    def _cut_lifeline(self) -> None:
        lifeline, self._lifeline, self._tied = self._lifeline, None, None
        if lifeline is not None:
            os.close(lifeline)

    def _after_fork(self) -> None:
        """In a forked child: these are the parent's locks, and unlocking one would be for both."""
        self._lock = threading.Lock()
        self._leave(LockFile.close)


class _Process:
    """What is known of this process."""

    ends = False  # servers in use have been stopped, and nobody would stop another one


# Forked children let go of what their parent holds; those in use are stopped when the process ends.
_process = _Process()
_instances: weakref.WeakSet[EmbeddedValkey] = weakref.WeakSet()
_in_use: set[EmbeddedValkey] = set()


def _after_fork() -> None:
    for instance in list(_instances):
        instance._after_fork()


def _at_exit() -> None:
    _process.ends = True
    for instance in list(_in_use):
        instance.stop()


at_fork(after_in_child=_after_fork)
at_the_end(_at_exit)  # the loop of sync code has calls to finish at exit
