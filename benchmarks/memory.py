"""The cost of a task in the memory broker, at a backlog that stays as large as it is.

One thread, batches of 100, bodies of 100 bytes. Each step enqueues a batch, fetches one and settles
it, and what is enqueued next belongs to the tenants that were just served, so every tenant's
backlog keeps its size. Only the three calls are timed, not what prepares them, and by the thread's
own clock: the broker never waits for anything, so that is the time that passes when nobody else
wants the processor.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairlead.broker import Store, connect
from fairlead.broker.requests import Call, Fetch, Submission, TenantChange
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased, Message

__all__ = ("BATCH", "Bench", "Cost", "Load", "costs")

BATCH = 100
_BODY = 100  # bytes
_QUEUE = "bench"
_INCARNATION = "bench"
_LIMIT, _RATE = 1_000, 1_000_000.0  # limits that are looked at and never in the way
_TOLD = 100_000  # preloaded tasks between two words about it


def _silent(text: str) -> None: ...


class Load(NamedTuple):
    """A backlog: how many tasks wait, of how many tenants, and whether each of them has limits."""

    queued: int
    tenants: int
    limited: bool = False

    @property
    def name(self) -> str:
        """The load in words."""
        noun = "tenant" if self.tenants == 1 else "tenants"
        return f"{self.queued:,} of {self.tenants:,} {noun}{', limited' if self.limited else ''}"


class Cost(NamedTuple):
    """Microseconds for one task."""

    enqueue: float
    fetch: float
    settle: float

    @property
    def total(self) -> float:
        """All three together."""
        return self.enqueue + self.fetch + self.settle


class Bench:
    """A broker with a backlog, ready to be measured."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.broker: Store = connect("memory://")
        self._calls = 0
        self._made = 0
        self._next: list[str] = []  # the tenants of the next batch

    async def prepare(self, say: Callable[[str], None], warm_up: int) -> None:
        """Fill the backlog, then pass tasks through until retention and events are full too."""
        load = self.load
        names = [f"tenant-{index}" for index in range(load.tenants)]
        if load.limited:
            for start in range(0, load.tenants, BATCH):
                await self.broker.configure(
                    self._call(),
                    [
                        TenantChange(tenant=name, concurrency=_LIMIT, rate=_RATE, burst=_LIMIT)
                        for name in names[start : start + BATCH]
                    ],
                )
        for start in range(0, load.queued, BATCH):
            count = min(BATCH, load.queued - start)
            tenants = [names[index % load.tenants] for index in range(start, start + count)]
            await self.broker.enqueue(self._call(), self._submissions(tenants))
            await asyncio.sleep(0)  # the broker never waits, so this is where Ctrl-C comes through
            if start and start % _TOLD == 0:
                say(f"{load.name}: {start:,} preloaded")
        self._next = [names[index % load.tenants] for index in range(BATCH)]
        await self.cost(warm_up)

    async def cost(self, tasks: int) -> Cost:
        """Pass so many tasks through, in whole batches, and say what one of them cost."""
        broker, clock = self.broker, time.thread_time
        fetch = Fetch(queues=(_QUEUE,), max=BATCH)
        spent = [0.0, 0.0, 0.0]
        passed = 0
        while passed < tasks:
            batch = self._submissions(self._next)
            calls = self._call(), self._call(), self._call()

            began = clock()
            await broker.enqueue(calls[0], batch)
            enqueued = clock()
            reply = await broker.exchange(calls[1], fetch=fetch)
            fetched = clock()
            settlements = [_completed(lease) for lease in reply.leased]
            ready = clock()
            answer = await broker.exchange(calls[2], settlements)
            settled = clock()

            if len(reply.leased) != BATCH or answer.settled.count("applied") != BATCH:
                raise RuntimeError(f"the broker lent {len(reply.leased)} tasks of {BATCH}")
            spent[0] += enqueued - began
            spent[1] += fetched - enqueued
            spent[2] += settled - ready
            passed += BATCH
            self._next = [lease.message.tenant for lease in reply.leased]
            await asyncio.sleep(0)
        return Cost(*(each / passed * 1e6 for each in spent))

    def _call(self) -> Call:
        self._calls += 1
        return Call(_INCARNATION, self._calls)

    def _submissions(self, tenants: Sequence[str]) -> list[Submission]:
        made = []
        for tenant in tenants:
            self._made += 1
            id = f"{self._made:032x}"  # as long as a real one
            body = id.encode().ljust(_BODY, b".")
            made.append(Submission(message=Message(id=id, queue=_QUEUE, tenant=tenant, body=body)))
        return made


async def costs(
    loads: Sequence[Load],
    *,
    rounds: int,
    tasks: int,
    warm_up: int,
    say: Callable[[str], None] = _silent,
) -> list[Cost]:
    """The cheapest of some rounds for each load, with ``tasks`` passing through in each round.

    A round takes the loads in turn, so that a noisy moment meets them all. The collector is kept
    away from the backlogs, which it would walk again and again to free nothing.
    """
    seen: list[list[Cost]] = [[] for _ in loads]
    gc.disable()
    try:
        benches = [Bench(load) for load in loads]
        for bench in benches:
            say(f"{bench.load.name}: preloading")
            await bench.prepare(say, warm_up)
        gc.freeze()
        gc.enable()
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            for bench, found in zip(benches, seen, strict=True):
                found.append(await bench.cost(tasks))
    finally:
        gc.unfreeze()
        gc.enable()
    return [min(found, key=lambda cost: cost.total) for found in seen]


def _completed(lease: Leased) -> Settlement:
    return Settlement(id=lease.message.id, token=lease.token, to=State.COMPLETED)
