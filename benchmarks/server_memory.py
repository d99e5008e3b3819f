"""How much memory a server needs for a task that waits, and whether finished ones leave any behind.

Needs a server where nobody else works. The stream of events is filled first: it is capped, and what
it takes until then belongs to no task.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.server_load import silent, submission
from benchmarks.server_probe import Probe
from fairlead.broker import Store
from fairlead.broker.requests import MAX_ENQUEUE, MAX_EXCHANGE, Call, Fetch
from fairlead.model.lifecycle import Settlement, State

__all__ = ("Growth", "Room", "growth", "queued_bytes")

_QUEUE = "bench-memory"
_TENANT = "one"
_STEP = 5_000  # tasks in a step; none is left waiting at its end
_LARGEST_SHARE, _LARGEST_BYTES = 0.05, 2 * 1024 * 1024


class Room(NamedTuple):
    """What tasks that wait take."""

    tasks: int
    bytes: int

    @property
    def each(self) -> float:
        """Bytes of one task."""
        return self.bytes / self.tasks


class Growth(NamedTuple):
    """Used memory at two moments, between which many tasks were done and forgotten."""

    before: int
    after: int

    @property
    def bytes(self) -> int:
        """How much more it is."""
        return self.after - self.before

    @property
    def allowed(self) -> int:
        """5 % or 2 MB, whichever is more."""
        return max(round(self.before * _LARGEST_SHARE), _LARGEST_BYTES)


class _Worker:
    def __init__(self, broker: Store) -> None:
        self._broker = broker
        self._name = f"bench-memory-{os.urandom(6).hex()}"
        self._number = 0

    def _call(self) -> Call:
        self._number += 1
        return Call(self._name, self._number)

    async def enqueue(self, tasks: int) -> None:
        for start in range(0, tasks, MAX_ENQUEUE):
            count = min(MAX_ENQUEUE, tasks - start)
            batch = [submission(_QUEUE, _TENANT) for _ in range(count)]
            await self._broker.enqueue(self._call(), batch)

    async def finish(self, tasks: int) -> None:
        done: list[Settlement] = []
        fetch = Fetch(queues=(_QUEUE,), max=MAX_EXCHANGE, lease=600.0)
        while tasks > 0 or done:
            order = fetch if tasks > 0 else None
            leased = (await self._broker.exchange(self._call(), done, fetch=order)).leased
            done = [
                Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED)
                for lease in leased
            ]
            tasks -= len(leased)


async def _pass(broker: Store, tasks: int) -> None:
    worker = _Worker(broker)
    for start in range(0, tasks, _STEP):
        count = min(_STEP, tasks - start)
        await worker.enqueue(count)
        await worker.finish(count)


async def growth(
    broker: Store,
    probe: Probe,
    *,
    fill: int,
    first: int,
    more: int,
    say: Callable[[str], None] = silent,
) -> Growth:
    """Used memory after the first tasks are done, and after many more.

    Before that come as many as it takes to fill the stream of events, but no more than ``fill``.
    """
    trims = probe.calls("xtrim")
    while probe.calls("xtrim") == trims and fill > 0:
        await _pass(broker, min(_STEP, fill))
        fill -= _STEP
    say(f"memory: {first:,} tasks, then {more:,} more")
    await _pass(broker, first)
    before = probe.used_memory()
    await _pass(broker, more)
    return Growth(before, probe.used_memory())


async def queued_bytes(broker: Store, probe: Probe, tasks: int) -> Room:
    """What so many tasks of one tenant take, each with a payload of 100 bytes; they stay queued."""
    before = probe.used_memory()
    await _Worker(broker).enqueue(tasks)
    return Room(tasks, probe.used_memory() - before)
