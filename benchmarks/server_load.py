"""Tasks for a server: backlogs that stay as large as they are, and the use of single features.

Workers are stood for by callers that hand in what they were lent with the same call that asks for
more, as a busy worker does. Several of them run at once, so that the server never waits for Python
as long as Python keeps up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.in_process import CALLERS, TOGETHER
from benchmarks.memory import Load
from benchmarks.server_probe import Meter
from fairlead.app import Fairlead
from fairlead.broker import Store, connect
from fairlead.broker.requests import (
    MAX_ENQUEUE,
    MAX_TENANTS,
    Call,
    Fetch,
    Submission,
    TenantChange,
)
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import LEVELS, Leased, Message
from fairlead.model.options import Dependency, Unique
from fairlead.runtime.ids import new_id

__all__ = (
    "BATCH",
    "FEATURES",
    "FETCHERS",
    "Backlog",
    "Feature",
    "Trial",
    "empty",
    "enqueue_one_by_one",
    "enqueue_together",
    "silent",
    "submission",
)

BATCH = 100
FETCHERS = 4  # callers at once
_BODY = 100  # bytes
_PAYLOAD = "." * 64  # an argument; with name and id the body has about 100 bytes
_STEP = 5_000  # tasks between two looks at the clocks, unless the backlog is smaller
_LEASE = 600.0  # seconds: no worker beats here
_LIMIT, _RATE = 1_000, 1_000_000.0  # limits that are looked at and never in the way
_TOLD = 100_000  # preloaded tasks between two words about it
_DELAY = 0.02  # seconds, for those that are due later
_WEIGHTS = (1.0, 2.0, 3.0, 5.0)


def silent(text: str) -> None:
    """Say nothing."""


def submission(queue: str, tenant: str, *, level: int = 2) -> Submission:
    """A task with a body of 100 bytes, under an id as clients make them."""
    id = new_id()
    body = id.encode().ljust(_BODY, b".")
    return Submission(message=Message(id=id, queue=queue, tenant=tenant, level=level, body=body))


def _calls(submissions: Sequence[Submission], most: int) -> Iterator[list[Submission]]:
    """Cut into calls of at most so many tasks, and of no more tenants than one call may have."""
    part: list[Submission] = []
    tenants: set[str] = set()
    for each in submissions:
        tenant = each.message.tenant
        if len(part) >= most or (len(tenants) >= MAX_TENANTS and tenant not in tenants):
            yield part
            part, tenants = [], set()
        part.append(each)
        tenants.add(tenant)
    if part:
        yield part


class _Caller:
    """One client or worker: a broker of its own, and the numbers of its calls."""

    def __init__(self, url: str) -> None:
        self.broker: Store = connect(url)
        self.name = f"bench-{os.urandom(6).hex()}"
        self.held: list[Leased] = []
        self._number = 0

    def call(self) -> Call:
        self._number += 1
        return Call(self.name, self._number)

    async def enqueue(self, submissions: Sequence[Submission], most: int) -> None:
        for part in _calls(submissions, most):
            receipts = await self.broker.enqueue(self.call(), part)
            if any(receipt.code != "accepted" for receipt in receipts):
                codes = {receipt.code for receipt in receipts}
                raise RuntimeError(f"the server did not accept the tasks of a bench: {codes}")

    async def exchange(self, queue: str, most: int, result: bytes | None = None) -> list[Leased]:
        """Settle what is held and take more; what was settled."""
        done = [_completed(lease, result) for lease in self.held]
        fetch = Fetch(queues=(queue,), max=most, lease=_LEASE) if most else None
        reply = await self.broker.exchange(self.call(), done, fetch=fetch)
        if reply.settled.count("applied") != len(done):
            raise RuntimeError("the server did not take what was done in a bench")
        settled, self.held = self.held, reply.leased
        return settled


def _completed(lease: Leased, result: bytes | None = None) -> Settlement:
    return Settlement(
        id=lease.message.id, token=lease.token, to=State.COMPLETED, result=result, run_time=0.001
    )


class Backlog:
    """A queue with a backlog that stays, and the callers that pass tasks through it."""

    def __init__(self, url: str, queue: str, load: Load) -> None:
        self.load, self.queue = load, queue
        self._callers = [_Caller(url) for _ in range(FETCHERS)]
        self._step = min(_STEP, max(load.queued // 2 // BATCH, FETCHERS) * BATCH)
        self._asked = 0  # tasks, in this step
        self._next: list[str] = []  # the tenants of the next tasks

    async def close(self) -> None:
        """Hang up; what is queued stays on the server."""
        for caller in self._callers:
            await caller.broker.close()

    async def prepare(self, say: Callable[[str], None], warm_up: int) -> None:
        """Fill it, then pass tasks through until as many finished ones are kept as may be."""
        load, client = self.load, self._callers[0]
        names = [f"tenant-{index}" for index in range(load.tenants)]
        if load.limited:
            await _configure(
                client,
                [
                    TenantChange(
                        tenant=name, queue=self.queue, concurrency=_LIMIT, rate=_RATE, burst=_LIMIT
                    )
                    for name in names
                ],
            )
        for start in range(0, load.queued, _STEP):
            last = min(start + _STEP, load.queued)
            tenants = [names[index % load.tenants] for index in range(start, last)]
            await client.enqueue([submission(self.queue, each) for each in tenants], MAX_ENQUEUE)
            if start and start % _TOLD == 0:
                say(f"{load.name}: {start:,} preloaded")
        self._next = [names[index % load.tenants] for index in range(self._step)]
        await self.run(warm_up, None, None)

    async def run(self, tasks: int, enqueue: Meter | None, exchange: Meter | None) -> None:
        """Pass so many tasks through in steps; the calls of both kinds are measured apart."""
        for caller in self._callers:  # from the first call on, each settles what it fetched before
            await caller.exchange(self.queue, BATCH)
        passed = 0
        while passed < tasks:
            batch = [submission(self.queue, tenant) for tenant in self._next]
            if enqueue:
                enqueue.start()
            await self._enqueue(batch)
            if enqueue:
                enqueue.stop(len(batch))
            self._next, self._asked = [], 0
            if exchange:
                exchange.start()
            await asyncio.gather(*(self._pass(caller) for caller in self._callers))
            if exchange:
                exchange.stop(len(self._next))
            passed += len(self._next)
        for caller in self._callers:
            settled = await caller.exchange(self.queue, 0)
            again = [submission(self.queue, lease.message.tenant) for lease in settled]
            await caller.enqueue(again, BATCH)

    async def _enqueue(self, batch: list[Submission]) -> None:
        share = -(-len(batch) // FETCHERS)
        parts = [batch[start : start + share] for start in range(0, len(batch), share)]
        pairs = zip(self._callers, parts, strict=False)
        await asyncio.gather(*(caller.enqueue(part, BATCH) for caller, part in pairs))

    async def _pass(self, caller: _Caller) -> None:
        while self._asked < self._step:
            self._asked += BATCH
            settled = await caller.exchange(self.queue, BATCH)
            if len(caller.held) != BATCH:
                raise RuntimeError(f"the server lent {len(caller.held)} tasks of {BATCH}")
            self._next += [lease.message.tenant for lease in settled]


async def _configure(caller: _Caller, changes: Sequence[TenantChange]) -> None:
    for start in range(0, len(changes), BATCH):
        await caller.broker.configure(caller.call(), changes[start : start + BATCH])


# -- through the client -----------------------------------------------------------------------


async def enqueue_one_by_one(url: str, queue: str, tasks: int, meter: Meter) -> None:
    """100 callers that each wait for their task to be accepted before they send the next."""
    app = Fairlead(url)

    @app.task(name="bench.noop", queue=queue)
    async def noop(text: str) -> None: ...

    async def caller(count: int) -> None:
        for _ in range(count):
            await noop.aenqueue(_PAYLOAD)

    async with app:
        await noop.aenqueue(_PAYLOAD)  # opens the connection
        each = -(-tasks // CALLERS)
        meter.start()
        await asyncio.gather(*(caller(each) for _ in range(CALLERS)))
        meter.stop(each * CALLERS)


async def enqueue_together(url: str, queue: str, tasks: int, meter: Meter) -> None:
    """Calls of 500 tasks, a few of them under way at once."""
    app = Fairlead(url)

    @app.task(name="bench.noop", queue=queue)
    async def noop(text: str) -> None: ...

    async def caller(calls: int) -> None:
        for _ in range(calls):
            await app.aenqueue_many(noop.call(_PAYLOAD) for _ in range(TOGETHER))

    async with app:
        await noop.aenqueue(_PAYLOAD)
        each = -(-tasks // (TOGETHER * FETCHERS))
        meter.start()
        await asyncio.gather(*(caller(each) for _ in range(FETCHERS)))
        meter.stop(each * FETCHERS * TOGETHER)


async def empty(url: str, queue: str) -> None:
    """Remove what waits in a queue."""
    caller = _Caller(url)
    while (await caller.broker.purge(caller.call(), queue)).more:
        pass
    await caller.broker.close()


# -- features ---------------------------------------------------------------------------------


class Feature(NamedTuple):
    """One thing that tasks may use, and how; what is not named here is as in a plain task."""

    name: str
    levels: int = 1  # of the four
    limited: bool = False
    weights: bool = False
    unique: bool = False
    delay: float = 0.0
    result: bytes | None = None
    dependent: bool = False  # every second task waits for the one before it
    watched: bool = False

    @property
    def queue(self) -> str:
        """Where its tasks live."""
        return f"bench-{self.name.split(',', maxsplit=1)[0].replace(' ', '-')}"


FEATURES = (
    Feature("plain"),
    Feature("levels, 4 in use", levels=len(LEVELS)),
    Feature("limits, both for each tenant", limited=True),
    Feature("weights", weights=True),
    Feature("unique keys", unique=True),
    Feature("delays", delay=_DELAY),
    Feature("results, 100 bytes", result=b"." * 100),
    Feature("dependencies, of every second task", dependent=True),
    Feature("watchers, of every task", watched=True),
)


class Trial:
    """A queue whose tasks all use one feature."""

    def __init__(self, url: str, feature: Feature, tenants: int) -> None:
        self.feature = feature
        self._caller = _Caller(url)
        self._names = [f"tenant-{index}" for index in range(tenants)]
        self._mail = 0  # the number of the last letter

    async def close(self) -> None:
        """Hang up."""
        await self._caller.broker.close()

    async def prepare(self, warm_up: int) -> None:
        """Set what has to be set, and pass tasks through until it is steady."""
        feature, changes = self.feature, []
        for index, tenant in enumerate(self._names):
            change = TenantChange(tenant=tenant, queue=feature.queue)
            if feature.limited:
                change = TenantChange(
                    tenant=tenant, queue=feature.queue, concurrency=_LIMIT, rate=_RATE, burst=_LIMIT
                )
            elif feature.weights:
                weight = _WEIGHTS[index % len(_WEIGHTS)]
                change = TenantChange(tenant=tenant, queue=feature.queue, weight=weight)
            else:
                continue
            changes.append(change)
        await _configure(self._caller, changes)
        await self.run(warm_up, None)

    async def run(self, tasks: int, meter: Meter | None) -> None:
        """Enqueue, fetch and settle so many."""
        made = [self._make(count) for count in range(0, tasks, BATCH)]
        if meter:
            meter.start()
        for batch in made:
            await self._caller.enqueue(batch, BATCH)
            if self.feature.watched:
                ids = [each.message.id for each in batch]
                await self._caller.broker.watch(self._caller.name, ids)
        if self.feature.delay:
            await asyncio.sleep(2 * self.feature.delay)
        left = BATCH * len(made)
        while left:
            left -= len(await self._exchange())
        if meter:
            meter.stop(BATCH * len(made))

    async def _exchange(self) -> list[Leased]:
        caller, feature = self._caller, self.feature
        settled = await caller.exchange(feature.queue, BATCH, feature.result)
        if feature.watched and settled:
            letters = await caller.broker.collect(caller.name, self._mail, 0.0)
            self._mail = letters[-1].number if letters else self._mail
        return settled

    def _make(self, first: int) -> list[Submission]:
        feature, batch = self.feature, list[Submission]()
        for n in range(first, first + BATCH):
            level = n % feature.levels if feature.levels > 1 else 2
            tenant = self._names[n % len(self._names)]
            plain = submission(feature.queue, tenant, level=level)
            message = plain.message
            if feature.unique:
                plain = Submission(message=message, unique=Unique(key=message.id))
            elif feature.delay:
                plain = Submission(message=message, delay=feature.delay)
            elif feature.dependent and n % 2:
                parent = Dependency(batch[-1].message.id)
                plain = Submission(message=message, depends_on=(parent,))
            batch.append(plain)
        return batch
