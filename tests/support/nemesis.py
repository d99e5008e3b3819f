"""One bad thing after the other, to workers and to their server, as a seed says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import redis

from tests.support.proxy import Proxy
from tests.support.servers import Running
from tests.support.worker_process import WorkerProcess

__all__ = ("Nemesis",)

_PAUSE = (1.0, 4.0)  # seconds from one to the next
_STANDSTILL = (0.2, 5.0)  # seconds that a stopped process stands still
_FROZEN = (1.0, 6.0)  # seconds that the server does
_REFUSING = (0.5, 4.0)  # seconds for which the server refuses writes

# How often each is drawn.
_DEEDS = {
    "kill_child": 3,
    "kill_supervisor": 2,
    "kill_tree": 2,
    "stop_child": 2,
    "stop_tree": 2,
    "lose_replies": 4,
    "cut_connections": 1,
    "kill_server": 1,
    "stop_server": 2,
    "want_replicas": 2,
    "fill_memory": 2,
}


class Nemesis:
    """Kills, stops, cuts and fills up. What it did is printed; after ``heal`` all is well again.

    ``between`` is the proxy through which workers and producers reach the server.
    """

    def __init__(
        self, workers: Sequence[WorkerProcess], server: Running, between: Proxy, *, seed: int
    ) -> None:
        self.done: Counter[str] = Counter()
        self.surprises: list[str] = []  # ends that it did not cause
        self._workers, self._server, self._between = workers, server, between
        self._dice = random.Random(seed)
        self._passing: set[asyncio.Task[None]] = set()  # what will be undone
        self._at_server = asyncio.Lock()  # its process is started or stopped by one at a time
        self._began = time.monotonic()

    async def rage(self, seconds: float) -> None:
        """For so long, something every few seconds."""
        self._began = time.monotonic()
        names, weights = list(_DEEDS), list(_DEEDS.values())
        while True:
            pause = self._dice.uniform(*_PAUSE)
            if time.monotonic() + pause > self._began + seconds:
                break
            await asyncio.sleep(pause)
            self._look()
            [name] = self._dice.choices(names, weights)
            worker = self._dice.choice(self._workers)
            await getattr(self, name)(worker)
            self.done[name] += 1

    async def heal(self) -> None:
        """Let everything run that stands still; whoever has ended by itself is a surprise."""
        await asyncio.gather(*self._passing)
        self._look()
        for worker in self._workers:
            await worker.ready(seconds=30.0)

    # -- workers --------------------------------------------------------------------------------

    async def kill_child(self, worker: WorkerProcess) -> None:
        children = worker.children()
        if children:
            pid = worker.kill_child(self._dice.choice(children))
            self._say(f"killed child {pid} of {worker.name}")

    async def kill_supervisor(self, worker: WorkerProcess) -> None:
        """Its children live on for a moment, beside those of the next one."""
        await asyncio.to_thread(worker.kill_supervisor)
        worker.start()
        self._say(f"killed the supervisor of {worker.name} and started another as {worker.pid}")

    async def kill_tree(self, worker: WorkerProcess) -> None:
        await asyncio.to_thread(worker.kill_tree)
        worker.start()
        self._say(f"killed {worker.name} and started it again as {worker.pid}")

    async def stop_child(self, worker: WorkerProcess) -> None:
        children = worker.children()
        if children:
            self._stop(worker, worker.below(self._dice.choice(children)))

    async def stop_tree(self, worker: WorkerProcess) -> None:
        self._stop(worker, worker.tree())

    # -- between them and the server ------------------------------------------------------------

    async def lose_replies(self, worker: WorkerProcess) -> None:
        """Some of the next calls are executed, and nobody hears of it, or half of it."""
        numbers = sorted(self._dice.sample(range(1, 50), 5))
        for number in numbers:
            plant = self._dice.choice((self._between.drop_reply, self._between.cut_reply))
            plant(number)
        self._say(f"lost the replies to the calls {numbers} from now on")

    async def cut_connections(self, worker: WorkerProcess) -> None:
        self._between.cut()
        self._say("cut all connections")

    # -- the server -----------------------------------------------------------------------------

    async def kill_server(self, worker: WorkerProcess) -> None:
        async with self._at_server:
            await asyncio.to_thread(self._server.restart)
        self._say(f"killed the server and started it again as {self._server.pid}")

    async def stop_server(self, worker: WorkerProcess) -> None:
        seconds = self._dice.uniform(*_FROZEN)

        async def freeze() -> None:
            async with self._at_server:
                self._server.pause()
                await asyncio.sleep(seconds)
                self._server.resume()

        self._begin(freeze(), f"stopped the server for {seconds:.1f} s")

    async def want_replicas(self, worker: WorkerProcess) -> None:
        """The server has no replicas, and refuses all writes."""
        self._refuse("min-replicas-to-write", "1", "0")

    async def fill_memory(self, worker: WorkerProcess) -> None:
        """The server has less memory than it uses, and refuses whatever could use more."""
        self._refuse("maxmemory", "1mb", "0")

    def _refuse(self, setting: str, bad: str, good: str) -> None:
        seconds = self._dice.uniform(*_REFUSING)

        async def refuse() -> None:
            try:
                await self._insist("CONFIG", "SET", setting, bad)
                await asyncio.sleep(seconds)
            finally:
                await self._insist("CONFIG", "SET", setting, good)

        self._begin(refuse(), f"set {setting} to {bad} for {seconds:.1f} s")

    async def _insist(self, *command: Any) -> None:
        """Tell the server something, even if it is just being started."""
        while True:
            with contextlib.suppress(redis.RedisError, OSError):
                await asyncio.to_thread(self._server.admin, *command)
                return
            await asyncio.sleep(0.05)

    # -- what passes ----------------------------------------------------------------------------

    def _stop(self, worker: WorkerProcess, pids: list[int]) -> None:
        seconds = self._dice.uniform(*_STANDSTILL)
        worker.stop(pids)

        async def go_on() -> None:
            await asyncio.sleep(seconds)
            worker.cont(pid for pid in worker.tree() if pid in pids)

        self._begin(go_on(), f"stopped {pids} of {worker.name} for {seconds:.1f} s")

    def _begin(self, passing: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.create_task(passing)
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        self._say(what)

    def _look(self) -> None:
        for worker in self._workers:
            if not worker.running:
                self.surprises.append(f"{worker.name} had ended by itself:\n{worker.tail()}")
                worker.start()

    def _say(self, what: str) -> None:
        print(f"nemesis {time.monotonic() - self._began:6.1f} s: {what}", flush=True)
