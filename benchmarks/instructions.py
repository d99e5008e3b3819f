"""How many machine instructions a server takes for a call, counted by callgrind.

    python benchmarks/instructions.py                  # or with "plain" or "features": a part of it

Unlike times they do not depend on what else the machine does. Needs valgrind.
The server is the one that ``embedded://`` would start, without its file and with the C library's
allocator.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import redis

from fairlead.broker.flows import FlowPart, Share
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, Fetch, QueueChange, Submission
from fairlead.embedded.valkey_server import find_binary
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased, Message
from fairlead.model.options import Dependency, Unique

_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_START_IN = 60.0  # seconds
_STEP = 0.05
_BATCH = 100  # tasks in a call
_TENANTS = [f"tenant-{n}" for n in range(100)]
_WIDTH = 300  # of a fan-out that is joined
_KEPT = 1_000  # finished tasks, so that forgetting them is part of the rows about features
_NOT_OURS = ("fcall", "info", "ping", "hello", "client", "function")  # no commands of a function

Work = Callable[[], Awaitable[None]]


class Counted:
    """A server under callgrind, which counts only between ``start`` and ``stop``."""

    def __init__(self, folder: Path) -> None:
        self.socket, self._out = folder / "socket", folder / "callgrind"
        self._process = subprocess.Popen(
            [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no", "-q"),
                *(f"--callgrind-out-file={self._out}", find_binary()),
                *("--port", "0", "--unixsocket", self.socket, "--dir", folder),
                *("--save", "", "--appendonly", "no", "--latency-tracking", "no"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_IN
        while not self.socket.exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("the server did not start under valgrind")
            time.sleep(_STEP)
        self._client = redis.Redis(unix_socket_path=str(self.socket))

    def start(self) -> None:
        self._tell("-i", "on")
        self._tell("-z")

    def stop(self) -> int:
        """The instructions since ``start``."""
        before = set(self._out.parent.glob("callgrind.*"))
        self._tell("-d")
        while not (new := set(self._out.parent.glob("callgrind.*")) - before):
            time.sleep(_STEP)
        while not (found := _TOTAL.search(new.copy().pop().read_text())):
            time.sleep(_STEP)
        self._tell("-i", "off")
        return int(found[1])

    def commands(self) -> int:
        """How many commands functions have called so far."""
        found: dict[str, dict[str, int]] = self._client.info("commandstats")
        names = {key: key.removeprefix("cmdstat_").partition("|")[0] for key in found}
        return sum(found[key]["calls"] for key, name in names.items() if name not in _NOT_OURS)

    def lua_bytes(self) -> int:
        return int(self._client.info("memory")["used_memory_vm_functions"])

    def end(self) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()

    def _tell(self, *order: str) -> None:
        command = ["callgrind_control", *order, str(self._process.pid)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        self._client.ping()  # orders are obeyed at the server's next step


class Bench:
    """Calls of one client, each measured by itself."""

    def __init__(self, server: Counted) -> None:
        self._server = server
        self._broker = RedisBroker(f"unix://{server.socket}", test_clock=True)
        self._number = self._last = 0
        self._now = time.time() + 3600  # every call is given the time: without it, it stands at 0
        self._commands = 0

    async def run(self, parts: Sequence[str]) -> None:
        """Print rows: those of plain tasks, those about features, or both."""
        if "plain" in parts:
            await self._run_plain()
        if "features" in parts:
            await self._run_features()
        print(f"{'memory of Lua':36} {self._server.lua_bytes():>12,} bytes")
        await self._broker.close()

    async def _run_plain(self) -> None:
        await self._row("enqueue 1", 200, 1, self._enqueue("one", ["t"]))
        await self._row("enqueue 100, 1 tenant", 30, 100, self._enqueue("many", ["t"] * 100))
        await self._row("enqueue 500, 1 tenant", 8, 500, self._enqueue("many", ["t"] * 500))
        await self._row("enqueue 100, 100 tenants", 20, 100, self._enqueue("all", _TENANTS))
        await self._row("enqueue 100, new tenants", 8, 100, self._enqueue_new("new"))
        for first in range(0, 1000, 100):
            names = [f"tenant-{n}" for n in range(first, first + 100)] * 5
            await self._enqueue("each", names)()
        await self._enqueue("empty", ["t"])()
        await self._drain("empty")
        await self._row("exchange, queue unknown", 100, 1, self._cycle("nothing", 1))
        await self._row("exchange that finds nothing", 100, 1, self._cycle("empty", 100))
        await self._row("ready that finds nothing", 100, 1, self._ready("empty"))
        await self._row("settle 1, fetch 1", 100, 1, self._cycle("many", 1))
        await self._row("settle 5, fetch 5", 40, 5, self._cycle("many", 5))
        await self._row("settle 5, fetch 5, 100 tenants", 40, 5, self._cycle("all", 5))
        await self._row("settle 100, fetch 100, 1 tenant", 12, 100, self._cycle("many", 100))
        await self._row("settle 100, fetch 100, 100 tenants", 8, 100, self._cycle("all", 100))
        await self._row("settle 100, fetch 100, 1,000 tenants", 8, 100, self._cycle("each", 100))
        for queue in ("many", "all"):
            await self._keep_few(queue)
        await self._row("settle 1, fetch 1, room is full", 100, 1, self._cycle("many", 1))
        await self._row("the same, 100 tenants", 100, 1, self._cycle("all", 1))
        for tenants in (1, 100, 1000):
            name = f"as a busy worker, {tenants:,} tenants"
            await self._row(name, 16, _BATCH, await self._busy(tenants))

    async def _run_features(self) -> None:
        """What a task costs that uses something: to enqueue it, and to run it."""
        make: dict[str, Callable[[str], list[Submission]]] = {
            "plain": self._submissions,
            "delay": lambda queue: self._submissions(queue, delay=1.0),
            "unique": lambda queue: self._submissions(queue, unique=True),
            "dependency": lambda queue: self._submissions(queue, dependent=True),
        }
        for name, batch in make.items():
            await self._life(name, self._entry(name, batch))
        await self._life("alike, 1 tenant", self._entry("alike", self._alike))
        await self._life("flow, fan-out joined", self._take_in_flow)

    async def _life(self, name: str, enqueue: Callable[[], Awaitable[int]]) -> None:
        """Rows of what is enqueued by three calls, and then run until nothing is left."""
        queue = name.partition(",")[0]
        change = QueueChange(queue=queue, keep_completed_count=_KEPT)
        await self._broker.configure(self._call(), [change], now=self._now)
        passed = 0
        while passed < _KEPT:
            count = sum([await enqueue() for _ in range(3)])
            self._now += 2.0
            await self._work_off(queue, count)
            passed += count
        self._begin()
        count = sum([await enqueue() for _ in range(3)])
        self._told(f"{name}: enqueue", count)
        self._now += 2.0
        self._begin()
        await self._work_off(queue, count)
        self._told(f"{name}: run", count)

    def _begin(self) -> None:
        self._commands = self._server.commands()
        self._server.start()

    def _told(self, name: str, tasks: int) -> None:
        took = self._server.stop() / tasks
        commands = (self._server.commands() - self._commands) / tasks
        print(f"{name:36} {took:>12,.0f} a task {commands:>8.2f} commands", flush=True)

    def _entry(
        self, queue: str, batch: Callable[[str], list[Submission]]
    ) -> Callable[[], Awaitable[int]]:
        return lambda: self._take_in(batch(queue))

    async def _take_in(self, batch: list[Submission]) -> int:
        receipts = await self._broker.enqueue(self._call(), batch, now=self._now)
        if any(receipt.code != "accepted" for receipt in receipts):
            raise SystemExit("a task was not accepted")
        return len(batch)

    async def _take_in_flow(self) -> int:
        """A task, many behind it, and one behind these."""
        first = self._submission("flow", "t")
        wide = [
            msgspec.structs.replace(
                self._submission("flow", "t"), depends_on=(Dependency(first.message.id),)
            )
            for _ in range(_WIDTH)
        ]
        last = msgspec.structs.replace(
            self._submission("flow", "t"),
            depends_on=tuple(Dependency(each.message.id) for each in wide),
        )
        members = (first, *wide, last)
        self._last += 1
        flow = f"{self._last:032x}"
        shares = (Share("flow", "t", len(members)),)
        part = FlowPart(flow=flow, number=0, tenant="t", shares=shares, members=members)
        await self._broker.stage(self._call(), part, now=self._now)
        await self._broker.commit(self._call(), flow, now=self._now)
        while (await self._broker.deliver(now=self._now)).more:
            pass
        return len(members)

    async def _work_off(self, queue: str, count: int) -> None:
        """Settle and fetch until so many were settled, and deliver when there is nothing to do."""
        held: list[Leased] = []
        while count > 0:
            fetch = Fetch(queues=(queue,), max=_BATCH, lease=60.0)
            ends = [_completed(lease) for lease in held]
            count -= len(held)
            reply = await self._broker.exchange(self._call(), ends, fetch=fetch, now=self._now)
            held = reply.leased
            if not held and count:
                await self._broker.deliver(now=self._now)

    def _submissions(
        self, queue: str, *, delay: float = 0.0, unique: bool = False, dependent: bool = False
    ) -> list[Submission]:
        made: list[Submission] = []
        for n in range(_BATCH):
            plain = self._submission(queue, _TENANTS[n])
            key = Unique(key=plain.message.id) if unique else None
            parents = (Dependency(made[-1].message.id),) if dependent and n % 2 else ()
            made.append(msgspec.structs.replace(plain, delay=delay, unique=key, depends_on=parents))
        return made

    def _alike(self, queue: str) -> list[Submission]:
        return [self._submission(queue, "t") for _ in range(_BATCH)]

    async def _row(self, name: str, calls: int, tasks: int, work: Work) -> None:
        for _ in range(max(calls // 4, 3)):
            await work()
        self._server.start()
        for _ in range(calls):
            await work()
        print(f"{name:36} {self._server.stop() / calls / tasks:>12,.0f} a task", flush=True)

    def _call(self) -> Call:
        self._number += 1
        return Call("bench", self._number)

    def _submission(self, queue: str, tenant: str) -> Submission:
        self._last += 1
        id = f"{self._last:032x}"
        return Submission(message=Message(id=id, queue=queue, tenant=tenant, body=b"b" * 100))

    def _enqueue(self, queue: str, tenants: Sequence[str]) -> Work:
        async def work() -> None:
            tasks = [self._submission(queue, tenant) for tenant in tenants]
            await self._broker.enqueue(self._call(), tasks, now=self._tick())

        return work

    def _enqueue_new(self, queue: str) -> Work:
        """Tasks of tenants that were never heard of, each time others."""

        async def work() -> None:
            names = [f"new-{self._last + n}" for n in range(_BATCH)]
            await self._enqueue(queue, names)()

        return work

    def _tick(self) -> float:
        """The time of the next call."""
        self._now += 0.005
        return self._now

    def _ready(self, queue: str) -> Work:
        async def work() -> None:
            await self._broker.run("can_fetch", [f"t{self._tick()!r}", "", 5.0, queue])

        return work

    async def _drain(self, queue: str) -> None:
        cycle = self._cycle(queue, 100)
        for _ in range(3):
            await cycle()

    async def _keep_few(self, queue: str) -> None:
        """Keep no more than what is there, so that each end makes room."""
        change = QueueChange(queue=queue, keep_completed_count=500)
        await self._broker.configure(self._call(), [change], now=self._tick())
        for _ in range(30):
            await self._broker.tidy(now=self._tick())

    async def _busy(self, tenants: int) -> Work:
        """What a worker with a backlog does: most of what it fetches is held, and room is full."""
        queue = f"busy-{tenants}"
        names = [f"tenant-{n}" for n in range(tenants)] * (4_000 // tenants)
        for first in range(0, len(names), _BATCH):
            await self._enqueue(queue, names[first : first + _BATCH])()
        change = QueueChange(queue=queue, keep_completed_count=_KEPT)
        await self._broker.configure(self._call(), [change], now=self._tick())
        await self._broker.tidy(now=self._tick())
        work = self._cycle(queue, _BATCH, start=_BATCH // 10)
        for _ in range(_KEPT // _BATCH + 3):
            await work()
        return work

    def _cycle(self, queue: str, count: int, start: int | None = None) -> Work:
        held: list[Leased] = []

        async def work() -> None:
            nonlocal held
            ends = [_completed(lease) for lease in held]
            fetch = Fetch(queues=(queue,), max=count, lease=60.0, start=start)
            reply = await self._broker.exchange(self._call(), ends, fetch=fetch, now=self._tick())
            held = reply.leased

        return work


def _completed(lease: Leased) -> Settlement:
    return Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED, run_time=0.001)


def main() -> int:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        server = Counted(Path(folder))
        try:
            asyncio.run(Bench(server).run(sys.argv[1:] or ("plain", "features")))
        finally:
            server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
