"""Producers with a spool in processes of their own, their books, and servers that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead import Ambiguous, Refused, Unreachable
from tests.acceptance.harness import Site, opened
from tests.support.checker import History, Verdict
from tests.support.servers import Running
from tests.support.worker_process import PATIENCE, Entry, environment_of

__all__ = (
    "ACKNOWLEDGED",
    "DURABLE",
    "Line",
    "Producer",
    "arrived",
    "flap",
    "judged",
    "percentile",
    "producing",
    "runs",
    "spool_command",
    "spooling_site",
    "written",
)

ACKNOWLEDGED = ("committed", "spooled")
DURABLE = {"appendfsync": "always"}  # so that a killed server keeps its word


def written(folder: Path) -> bytes:
    """All that is in files below a folder, in which others make and rename folders meanwhile."""
    found = b""
    for place, _, names in os.walk(folder):  # unlike rglob it passes what is gone
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found += Path(place, name).read_bytes()
    return found


_PROGRAM = Path(__file__).with_name("outage_producer.py")


class Line(msgspec.Struct, frozen=True):
    """What a producer noted: ``attempted``, what it was told, or the error that it got."""

    what: str
    id: str
    at: float
    seconds: float  # that the call took

    @property
    def began(self) -> float:
        return self.at - self.seconds


class Producer:
    """A process that enqueues. After a kill it may be started again, with the same book."""

    def __init__(self, folder: Path, url: str, name: str = "p", **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self.name, self.spool = name, folder / "spool"
        self.file = folder / f"{name}.log"
        self._book = folder / f"{name}.book"
        self._book.touch()
        self._folder = folder
        self._environment = {
            **os.environ,
            **environment_of(name),
            "TEST_URL": url,
            "TEST_SPOOL": str(self.spool),
            "FAIRLEAD_URL": "",
            **environment,
        }
        self._process: subprocess.Popen[str] | None = None

    async def start(self, wrapper: Sequence[str] = ()) -> Producer:
        self._start(wrapper)
        await self._heard()
        return self

    def _start(self, wrapper: Sequence[str]) -> None:
        with self.file.open("ab") as log:
            self._process = subprocess.Popen(
                [*wrapper, sys.executable, str(_PROGRAM), str(self._book), self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                env=self._environment,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Give an order, and wait for what comes of it."""
        self.tell(do, **fields)
        return await self._heard()

    def tell(self, do: str, **fields: Any) -> None:
        """Give an order whose answer nobody waits for."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()

    async def enqueue(self, count: int = 1, *args: Any, **options: Any) -> dict[str, int]:
        """So many tasks; how many of them ended in which way."""
        return await self.ask("enqueue", count=count, args=args or (0.0,), options=options)

    async def commit(self, count: int, **options: Any) -> None:
        """So many tasks that the broker has; on a busy machine others may be spooled before."""
        for _ in range(20):
            said = await self.enqueue(count, **options)
            if said == {"committed": count}:
                return
            assert set(said) <= set(ACKNOWLEDGED), said
            await asyncio.sleep(0.5)
        raise AssertionError(f"{self.name} does not come out of its spool")

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    async def close(self) -> None:
        """Let it close its app and end."""
        await self.ask("close")
        process = self._process
        assert process is not None
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        self.kill()

    def lines(self, *what: str) -> list[Line]:
        """Its book, all or some kinds."""
        return _lines(self._book, what)

    def times(self, what: str) -> list[Line]:
        """What it waited for under load: ``disk`` for a sync, ``loop`` for its turn."""
        return _lines(Path(f"{self._book}.times"), (what,))

    def ids(self, *what: str) -> list[str]:
        """What it was told that it exists, or other kinds."""
        return [line.id for line in self.lines(*(what or ACKNOWLEDGED))]

    def log(self) -> list[Entry]:
        """What it logged; other text is a ``text``."""
        found: list[Entry] = []
        for line in self.file.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"text": line})
        return found

    async def _heard(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        assert line, f"{self.name} has ended:\n{self.file.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def _lines(book: Path, what: Sequence[str]) -> list[Line]:
    found = []
    for line in book.read_bytes().split(b"\n")[:-1]:
        kind, id, at, seconds = line.decode().split()
        if not what or kind in what:
            found.append(Line(kind, id, float(at), float(seconds)))
    return found


@contextlib.asynccontextmanager
async def producing(
    folder: Path, url: str, *names: str, **environment: str
) -> AsyncIterator[list[Producer]]:
    """Producers that share one spool directory; killed at the end."""
    made = [Producer(folder, url, name, **environment) for name in names]
    try:
        await asyncio.gather(*(each.start() for each in made))
        await asyncio.gather(*(each.ask("greet") for each in made))
        yield made
    finally:
        for each in made:
            each.kill()


@contextlib.asynccontextmanager
async def spooling_site(
    running: Running, folder: Path, tasks: str = "", *, audited: bool = True
) -> AsyncIterator[Site]:
    """A site whose workers spool their outcomes."""
    async with opened(running.url, folder, tasks, audited=audited) as site:
        given = site.environment

        def environment(host: str = "here") -> dict[str, str]:
            spool = str(folder / "worker-spool")
            return {**given(host), "FAIRLEAD_FALLBACK": "spool", "FAIRLEAD_SPOOL": spool}

        site.environment = environment  # type: ignore[method-assign]
        yield site


async def arrived(site: Site, ids: Sequence[str], seconds: float = PATIENCE) -> None:
    """Wait until the broker knows all of these tasks."""
    missing = list(ids)
    deadline = time.monotonic() + seconds
    while missing:
        with contextlib.suppress(Unreachable, Ambiguous, Refused):
            for start in range(0, len(missing), 500):
                part = missing[start : start + 500]
                found = await site.store.find(part)
                gone = {id for id, record in zip(part, found, strict=True) if record is not None}
                if gone:
                    missing = [id for id in missing if id not in gone]
                    break
        if missing:
            assert time.monotonic() < deadline, (
                f"{len(missing)} of {len(ids)} tasks did not arrive within {seconds:g} s: "
                f"{missing[:5]}"
            )
            await asyncio.sleep(0.05)


def runs(site: Site) -> Counter[str]:
    """How often each task began."""
    return Counter(record.id for record in site.records("begin"))


def judged(site: Site, producers: Iterable[Producer]) -> Verdict:
    """What the producers, the broker and the handlers say together."""
    history = History()
    for producer in producers:
        for id in producer.ids("attempted"):
            history.attempted(id)
        for id in producer.ids():
            history.acknowledged(id)
    for record in site.records("end"):
        history.finished(record.id, record.token, record.at)
    history.read(site.stream.events)
    return history.verdict()


async def flap(
    running: Running, seconds: float, dice: random.Random, periods: tuple[float, float]
) -> int:
    """Kill or freeze the server and let it live again, at random, for so long; how often."""
    times, over = 0, time.monotonic() + seconds
    while time.monotonic() < over:
        # As many short ones as long ones, whatever their ratio.
        low, high = periods
        down, up = (low * (high / low) ** dice.random() for _ in range(2))
        if dice.random() < 0.5:
            await asyncio.to_thread(running.kill)
            await asyncio.sleep(down)
            await asyncio.to_thread(running.start)
        else:
            running.pause()
            await asyncio.sleep(down)
            running.resume()
        times += 1
        await asyncio.sleep(up)
    return times


async def spool_command(folder: Path, url: str, *arguments: str) -> tuple[int, str]:
    """``fairlead spool`` with these arguments; exit code and stdout."""
    environment = {
        **os.environ,
        **environment_of("spool"),
        "FAIRLEAD_URL": url,
        "FAIRLEAD_SPOOL": str(folder),
    }
    command = [str(Path(sys.executable).with_name("fairlead")), "spool", *arguments]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env=environment,
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    print(done.stdout, done.stderr)
    return done.returncode, done.stdout


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    assert ordered, "there is nothing to take a percentile of"
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]
