"""What the bench of the ledger stands on: a PostgreSQL and a Valkey, a manager, and a stopwatch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.environment import LOOK, PATIENCE, processor_seconds, serving
from fairlead.embedded.postgres import EmbeddedPostgres
from fairlead.ledger.ledger import Ledger
from fairlead.model.errors import FairleadError
from fairlead.settings import LEDGER, VARIABLE

__all__ = ("Place", "Rate", "Stopwatch", "managing", "standing")

_TICKS = os.sysconf("SC_CLK_TCK")


class Place(NamedTuple):
    """Two servers that belong together, and their processes."""

    url: str
    dsn: str
    server: int
    postgres: int

    def environment(self, *, ledger: bool = True) -> dict[str, str]:
        """What a process of this place is told."""
        return {**os.environ, VARIABLE: self.url, LEDGER: self.dsn if ledger else ""}


class Rate(NamedTuple):
    """What one way to do it gives; processor time is for one task."""

    rate: float  # tasks a second
    python_us: float
    postgres_us: float
    server_us: float


@contextlib.contextmanager
def standing() -> Iterator[Place]:
    """Servers of their own, with everything on: fsync here, and the append-only file there."""
    with (
        tempfile.TemporaryDirectory(prefix="fl-") as folder,
        EmbeddedPostgres(folder, dies_with_owner=True) as dsn,
        serving() as (url, server),
    ):
        # The folder belongs to the account that runs the server, which is another one for root.
        pid = EmbeddedPostgres(folder).pid
        asyncio.run(_migrated(dsn))
        yield Place(url, dsn, server, pid)


async def _migrated(dsn: str) -> None:
    ledger = Ledger(dsn)
    try:
        await ledger.migrate()
    finally:
        await ledger.close()


@contextlib.asynccontextmanager
async def managing(place: Place) -> AsyncIterator[None]:
    """A manager that leads."""
    command = [sys.executable, "-m", "fairlead", "manager", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(*command, env=place.environment())
    try:
        ends = time.monotonic() + PATIENCE
        async with Ledger(place.dsn) as ledger:
            while f":{process.pid}:" not in (await ledger.leadership()).holder:
                if process.returncode is not None or time.monotonic() > ends:
                    raise FairleadError("the manager of the bench does not lead")
                await asyncio.sleep(LOOK)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


class Stopwatch:
    """Time on the wall, and processor time of this process and of both servers."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = processor_seconds(place.server)
        self._postgres = _family_seconds(place.postgres)
        self._python = time.process_time()
        self._began = time.perf_counter()

    def rate(self, tasks: int) -> Rate:
        """What each of so many tasks took since it was made."""
        seconds = time.perf_counter() - self._began
        python = time.process_time() - self._python
        postgres = _family_seconds(self._place.postgres) - self._postgres
        server = processor_seconds(self._place.server) - self._server
        return Rate(tasks / seconds, *(each / tasks * 1e6 for each in (python, postgres, server)))


def _family_seconds(pid: int) -> float:
    """Processor time of a process, of its children, and of those that it had."""
    own = _stat(pid)
    total = sum(own[11:15])  # utime, stime, and both of children that have ended
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        with contextlib.suppress(OSError):  # it has ended since
            total += sum(_stat(int(child))[11:13])
    return total / _TICKS


def _stat(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat behind the name and the state, which is counted as a 0."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return [0, *map(int, text.rpartition(")")[2].split()[1:])]
