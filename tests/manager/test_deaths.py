"""Managers that die between two steps: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest

from fairlead.client.stored_submissions import tasks_text
from fairlead.runtime import faults
from tests.manager.bench import ENQUEUE, Bench, submission
from tests.manager.killed import Deaths, deaths
from tests.support.servers import Running


@pytest.fixture(scope="module")
def dying() -> Iterator[Deaths]:
    with deaths() as process:
        yield process


@pytest.mark.parametrize("site", faults.DISPATCHING)
async def test_whoever_leads_next_ends_what_a_killed_manager_began(
    bench: Bench, valkey: Running, dying: Deaths, site: str
) -> None:
    ids = await bench.add(count=10)
    early = await bench.lead("early")
    await bench.ledger.claim_tasks(term=early.number, limit=2)
    flow = await bench.add_flow()
    status = await asyncio.to_thread(dying.at, site, valkey.url, bench.dsn)
    assert status == -signal.SIGKILL
    ran = await bench.run_all()  # workers do not wait for the next leader
    term = await bench.lead("next")
    await bench.dispatcher(term).dispatch_all()
    while more := await bench.run_all():
        ran += more
        await bench.store.deliver()
    assert sorted(ran) == sorted([*ids, *flow])
    await bench.recorder(term).catch_up()
    assert set((await bench.rows("state")).values()) == {"completed"}
    assert await bench.sql("select state from fairlead.flows") == [("completed",)]


# -- interleavings ------------------------------------------------------------------------------


class Killed(BaseException):
    """As if by kill -9: nothing behind this place is done."""


class Interleaving:
    """Transactions that commit or roll back, leaders that die, workers: in any order."""

    def __init__(
        self,
        bench: Bench,
        connections: Sequence[psycopg.AsyncConnection],
        seed: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.bench, self.connections = bench, connections
        self.dice = random.Random(seed)
        self.committed: list[str] = []
        self.ran: list[str] = []
        self.fault: tuple[str, int] | None = None
        monkeypatch.setattr(faults, "reached", self.reached)

    def reached(self, site: str) -> None:
        if self.fault is not None and self.fault[0] == site:
            left = self.fault[1] - 1
            self.fault = (site, left) if left else None
            if not left:
                raise Killed

    async def transaction(self, connection: psycopg.AsyncConnection) -> AsyncIterator[None]:
        """One step after the other of a transaction."""
        ids: list[str] = []
        for _ in range(self.dice.randint(1, 2)):
            made = [submission() for _ in range(self.dice.randint(1, 3))]
            await connection.execute(ENQUEUE, (tasks_text(made),))
            ids += [each.message.id for each in made]
            yield
        if self.dice.random() < 0.5:
            await connection.commit()
            self.committed += ids
        else:
            await connection.rollback()
        yield

    async def managers(self) -> AsyncIterator[None]:
        """Leaders, one after the other; most of them die somewhere."""
        for _ in range(self.dice.randint(2, 3)):
            if self.dice.random() < 0.8:
                self.fault = self.dice.choice(faults.DISPATCHING[:7]), self.dice.randint(1, 2)
            try:
                term = await self.bench.lead()
                dispatcher = self.bench.dispatcher(term, batch=2)
                yield
                for _ in range(2):
                    await dispatcher.dispatch_all()
                    yield
            except* Killed:
                pass
            yield
            self.fault = None

    async def worker(self) -> AsyncIterator[None]:
        for _ in range(3):
            self.ran += await self.bench.run_all()
            yield

    async def run(self) -> None:
        parts = [self.transaction(each) for each in self.connections]
        parts += [self.managers(), self.worker()]
        while parts:
            part = self.dice.choice(parts)
            if await anext(part, StopAsyncIteration) is StopAsyncIteration:
                parts.remove(part)
        term = await self.bench.lead()
        await self.bench.dispatcher(term).dispatch_all()
        self.ran += await self.bench.run_all()
        await self.bench.recorder(term).catch_up()


@asynccontextmanager
async def connected(dsn: str, count: int) -> AsyncIterator[list[psycopg.AsyncConnection]]:
    opened = [await psycopg.AsyncConnection.connect(dsn) for _ in range(count)]
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()


async def interleave(bench: Bench, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = 0
    async with connected(bench.dsn, 3) as connections:
        for seed in seeds:
            made = Interleaving(bench, connections, seed, monkeypatch)
            await made.run()
            assert sorted(made.ran) == sorted(made.committed), f"seed {seed}"
            committed += len(made.committed)
        states = await bench.states()
    assert states == {"completed": committed}


async def test_what_commits_runs_once_and_what_does_not_never(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interleave(bench, range(12), monkeypatch)


@pytest.mark.slow
@pytest.mark.long(60)
@pytest.mark.timeout(600)
async def test_a_thousand_interleavings(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await interleave(bench, range(1_000, 2_000), monkeypatch)
