"""One row of the bench: a peer on an empty server, its workers and what they have marked."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import marks
from benchmarks.peers.adapter import TENANTS, URL
from benchmarks.peers.catalog import Peer
from benchmarks.peers.installation import Installed, surroundings
from benchmarks.peers.processes import Failure, Processes
from benchmarks.peers.server import Server

__all__ = ("Trial",)

_LOOK = 0.02  # seconds between two looks at the marks
_STILL = 20.0  # seconds without a mark after which nothing is expected any more
_WITHIN = 120.0  # seconds for what an adapter is told to do, or for a worker to be done


class Trial:
    """Whoever leaves it has ended its workers, and left nothing on disk."""

    def __init__(
        self, installed: Installed, server: Server, processes: Processes, *, tenants: int = 1
    ) -> None:
        self.server = server
        self._command = installed.command
        self._peer = installed.peer
        self._processes = processes
        self._workers: list[subprocess.Popen[bytes]] = []
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self._peer.name}-", dir=processes.folder))
        self._log = self._folder / "log"
        self._environment = surroundings(
            **{URL: server.url, marks.FOLDER: str(self._folder), TENANTS: str(tenants)},
            TMPDIR=str(processes.folder),  # what a worker leaves there goes with the bench
        )

    def __enter__(self) -> Trial:
        self.server.empty()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            self.server.empty()

    @property
    def peer(self) -> Peer:
        """The peer that is tried."""
        return self._peer

    def tell(self, verb: str, *arguments: float) -> dict[str, Any]:
        """Have the adapter do something, and return what it found."""
        command = [*self._command, verb, *map(str, arguments)]
        said = self._processes.run(command, self._environment, within=_WITHIN)
        lines = said.splitlines() or [""]
        try:
            found: dict[str, Any] = json.loads(lines[-1])
        except ValueError as error:
            raise Failure(f"it said {lines[-1]!r} instead of a figure") from error
        return found

    def start(self, slots: int, processes: int = 1) -> None:
        """Start so many processes of the peer's worker."""
        commands, each = (1, processes) if self._peer.forks else (processes, 1)
        for _ in range(commands):
            command = [*self._command, "work", str(slots), str(each)]
            self._workers.append(self._processes.start(command, self._environment, self._log))

    def stop(self) -> None:
        """End the workers."""
        while self._workers:
            self._processes.stop(self._workers.pop())

    def wait(self, tasks: int) -> dict[str, list[int]]:
        """Wait for so many marks and return them, of each process.

        Raises ``Failure`` if they do not come.
        """
        ends, still, before = time.monotonic() + _WITHIN, time.monotonic() + _STILL, 0
        while True:
            now = sum(marks.count(self._folder).values())
            if now >= tasks:
                return marks.read(self._folder)
            moment = time.monotonic()
            if now > before:
                before, still = now, moment + _STILL
            died = any(worker.poll() is not None for worker in self._workers)
            if died or moment > min(ends, still):
                raise Failure(f"{now:,} of {tasks:,} tasks ran{self._last_words(died)}")
            time.sleep(_LOOK)

    def _last_words(self, died: bool) -> str:
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        what = ", then a worker ended" if died else ""
        return f"{what}: {said[-200:]}" if said else what
