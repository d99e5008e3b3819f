"""Managers that die between two steps: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from fairlead.client.stored_submissions import tasks_text
from fairlead.ledger.task_log import unpack_log
from fairlead.runtime import fault_injection
from tests.manager.bench import ENQUEUE, Bench, submission, until
from tests.manager.process import ManagerProcess
from tests.support.deaths import Deaths, deaths
from tests.support.servers import Running


@pytest.fixture(scope="module")
def dying() -> Iterator[Deaths]:
    with deaths("tests.manager.killed") as process:
        yield process


@pytest.mark.exhaustive
@pytest.mark.parametrize("site", fault_injection.DISPATCHING)
async def test_whoever_leads_next_ends_what_a_killed_manager_began(
    bench: Bench, valkey: Running, dying: Deaths, site: str
) -> None:
    ids = await bench.add(count=10)
    early = await bench.lead("early")
    await bench.ledger.claim_tasks(term=early.number, limit=2)
    flow = await bench.add_flow()
    status = await asyncio.to_thread(dying.at, site, 1, url=valkey.url, dsn=bench.dsn)
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
        monkeypatch.setattr(fault_injection, "reached", self.reached)

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
                self.fault = (
                    self.dice.choice(fault_injection.DISPATCHING[:7]),
                    self.dice.randint(1, 2),
                )
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


# -- a real manager -----------------------------------------------------------------------------

_LIVES = 7  # of managers: each of the places between claim and confirmation twice, and one to end
_INTERLEAVINGS = 1_000


class Traffic:
    """Transactions of three connections, and a worker, while managers live and die beside them."""

    def __init__(self, bench: Bench, connections: Sequence[psycopg.AsyncConnection]) -> None:
        self.bench, self.connections = bench, connections
        self.dice = random.Random(7)
        self.count = 0
        self.committed: list[str] = []
        self.ran: list[str] = []

    async def interleave(self) -> None:
        """One transaction of each, step by step in any order; then what is queued is run."""
        parts = [self.transaction(each) for each in self.connections]
        while parts:
            part = self.dice.choice(parts)
            if await anext(part, StopAsyncIteration) is StopAsyncIteration:
                parts.remove(part)
        self.count += 1
        self.ran += await self.bench.run_all()

    async def transaction(self, connection: psycopg.AsyncConnection) -> AsyncIterator[None]:
        ids: list[str] = []
        for _ in range(self.dice.randint(1, 2)):
            made = submission()
            await connection.execute(ENQUEUE, (tasks_text([made]),))
            ids.append(made.message.id)
            yield
        if self.dice.random() < 0.5:
            await connection.commit()
            self.committed += ids
        else:
            await connection.rollback()

    async def beside(self, manager: ManagerProcess, until: int) -> int:
        """Go on until the manager has died, or for so many interleavings; its status if it has."""
        while self.count < until and manager.status() is None:
            await self.interleave()
        return manager.status() or 0


@pytest.mark.slow
@pytest.mark.long(40)
async def test_a_thousand_interleavings_beside_managers_that_are_killed(
    bench: Bench, valkey: Running, tmp_path: Path
) -> None:
    """What commits runs once and what rolls back never, wherever a manager is killed."""
    async with connected(bench.dsn, 3) as connections:
        traffic = Traffic(bench, connections)
        for life in range(_LIVES - 1):
            site = ("claimed", "pushed", "settled")[life % 3]
            passes = traffic.dice.randint(40, 80)
            fault = {fault_injection.VARIABLE: f"{site}:{passes}:kill"}
            with ManagerProcess(tmp_path, valkey.url, bench.dsn, environment=fault) as manager:
                status = await traffic.beside(manager, 10 * _INTERLEAVINGS)
            assert status == -signal.SIGKILL, manager.file.read_text()[-3_000:]
            await bench.give_up_leadership()  # of the dead: its lease would last for seconds
        with ManagerProcess(tmp_path, valkey.url, bench.dsn) as manager:
            assert await traffic.beside(manager, max(_INTERLEAVINGS, traffic.count + 20)) == 0

            async def is_done() -> bool:
                traffic.ran += await bench.run_all()
                return await bench.states() == {"completed": len(traffic.committed)}

            await until(is_done, 30.0)
    assert sorted(traffic.ran) == sorted(traffic.committed)


# -- a recorder ---------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("site", fault_injection.RECORDING)
async def test_what_a_killed_recorder_has_not_committed_is_recorded_once(
    bench: Bench, valkey: Running, dying: Deaths, site: str, times: int
) -> None:
    await bench.add(count=10)
    await bench.dispatcher(await bench.lead("first")).dispatch_all()
    await bench.run_all()  # while nobody records
    before = await bench.ledger.places()
    status = await asyncio.to_thread(dying.at, site, times, url=valkey.url, dsn=bench.dsn)
    assert status == -signal.SIGKILL
    term = await bench.lead("next")  # behind whatever the dead one had in hand
    steps = times if site == "recorded" else times - 1  # of eight events each
    [place] = (await bench.ledger.places()).values()
    assert (place == before.get(place.shard)) == (steps == 0)
    [(count,)] = await bench.sql("select count(*) from fairlead.tasks where last_entry > 0")
    assert count == (0, 8, 10)[steps]
    await bench.recorder(term).catch_up()
    assert await bench.states() == {"completed": 10}
    for log in (await bench.rows("log")).values():
        assert [each.kind for each in unpack_log(log)] == ["enqueued", "started", "completed"]
