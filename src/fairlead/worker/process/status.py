"""What a supervisor writes down about its worker, for whoever looks after this machine.

A small file for each supervisor, in a directory of its user, written anew every two seconds and
when a child comes or goes. A probe reads it without asking the worker or the broker: an answer
that has to be waited for says nothing about the one that does not come.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Literal, get_args

import msgspec

from fairlead.model.errors import Refused
from fairlead.runtime.component import within
from fairlead.runtime.identity import host, identity, is_gone
from fairlead.runtime.private_folders import check_private, make_private
from fairlead.worker.process.child import Child
from fairlead.worker.process.supervisor import Supervisor

log = logging.getLogger("fairlead.worker")

VARIABLE = "FAIRLEAD_RUN_DIR"

_INTERVAL = 2.0  # seconds
_STALE = 10.0  # seconds after which a file says that its writer hangs
_LATE_FETCH = 60.0  # seconds without a fetch; an idle worker fetches every 15
_SILENT = 5.0  # seconds without a tick of the loop


ChildState = Literal["starting", "working", "failing", "hanging", "silent"]
STATES: tuple[ChildState, ...] = get_args(ChildState)


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One child. ``failing`` says how long its broker has not answered, 0 that it does."""

    pid: int
    incarnation: str
    broker: str  # its address, without secrets; empty while it starts
    state: ChildState
    failing: float
    fetch_age: float
    tick_age: float
    lag: float
    running: int
    held: int
    settled: int
    fenced: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A worker on this machine. ``written_at`` is by the monotonic clock of the machine."""

    pid: int
    host: str
    identity: dict[str, str]
    app: str
    quiet: bool
    wanted: int  # children
    written_at: float
    children: list[ChildStatus]

    def problems(self) -> list[str]:
        """What is wrong with it, a sentence each; a broker that does not answer is not."""
        age = time.monotonic() - self.written_at
        if age > _STALE:
            return [f"supervisor {self.pid} has said nothing for {age:.0f} s"]
        found = []
        for child in self.children:
            if child.state == "hanging":
                found.append(f"the loop of child {child.pid} hangs for {child.tick_age:.0f} s")
            elif child.state == "silent":
                found.append(f"child {child.pid} has not fetched for {child.fetch_age:.0f} s")
        if len(self.children) < self.wanted:
            found.append(f"{len(self.children)} of {self.wanted} children live")
        return found

    def cut_off(self) -> list[str]:
        """What is wrong with its broker, a sentence each."""
        return [
            f"child {child.pid} does not reach its broker for {child.failing:.0f} s"
            for child in self.children
            if child.state == "failing"
        ]


class StatusWriter:
    """Writes the status of a supervisor, for as long as it runs."""

    name = "status"

    def __init__(self, supervisor: Supervisor, app: str, folder: Path | None = None) -> None:
        self._supervisor = supervisor
        self._app = app
        self._folder = folder
        self._path = (folder or run_dir()) / f"worker-{os.getpid()}.json"
        self._failed = False

    async def run(self) -> None:
        """Write every two seconds and when a child comes or goes; remove the file at the end."""
        changed = self._supervisor.changed
        try:
            while True:
                changed.clear()
                self.write()
                await within(_INTERVAL, changed)
        finally:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def write(self) -> None:
        """Write once; what cannot be written is no reason to stop working, but is said once."""
        status = Status(
            pid=os.getpid(),
            host=host(),
            identity=identity(os.getpid()),
            app=self._app,
            quiet=self._supervisor.is_quiet,
            wanted=self._supervisor.wanted,
            written_at=time.monotonic(),
            children=[status_of(child) for child in self._supervisor.children if child.pid],
        )
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.parent.mkdir(parents=True, exist_ok=True)
            if self._folder is not None or _named():  # whose it is was for its chooser to decide
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
            else:
                make_private(self._path.parent)
            fresh.unlink(missing_ok=True)  # what is written is ours, whoever was here before
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(status))
            fresh.replace(self._path)
        except (OSError, Refused) as error:
            if not self._failed:
                log.warning(
                    "status not written, so `fairlead check` does not see this worker: %s; "
                    "set %s to a directory that it may write to",
                    error,
                    VARIABLE,
                )
            self._failed = True
        else:
            self._failed = False


def read_all(folder: Path | None = None) -> list[Status]:
    """The workers of this user on this machine; files of those that were killed are removed.

    Files of other users are not read. Raises ``Refused`` if the directory itself is another's.
    """
    place = folder or run_dir()
    if folder is None and not _named() and os.path.lexists(place):
        check_private(place)
    found = []
    for path in sorted(place.glob("worker-*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            status = msgspec.json.decode(_own(path), type=Status)
            if is_gone(host(), status.pid, status.identity):
                path.unlink(missing_ok=True)
            else:
                found.append(status)
    return found


def run_dir() -> Path:
    """Where the files are."""
    if named := _named():
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "fairlead"
    return Path(tempfile.gettempdir()) / f"fairlead-{os.getuid()}"


def _named() -> str | None:
    return os.environ.get(VARIABLE)


def _own(path: Path) -> bytes:
    """What a file of this user holds; others may leave files where they can, not words."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def status_of(child: Child) -> ChildStatus:
    """How a child is right now."""
    now = time.monotonic()
    shared_state, who = child.shared_state, child.introduction
    fetched_at, lag, failing = shared_state.times
    rows = shared_state.lent()
    running = sum(row.started for row in rows)
    tick_age = now - child.moved_at
    fetch_age = now - fetched_at if fetched_at else 0.0
    state: ChildState = "working"
    if not shared_state.ticks:
        state = "starting"
    elif tick_age > _SILENT:
        state = "hanging"
    elif who is None:
        state = "starting"
    elif failing:
        state = "failing"
    elif fetch_age > _LATE_FETCH and shared_state.wants:
        state = "silent"
    counters = shared_state.counters
    return ChildStatus(
        pid=child.pid,
        incarnation="" if who is None else who.incarnation,
        broker=child.broker,
        state=state,
        failing=round(failing, 3),
        fetch_age=round(fetch_age, 3),
        tick_age=round(tick_age, 3),
        lag=round(lag, 6),
        running=running,
        held=len(rows) - running,
        settled=counters["settled"],
        fenced=counters["fenced"],
    )
