"""How long calls of bulk actions keep the server: its processor time for each.

    python -m benchmarks.bulk                  # 100,000 tasks
    python -m benchmarks.bulk 20000 cancel purge

By the scheduler's count, so that other work of the machine counts less than by the clock. The
server is the one that ``embedded://`` would start, without its file.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, Change, Fetch, QueueChange, Submission, TenantChange
from fairlead.client.bulk_actions import BulkAction, Changes, begin, bulk_step
from fairlead.client.client import Client
from fairlead.client.task_reader import PageSelection
from fairlead.embedded.valkey_server import find_binary
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Message

_MANY = 100_000
_QUEUES = 5_000
_BATCH = 500
_STEP = 0.05
Work = Callable[[], Awaitable[object]]


class Served:
    """A server of its own, and how long it has run so far."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "socket"
        self._process = subprocess.Popen(
            [
                *(find_binary(), "--port", "0", "--unixsocket", self.socket, "--dir", folder),
                *("--save", "", "--appendonly", "no", "--latency-tracking", "no"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not self.socket.exists():
            time.sleep(_STEP)
        self._clock = ~self._process.pid << 3 | 2  # as clock_getcpuclockid(3) makes it

    def spent(self) -> int:
        """Nanoseconds."""
        return time.clock_gettime_ns(self._clock)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Clocked(RedisBroker):
    """A broker that notes what each call took from the server, in milliseconds by verb."""

    def __init__(self, served: Served) -> None:
        super().__init__(f"unix://{served.socket}")
        self._served = served
        self.took: dict[str, list[float]] = {}

    async def run(self, verb: str, *args: Any, **options: Any) -> Any:
        before = self._served.spent()
        try:
            return await super().run(verb, *args, **options)
        finally:
            took = (self._served.spent() - before) / 1e6
            self.took.setdefault(verb, []).append(took)


class Bench:
    """What operators do to many tasks, each on a server without anything else."""

    def __init__(self, served: Served, many: int) -> None:
        self._many = many
        self._broker = Clocked(served)
        self._client = Client(self._broker)
        self._number = self._last = 0

    async def run(self, parts: list[str]) -> None:
        """Do these, or all, and print what their calls took."""
        cases: dict[str, Callable[[], Awaitable[None]]] = {
            "cancel": self._cancel,
            "tenants": self._cancel_of_tenants,
            "scheduled": self._cancel_scheduled,
            "dead": self._dead,
            "purge": self._purge,
            "sleepers": self._purge_scheduled,
            "prioritize": self._prioritize,
            "configure": self._configure,
            "due": self._due,
        }
        await self._row("first call, which brings the library", self._broker.tidy)
        print(f"{'':46}{'calls':>7}{'p50':>8}{'p99':>8}{'p99.9':>8}{'max':>8} ms")
        for part in parts or list(cases):
            await cases[part]()
        await self._broker.close()

    async def _cancel(self) -> None:
        await self._fill()
        await self._act("cancel", "cancel", {})
        await self._tidy("cancel")
        await self._act("delete finished", "delete", {})
        await self._tidy("delete finished")
        await self._end()

    async def _cancel_of_tenants(self) -> None:
        await self._fill(tenants=1_000)
        await self._act("cancel, 1,000 tenants", "cancel", {})
        await self._tidy("cancel, 1,000 tenants")
        await self._end()

    async def _cancel_scheduled(self) -> None:
        await self._fill(delay=3600.0)
        await self._act("cancel scheduled", "cancel", {})
        await self._tidy("cancel scheduled")
        await self._end()

    async def _dead(self) -> None:
        await self._fill()
        await self._fail()
        await self._act("retry dead", "retry", {"state": "dead"})
        await self._fail()
        await self._act("delete dead", "delete", {"state": "dead"})
        await self._end()

    async def _prioritize(self) -> None:
        await self._fill()
        await self._act("prioritize", "prioritize", {})
        await self._end()

    async def _purge(self) -> None:
        await self._fill()
        await self._row("purge", lambda: self._client.purge("q"))
        await self._tidy("purge")
        await self._row("delete queue", lambda: self._client.delete_queue("q"))
        await self._end()

    async def _purge_scheduled(self) -> None:
        await self._fill(delay=3600.0, tenants=100)
        await self._row("purge scheduled", lambda: self._client.purge("q"))
        await self._tidy("purge scheduled")
        await self._end()

    async def _configure(self) -> None:
        for first in range(0, _QUEUES, 100):
            await self._enqueue([(f"q.{n}", "t") for n in range(first, first + 100)])
        changes: dict[str, Change] = {
            "tenant paused in 5,000 queues": TenantChange(tenant="t", paused=True),
            "tenant limited in 5,000 queues": TenantChange(tenant="t", concurrency=5),
            "queue paused": QueueChange(queue="q.7", paused=True),
        }
        for name, change in changes.items():
            await self._row(name, partial(self._client.configure, [change]))
        await self._end()

    async def _due(self) -> None:
        """Run what is due in one second, half of it one tenant's, beside ten times as many."""
        for first in range(0, 10 * self._many, _BATCH):
            places = [("others", f"t{n // 100 % 1_000}") for n in range(first, first + _BATCH)]
            await self._enqueue(places)
        chance, due = random.Random(0), time.time() + self._many / 2_500
        for _ in range(0, self._many, 100):
            tenants = (chance.choice((0, chance.randrange(1, 50))) for _ in range(100))
            places = [("q", f"t{tenant}") for tenant in tenants]
            await self._enqueue(places, lambda: max(due + chance.random() - time.time(), 0.0))
        assert time.time() < due, "the machine is too slow to take them all in before"
        await asyncio.sleep(due + 1 - time.time())
        await self._row(f"{self._many:,} due in a second", self._run_all)
        await self._end()

    async def _run_all(self) -> None:
        ends: list[Settlement] = []
        while True:
            await self._broker.promote()
            fetch = Fetch(queues=("q",), max=100, lease=60.0)
            reply = await self._broker.exchange(self._call(), ends, fetch=fetch)
            if not reply.leased:
                return
            ends = [
                Settlement(id=each.message.id, token=each.token, to=State.COMPLETED, run_time=0.001)
                for each in reply.leased
            ]

    async def _act(self, name: str, action: Any, selection: PageSelection) -> None:
        act = BulkAction(action=action, selection=selection, matches=lambda _: True, level=1)

        async def all_steps() -> None:
            changes, place, is_last = Changes(), await begin(self._client, None), False
            while not is_last:
                step = await bulk_step(self._client, act, place, changes)
                place, is_last = step.after, step.is_last
            print(f"{name}: {changes.count:,} changed of {place.matched:,} that matched")

        await self._row(name, all_steps)

    async def _tidy(self, name: str) -> None:
        async def until_nothing() -> None:
            while (await self._broker.tidy()).more:
                pass

        await self._row(f"tidy behind {name}", until_nothing)

    async def _row(self, name: str, work: Work) -> None:
        self._broker.took.clear()
        started = time.monotonic()
        await work()
        elapsed = time.monotonic() - started
        for verb, took in sorted(self._broker.took.items()):
            took.sort()
            marks = (took[int(len(took) * share)] for share in (0.5, 0.99, 0.999))
            row = "".join(f"{mark:>8.2f}" for mark in (*marks, took[-1]))
            print(f"{name + ': ' + verb:46}{len(took):>7}{row}", flush=True)
        spent = sum(map(sum, self._broker.took.values())) / 1000
        print(f"{name}: {elapsed:.1f} s, of the server {spent:.1f} s")

    async def _end(self) -> None:
        for queue in (await self._broker.snapshot(tenants=False)).queues:
            await self._client.purge(queue)
            await self._client.delete_queue(queue)

    async def _fill(self, *, tenants: int = 1, delay: float = 0.0) -> None:
        batch = 100 if delay else _BATCH
        for first in range(0, self._many, batch):
            places = [("q", f"t{n // 100 % tenants}") for n in range(first, first + batch)]
            await self._enqueue(places, delay)

    async def _enqueue(
        self, places: list[tuple[str, str]], delay: float | Callable[[], float] = 0.0
    ) -> None:
        made = []
        for queue, tenant in places:
            self._last += 1
            message = Message(id=f"{self._last:032x}", queue=queue, tenant=tenant, body=b"b" * 100)
            later = delay() if callable(delay) else delay
            made.append(Submission(message=message, delay=later))
        await self._broker.enqueue(self._call(), made)

    async def _fail(self) -> None:
        """Run all that waits, and let it end dead."""
        ends: list[Settlement] = []
        count = 0
        while True:
            fetch = Fetch(queues=("q",), max=100, lease=60.0)
            reply = await self._broker.exchange(self._call(), ends, fetch=fetch)
            ends = [
                Settlement(id=each.message.id, token=each.token, to=State.DEAD, run_time=0.001)
                for each in reply.leased
            ]
            count += len(ends)
            if not ends:
                print(f"dead: {count:,}")
                return

    def _call(self) -> Call:
        self._number += 1
        return Call("bench", self._number)


def main() -> int:
    """Print a table."""
    words = sys.argv[1:]
    many = int(words.pop(0)) if words and words[0].isdigit() else _MANY
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder))
        try:
            asyncio.run(Bench(served, many).run(words))
        finally:
            served.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
