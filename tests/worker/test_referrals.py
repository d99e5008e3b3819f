"""Workers of two releases side by side: what one does not know goes straight to one that does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from fairlead.broker.memory import MemoryBroker
from fairlead.model.lifecycle import State
from fairlead.worker.worker import Worker
from tests.worker.harness import Rig, until


class Site:
    """One broker, and an old and a new release of an app."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.old, self.new = Rig(self.broker), Rig(self.broker)
        self.ran: list[tuple[str, int]] = []

        @self.old.task(name="both")
        async def both_old() -> None:
            self.ran.append(("old", 0))

        @self.new.task(name="both")
        async def both_new() -> None:
            self.ran.append(("new", 0))

        @self.new.task(name="fresh")
        async def fresh(number: int) -> None:
            self.ran.append(("new", number))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[tuple[Worker, Worker]]:
        """A worker of each."""
        first = self.old.worker("old")
        second = self.new.worker("new")
        async with first, second:
            await until(self.registered)
            yield first, second

    async def registered(self) -> bool:
        return len(await self.broker.workers()) == 2


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_task_that_only_the_new_release_knows_runs_there_at_once(site: Site) -> None:
    async with site.working():
        ids = [await site.old.enqueue("fresh", n) for n in range(30)]
        for id in ids:
            await site.old.finished(id)
    assert sorted(site.ran) == [("new", n) for n in range(30)]
    for id in ids:
        record = await site.old.find(id)
        assert (record.attempts, record.crashes, record.error) == (1, 0, None)


async def test_a_newer_version_goes_to_the_worker_that_has_it(site: Site) -> None:
    @site.old.task(name="versioned", version=1)
    async def one() -> None:
        site.ran.append(("old", 1))

    @site.new.task(name="versioned", version=2)
    async def two() -> None:
        site.ran.append(("new", 2))

    async with site.working():
        id = await site.old.enqueue("versioned", task_version=2)
        await site.old.finished(id)
        other = await site.old.enqueue("versioned", task_version=1)
        await site.old.finished(other)
    assert site.ran[0] == ("new", 2)
    assert site.ran[1] in (("old", 1), ("new", 2))  # whoever is woken: both can run it


async def test_what_nobody_knows_is_unroutable_as_ever(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with site.working():
        id = await site.old.enqueue("nowhere")
        await site.old.finished(id, State.RETRYING)
    record = await site.old.find(id)
    assert (record.reason, record.attempts) == ("unroutable", 0)
    (line,) = [each for each in caplog.messages if "unroutable" in each]
    assert line == f"task unroutable: nowhere {id}, UnknownTask"


async def test_what_nobody_knew_runs_as_soon_as_somebody_comes_who_does(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.worker.referrer._FRESH", 0.02)
    async with site.old.worker("old") as old:
        ids = [await site.old.enqueue("fresh", n) for n in range(3)]
        for id in ids:
            await site.old.finished(id, State.RETRYING)
        assert await old.referrer.look_again() == 0
        async with site.new.worker("new"):
            await until(site.registered)
            for id in ids:  # not after the five seconds of an unroutable task
                await until(partial(_ended, site, id), timeout=4.0)
    assert sorted(site.ran) == [("new", n) for n in range(3)]


async def _ended(site: Site, id: str) -> bool:
    return await site.old.state(id) is State.COMPLETED


async def test_a_worker_that_does_not_serve_the_queue_gets_nothing(site: Site) -> None:
    async with (
        site.old.worker("old", queues=["mail"]),
        site.new.worker("new", queues=["default"]),
    ):
        await until(site.registered)
        id = await site.old.enqueue("fresh", 1, queue="mail")
        await site.old.finished(id, State.RETRYING)
    assert (await site.old.find(id)).reason == "unroutable"


async def test_without_room_it_comes_back_in_a_moment_and_no_attempt_is_used(site: Site) -> None:
    go = asyncio.Event()

    @site.new.task(name="waits")
    async def waits() -> None:
        await go.wait()

    async with site.old.worker("old"), site.new.worker("new", concurrency=1):
        await until(site.registered)
        held = [await site.new.enqueue("waits") for _ in range(4)]

        async def parked() -> bool:
            states = [await site.old.state(id) for id in held]
            return states.count(State.SCHEDULED) >= 2

        await until(parked)  # one runs, one is held, the others rest
        records = [await site.old.find(id) for id in held]
        resting = [each for each in records if each.state is State.SCHEDULED]
        assert {(each.reason, each.attempts, each.error) for each in resting} == {
            ("released", 0, None)
        }
        go.set()
        for id in held:
            await site.old.finished(id)


async def test_what_is_handed_on_is_counted_once(site: Site) -> None:
    async with site.working():
        ids = [await site.old.enqueue("fresh", n) for n in range(10)]
        for id in ids:
            await site.old.finished(id)
    snapshot = await site.broker.snapshot()
    assert snapshot.running == 0
    assert snapshot.queues["default"].completed == 10
    assert await site.broker.audit() == []


async def test_the_log_says_once_for_each_task_where_it_goes(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fairlead.worker"):
        async with site.working():
            for n in range(3):
                await site.old.finished(await site.old.enqueue("fresh", n))
    text = "task fresh is not known here as it was called: it goes to workers that know it"
    assert caplog.messages.count(text) == 1


async def test_a_worker_that_stops_hands_back_what_it_was_lent(site: Site) -> None:
    go = asyncio.Event()

    @site.new.task(name="waits")
    async def waits() -> None:
        await go.wait()

    new = site.new.worker("new", concurrency=1, grace=0.0)
    async with site.old.worker("old"):
        async with new:
            await until(site.registered)
            ids = [await site.new.enqueue("waits") for _ in range(2)]
            await until(lambda: bool(new.inflight.held))
        for id in ids:
            record = await site.old.find(id)
            assert record.incarnation != "new"
            assert record.attempts == 0
    assert await site.broker.audit() == []
