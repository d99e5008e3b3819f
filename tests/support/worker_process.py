"""``fairlead worker`` as a user starts it, its processes as /proc shows them, and its log.

Every process that a worker starts carries a mark in its environment. Whatever carries it is killed
when the test is over, and by a guard process should the tests themselves be killed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

__all__ = ("Entry", "WorkerProcess", "environment_of", "is_alive", "marked", "moment", "until")

Entry = dict[str, Any]  # one line of a log

COMMAND = Path(sys.executable).with_name("fairlead")
PATIENCE = 60.0  # seconds for anything that is waited for
_STEP = 0.01  # seconds between two looks
_MARK = "FAIRLEAD_TEST_MARK"

# Ends when the tests do, however they end, and kills what they left.
_GUARD = """
import os, signal, sys

sys.stdin.buffer.read()
mark = sys.argv[1].encode()
for _ in range(3):
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                found = mark in file.read()
            if found:
                os.kill(int(name), signal.SIGKILL)
        except (OSError, ValueError):
            pass
"""


# Makes a terminal that is open as stdin the one of this session, and becomes the program.
_TIE = """
import fcntl, os, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@cache
def _run() -> str:
    """With what the mark of all that this process starts begins."""
    return uuid.uuid4().hex


class WorkerProcess:
    """A supervisor and everything below it. May be started again after its end."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        app: str = "jobs:app",
        environment: Mapping[str, str] | None = None,
        name: str = "worker",
        wrapper: Iterable[str] = (),
    ) -> None:
        self.folder, self.name = folder, name
        self.file = folder / f"{name}.log"
        self._mark = f"{_run()}.{uuid.uuid4().hex[:8]}"
        self._command = [*wrapper, str(COMMAND), "worker", app, "--log-format", "json", *arguments]
        self._environment = {
            **os.environ,
            **(environment or {}),
            _MARK: self._mark,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._log: list[Entry] = []
        self._read = 0  # bytes of the log
        self.file.touch()

    # -- life -----------------------------------------------------------------------------------

    def start(self, terminal: int | None = None) -> Self:
        """Start it, as a service is or from a terminal."""
        assert self._process is None or self._process.poll() is not None, "it runs already"
        _guard()
        tie = [] if terminal is None else [sys.executable, "-I", "-S", "-c", _TIE]
        with self.file.open("ab") as log:
            self._process = subprocess.Popen(
                tie + self._command,
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=log if terminal is None else terminal,
                stderr=log if terminal is None else terminal,
                start_new_session=True,  # whatever terminal the tests have is not its own
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def processes(self) -> int:
        """How many children it was told to have."""
        given = self._command
        return int(given[given.index("-p") + 1]) if "-p" in given else 1

    async def ready(self, *, but: Iterable[int] = (), seconds: float = PATIENCE) -> list[int]:
        """Wait until all children, none of them one of ``but``, said that they work; their pids."""
        gone = set(but)

        def look() -> bool:
            assert self.running, f"{self.name} has ended:\n{self.tail()}"
            born = self.born().keys() - gone
            if len(born) < self.processes:  # no need to look who lives
                return False
            children = set(self.children())
            return len(children) == self.processes and children <= born

        await until(look, lambda: f"the children of {self.name} to work\n{self.tail()}", seconds)
        return self.children()

    async def wait(self, seconds: float = PATIENCE) -> int:
        """The exit status, once it has ended."""
        process = self._process
        assert process is not None, "it was never started"
        await until(
            lambda: process.poll() is not None,
            lambda: f"{self.name} to end\n{self.tail()}",
            seconds,
        )
        return int(process.returncode)

    def close(self) -> None:
        """Kill all that is left of it, slots and orphans too."""
        self.kill_tree()

    # -- processes ------------------------------------------------------------------------------

    def children(self) -> list[int]:
        """The worker children: those whose parent is the supervisor."""
        if not self.running:
            return []
        return [pid for pid, (parent, _) in _table().items() if parent == self.pid]

    def tree(self) -> list[int]:
        """All live processes of this worker, the supervisor first."""
        found = set(marked(self._mark))
        if self.running:
            found.add(self.pid)  # a look at its environment may fail on a busy machine
        return sorted(found, key=lambda pid: (pid != self.pid, pid))

    def below(self, pid: int) -> list[int]:
        """A process and all that descend from it."""
        table, found = _table(), [pid]
        for known in found:
            found += [each for each, (parent, _) in table.items() if parent == known]
        return found

    # -- signals --------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        """To the supervisor."""
        os.kill(self.pid, number)

    def kill_child(self, pid: int | None = None) -> int:
        """Kill -9 one child, the first unless another is named; its pid."""
        pid = self.children()[0] if pid is None else pid
        assert pid in self.children(), f"{pid} is no child of {self.name}"
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_supervisor(self) -> None:
        """Kill -9 the supervisor alone."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(PATIENCE)

    def kill_tree(self) -> None:
        """Kill -9 supervisor, children and slots, and wait until they are gone.

        They are stopped first: a child that sees its supervisor die hands back what it has, and
        would do so if it lived a moment longer.
        """
        deadline = time.monotonic() + PATIENCE
        killed: set[int] = set()
        # One that ends loses its mark before it lets go of its files, and of the locks on them.
        while (found := self.tree()) or killed & _table().keys():
            assert time.monotonic() < deadline, f"{self.name} cannot be killed: {found or killed}"
            killed.update(found)
            _send(found, signal.SIGSTOP)
            _send(found, signal.SIGKILL)
            if self._process is not None:
                self._process.poll()
            time.sleep(_STEP)
        if self._process is not None:
            self._process.wait(PATIENCE)

    def stop(self, pids: Iterable[int] | None = None) -> None:
        """SIGSTOP some processes, or all of them; they stand still when this returns."""
        pids = self.tree() if pids is None else list(pids)
        _send(pids, signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while moving := [pid for pid in pids if _table().get(pid, (0, "T"))[1] not in "Tt"]:
            assert time.monotonic() < deadline, f"processes of {self.name} do not stop: {moving}"
            time.sleep(_STEP)

    def cont(self, pids: Iterable[int] | None = None) -> None:
        """SIGCONT, the supervisor last: it should not see children that stand still."""
        _send(reversed(self.tree() if pids is None else list(pids)), signal.SIGCONT)

    # -- log ------------------------------------------------------------------------------------

    def log(self, event: str | None = None, **fields: Any) -> list[Entry]:
        """Lines of the log, all or of one event with these fields; other text is a ``text``."""
        with self.file.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        end = fresh.rfind(b"\n") + 1
        self._read += end
        self._log += [_entry(line) for line in fresh[:end].splitlines()]
        return [
            entry
            for entry in self._log
            if (event is None or entry.get("event") == event)
            and all(entry.get(name) == value for name, value in fields.items())
        ]

    def born(self) -> dict[int, Entry]:
        """What each child said when it began to work, by its pid."""
        return {entry["child"]: entry for entry in self.log("worker started")}

    def text(self) -> str:
        """All that it wrote to stdout and stderr."""
        return self.file.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    async def logged(self, event: str, *, seconds: float = PATIENCE, **fields: Any) -> Entry:
        """The first line of this event with these fields, once it is there."""
        await until(
            lambda: bool(self.log(event, **fields)),
            lambda: f"{self.name} to log {event!r} with {fields}\n{self.tail()}",
            seconds,
        )
        return self.log(event, **fields)[0]


async def until(
    check: Callable[[], bool], what: str | Callable[[], str], seconds: float = PATIENCE
) -> None:
    """Look until it is so: for what nobody sends an event for, as in /proc or a log."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {seconds:g} s for {said}")
        await asyncio.sleep(_STEP)


def moment(entry: Entry) -> float:
    """The time of a line, in unix seconds."""
    ts = entry["ts"]
    return float(ts) if isinstance(ts, int | float) else datetime.fromisoformat(ts).timestamp()


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that nobody has waited for is not alive."""
    return pid in _table()


def marked(mark: str = "") -> list[int]:
    """The live processes whose environment carries a mark; without one, all that tests started."""
    found, wanted = [], f"{_MARK}={mark or _run()}".encode()
    for pid in _table():
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def environment_of(mark: str) -> dict[str, str]:
    """What marks a process that is no worker but should not outlive the tests either."""
    _guard()
    return {_MARK: f"{_run()}.{mark}"}


@cache
def _guard() -> None:
    """Start the guard, once."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, f"{_MARK}={_run()}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def end() -> None:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(PATIENCE)

    atexit.register(end)


def _table() -> dict[int, tuple[int, str]]:
    """Parent and state of each process that is alive, if only with one of its threads."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - this runs a hundred times a second
        if name.isdecimal() and (line := _read(f"/proc/{name}/stat")):
            fields = line.rpartition(b")")[2].split()
            state, parent, threads = fields[0], fields[1], int(fields[17])
            if state not in b"ZXx" or threads > 1:
                found[int(name)] = (int(parent), state.decode())
    return found


def _read(path: str) -> bytes:
    """The beginning of a file, nothing if its process has gone."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 4096)
    except ProcessLookupError:
        return b""
    finally:
        os.close(file)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _entry(line: bytes) -> Entry:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": line.decode(errors="replace")}


# Tests run in forks. What one of them started ends with it, and nothing else does.
os.register_at_fork(after_in_child=_run.cache_clear)
os.register_at_fork(after_in_child=_guard.cache_clear)
