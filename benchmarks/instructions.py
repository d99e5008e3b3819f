"""How many machine instructions a server takes for a call, counted by callgrind.

    python benchmarks/instructions.py

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

import redis

from fairlead.broker.redis import RedisBroker
from fairlead.broker.verbs import Call, Fetch, QueueChange, Submission
from fairlead.embedded.server import find_binary
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased, Message

_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_START_IN = 60.0  # seconds
_STEP = 0.05

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
        self._broker = RedisBroker(f"unix://{server.socket}")
        self._number = self._last = 0

    async def run(self) -> None:
        tenants = [f"tenant-{n}" for n in range(100)]
        await self._row("enqueue 1", 200, 1, self._enqueue("one", ["t"]))
        await self._row("enqueue 100, 1 tenant", 30, 100, self._enqueue("many", ["t"] * 100))
        await self._row("enqueue 500, 1 tenant", 8, 500, self._enqueue("many", ["t"] * 500))
        await self._row("enqueue 100, 100 tenants", 20, 100, self._enqueue("all", tenants))
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
        print(f"{'memory of Lua':36} {self._server.lua_bytes():>12,} bytes")
        await self._broker.close()

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
            await self._broker.enqueue(self._call(), tasks)

        return work

    def _ready(self, queue: str) -> Work:
        async def work() -> None:
            await self._broker._run("ready", ["", "", 5.0, queue])

        return work

    async def _drain(self, queue: str) -> None:
        cycle = self._cycle(queue, 100)
        for _ in range(3):
            await cycle()

    async def _keep_few(self, queue: str) -> None:
        """Keep no more than what is there, so that each end makes room."""
        change = QueueChange(queue=queue, keep_completed_count=500)
        await self._broker.configure(self._call(), [change])
        for _ in range(30):
            await self._broker.tidy()

    def _cycle(self, queue: str, count: int) -> Work:
        held: list[Leased] = []

        async def work() -> None:
            nonlocal held
            ends = [
                Settlement(
                    id=lease.message.id, token=lease.token, to=State.COMPLETED, run_time=0.001
                )
                for lease in held
            ]
            fetch = Fetch(queues=(queue,), max=count, lease=60.0)
            held = (await self._broker.exchange(self._call(), ends, fetch=fetch)).leased

        return work


def main() -> int:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        server = Counted(Path(folder))
        try:
            asyncio.run(Bench(server).run())
        finally:
            server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
