"""A server, an app that enqueues, the broker's events, and workers in a folder of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import msgspec

from fairlead import Ambiguous, Fairlead, Handle, Refused, Task, Unreachable
from fairlead.broker import Store, connect
from fairlead.broker.records import TaskRecord, WorkerRecord
from fairlead.client import CallOptions
from fairlead.model.events import Event, EventId
from fairlead.model.lifecycle import FINAL
from tests.support.worker_process import PATIENCE, WorkerProcess, until

__all__ = ("PASSING", "Record", "Site", "Stream", "opened")

T = TypeVar("T")

#: Why a server refuses for a while: the faults that tests cause, and what follows a start.
PASSING = ("busy", "loading", "noreplicas", "oom")

# What every app module begins with. A line of the records is one write to a file that all share.
PRELUDE = """
import asyncio
import contextlib
import json
import os
import sys
import time

from fairlead import Context, Fairlead

_records = os.open(os.environ["TEST_RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def record(what, ctx=None):
    line = {"what": what, "pid": os.getpid(), "at": time.time()}
    if ctx is not None:
        line.update(id=ctx.id, attempt=ctx.attempt, token=ctx.token)
    os.write(_records, (json.dumps(line) + "\\n").encode())


record("import")
app = Fairlead(os.environ["TEST_URL"])


@app.task(name="nap")
async def nap(ctx: Context, first: float, later: float = 0.1) -> int:
    # The first attempt takes its time, further ones another.
    record("begin", ctx)
    await asyncio.sleep(first if ctx.attempt == 1 else later)
    record("end", ctx)
    return ctx.token
"""


class Record(msgspec.Struct, frozen=True):
    """One line that a process of a worker wrote."""

    what: str
    pid: int
    at: float
    id: str = ""
    attempt: int = 0
    token: int = 0


class Stream:
    """The broker's events as they come, over restarts of the server and broken connections."""

    def __init__(self, store: Store) -> None:
        self.events: list[Event] = []
        self.tasks: dict[str, list[Event]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self._store = store
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        """Read on and on, until cancelled."""
        last: EventId | None = None
        while True:
            try:
                page = await self._store.events(after=last, timeout=0.5)
            except (Unreachable, Ambiguous):
                await asyncio.sleep(0.05)
                continue
            except Refused as refused:
                if refused.cause not in PASSING:
                    raise
                await asyncio.sleep(0.05)
                continue
            assert not page.gap, "events were dropped before they were read"
            last = page.last
            async with self._changed:
                for event in page.events:
                    self.events.append(event)
                    self.tasks[event.task].append(event)
                    self.counts[event.kind] += 1
                self._changed.notify_all()

    def of(self, ids: Iterable[str], *kinds: str) -> list[Event]:
        """The events of some tasks, in the order of the tasks."""
        return [event for id in ids for event in self.tasks[id] if event.kind in kinds]

    def count(self, ids: Iterable[str], *kinds: str) -> int:
        return len(self.of(ids, *kinds))

    def kinds(self, id: str) -> list[str]:
        """What happened to one task, in order."""
        return [event.kind for event in self.tasks[id]]

    def final(self, ids: Iterable[str]) -> bool:
        """Whether all of these tasks have ended."""
        return all(self.tasks[id] and self.tasks[id][-1].state in FINAL for id in ids)

    async def until(self, check: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait for events until it is so."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(check)
        except TimeoutError:
            counts = dict(self.counts)
            raise AssertionError(f"waited {seconds:g} s for {what}; events: {counts}") from None

    async def started(self, ids: Sequence[str], seconds: float = PATIENCE) -> None:
        """Wait until each has started at least once."""
        await self.until(
            lambda: all(any(e.kind == "started" for e in self.tasks[id]) for id in ids),
            f"{len(ids)} tasks to start",
            seconds,
        )

    async def ended(self, ids: Sequence[str], seconds: float = PATIENCE) -> None:
        """Wait until each is final."""
        await self.until(lambda: self.final(ids), f"{len(ids)} tasks to end", seconds)


class Site:
    """Everything a scenario needs. Workers started here are killed with the site."""

    def __init__(self, url: str, folder: Path, tasks: str) -> None:
        self.url, self.folder = url, folder
        self.workers_url = url  # of all other processes: a proxy may stand between
        self.store = connect(url)
        self.app = Fairlead(store=self.store)
        self.stream = Stream(self.store)
        self.workers: list[WorkerProcess] = []
        self._tasks: dict[str, Task[..., Any]] = {}
        self._records = folder / "records"
        (folder / "jobs.py").write_text(PRELUDE + textwrap.dedent(tasks), encoding="utf-8")

    def environment(self, host: str = "here") -> dict[str, str]:
        """What a process of this site is told."""
        return {
            "TEST_URL": self.workers_url,
            "TEST_RECORDS": str(self._records),
            "FAIRLEAD_HOST": host,
            "FAIRLEAD_URL": "",
        }

    def worker(
        self,
        *arguments: str,
        host: str = "here",
        wrapper: Sequence[str] = (),
        **environment: str,
    ) -> WorkerProcess:
        """Start ``fairlead worker`` with these arguments."""
        made = WorkerProcess(
            self.folder,
            *arguments,
            environment={**self.environment(host), **environment},
            name=f"worker-{len(self.workers)}",
            wrapper=wrapper,
        )
        self.workers.append(made)
        return made.start()

    async def enqueue(
        self, task: str, count: int = 1, /, *args: Any, **options: Unpack[CallOptions]
    ) -> list[str]:
        """Enqueue a task of the app module so many times; the ids."""
        return [handle.id for handle in await self.handles(task, count, *args, **options)]

    async def handles(
        self, task: str, count: int = 1, /, *args: Any, **options: Unpack[CallOptions]
    ) -> list[Handle[Any]]:
        call = self.task(task).using(**options).call
        return await self.app.aenqueue_many([call(*args) for _ in range(count)])

    def task(self, name: str) -> Task[..., Any]:
        """A task of the app module, to be called from here."""
        if name not in self._tasks:
            self._tasks[name] = self.app.task(name=name)(_stand_in)
        return self._tasks[name]

    async def found(self, ids: Sequence[str]) -> list[TaskRecord]:
        """What the broker knows of tasks that must be known."""
        records: list[TaskRecord] = []
        for start in range(0, len(ids), 500):
            for record in await self.store.find(ids[start : start + 500]):
                assert record is not None, "a task is unknown"
                records.append(record)
        return records

    def records(self, *what: str) -> list[Record]:
        """What the workers' processes wrote down, all or some kinds."""
        if not self._records.exists():
            return []
        lines = self._records.read_bytes().split(b"\n")[:-1]
        found = [msgspec.convert(json.loads(line), Record) for line in lines]
        return [record for record in found if not what or record.what in what]

    async def recorded(self, what: str, count: int, seconds: float = PATIENCE) -> list[Record]:
        """Wait for that many records of a kind."""
        await until(
            lambda: len(self.records(what)) >= count,
            lambda: f"{count} records {what!r}; there are {len(self.records(what))}",
            seconds,
        )
        return self.records(what)

    async def registered(self, pid: int) -> WorkerRecord:
        """The record of a worker child, once it is there."""
        [record] = await self.eventually(
            lambda found: [worker for worker in found if worker.pid == pid],
            f"the record of worker {pid}",
        )
        return record

    async def eventually(
        self,
        choose: Callable[[list[WorkerRecord]], T],
        what: str,
        seconds: float = PATIENCE,
    ) -> T:
        """What is chosen of the registry, once it is something."""
        deadline = time.monotonic() + seconds
        while True:
            records = await self.app.aworkers()
            if found := choose(records):
                return found
            assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}: {records}"
            await asyncio.sleep(0.05)

    async def sweeps(self) -> None:
        """Wait until sweeps end leases: the first ones of a broker's life end none.

        Begin early: the guard counts from the first sweep.
        """
        deadline = time.monotonic() + 30.0
        while (await self.store.sweep()).guarded:
            assert time.monotonic() < deadline, "the guard of the sweep is still up"
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def opened(
    url: str, folder: Path, tasks: str = "", *, audited: bool = True
) -> AsyncIterator[Site]:
    """A site on a server; at its end everything is killed and what is stored must be sound."""
    site = Site(url, folder, tasks)
    following = asyncio.create_task(site.stream.follow())
    try:
        yield site
        assert not following.done(), following.exception()
        for worker in site.workers:
            worker.close()
        assert not audited or await site.store.audit() == []
    finally:
        for worker in site.workers:
            worker.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await site.store.close()


def _stand_in(*args: Any) -> Any:
    """For tasks that only the app module of the workers has."""
    raise NotImplementedError
