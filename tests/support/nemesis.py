"""One bad thing after the other, to workers and to their server, as a seed says."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence

from tests.support.servers import Running
from tests.support.worker_process import WorkerProcess

__all__ = ("Nemesis",)

_PAUSE = (1.0, 4.0)  # seconds from one to the next
_STANDSTILL = (0.2, 5.0)  # seconds that a stopped process stands still

# How often each is drawn.
_DEEDS = {"kill_child": 3, "kill_tree": 2, "stop_child": 2, "stop_tree": 2, "kill_server": 1}


class Nemesis:
    """Kills and stops. What it did is printed, and after ``heal`` everybody is up again."""

    def __init__(self, workers: Sequence[WorkerProcess], server: Running, *, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.surprises: list[str] = []  # ends that it did not cause
        self._workers, self._server = workers, server
        self._dice = random.Random(seed)
        self._stopped: set[asyncio.Task[None]] = set()
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
        await asyncio.gather(*self._stopped)
        self._look()
        for worker in self._workers:
            await worker.ready(seconds=30.0)

    async def kill_child(self, worker: WorkerProcess) -> None:
        children = worker.children()
        if children:
            pid = worker.kill_child(self._dice.choice(children))
            self._say(f"killed child {pid} of {worker.name}")

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

    async def kill_server(self, worker: WorkerProcess) -> None:
        await asyncio.to_thread(self._server.restart)
        self._say(f"killed the server and started it again as {self._server.pid}")

    def _stop(self, worker: WorkerProcess, pids: list[int]) -> None:
        seconds = self._dice.uniform(*_STANDSTILL)
        worker.stop(pids)

        async def go_on() -> None:
            await asyncio.sleep(seconds)
            worker.cont(pid for pid in worker.tree() if pid in pids)

        task = asyncio.create_task(go_on())
        self._stopped.add(task)
        task.add_done_callback(self._stopped.discard)
        self._say(f"stopped {pids} of {worker.name} for {seconds:.1f} s")

    def _look(self) -> None:
        for worker in self._workers:
            if not worker.running:
                self.surprises.append(f"{worker.name} had ended by itself:\n{worker.tail()}")
                worker.start()

    def _say(self, what: str) -> None:
        print(f"nemesis {time.monotonic() - self._began:6.1f} s: {what}", flush=True)
