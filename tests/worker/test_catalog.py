"""What workers tell of their tasks, for as long as they work."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest
from msgspec import Meta

from fairlead import Fairlead
from fairlead.broker import connect
from fairlead.broker.memory import MemoryBroker
from fairlead.client import KnownTask, known_tasks
from fairlead.model.catalog import KIND, Catalog, decode_catalog, digest_of
from fairlead.worker.publisher import TTL, Publisher
from tests.worker.harness import NOW, until


def shop(broker: MemoryBroker) -> Fairlead:
    app = Fairlead(store=broker, priorities={"urgent": "high"})

    @app.task(name="shop.mail", queue="mail", priority="urgent", max_retries=7, timeout="5s")
    async def mail(to: str, count: Annotated[int, Meta(ge=1)] = 1) -> None:
        """Send a letter.

        And more about it.
        """

    return app


async def published(broker: MemoryBroker, now: float | None = None) -> dict[str, Catalog]:
    page = await broker.documents(KIND, now=now)
    return {each.name: decode_catalog(each.value) for each in page.documents}


async def known(app: Fairlead) -> list[KnownTask]:
    return await known_tasks(app._clients.current(), within=0.0)


async def test_a_worker_tells_of_its_tasks_and_its_record_says_where() -> None:
    broker = MemoryBroker()
    app = shop(broker)

    async with app.worker() as worker:
        await until(lambda: _some(broker))
        await worker.heartbeater.beat()
        [(name, catalog)] = (await published(broker)).items()
        [record] = await broker.workers()
        [task] = await known(app)

    assert record.details["catalog"] == name
    assert record.details["state"] == "working"
    [entry] = catalog.tasks
    assert (entry.name, entry.queue, entry.summary) == ("shop.mail", "mail", "Send a letter.")
    assert (entry.priority, entry.max_retries, entry.timeout) == ("high", 7, 5.0)
    assert [p.name for p in entry.parameters or ()] == ["to", "count"]
    assert (task.name, task.workers, task.current) == ("shop.mail", 1, entry)


async def _some(broker: MemoryBroker) -> bool:
    return bool(await published(broker))


async def test_two_workers_of_the_same_code_publish_one_document() -> None:
    broker = MemoryBroker()
    async with shop(broker).worker() as one, shop(broker).worker() as two:
        for worker in (one, two):
            await worker.publisher.publish()
            await worker.heartbeater.beat()
        [task] = await known(Fairlead(store=broker))
        assert len(await published(broker)) == 1
    assert task.workers == 2
    assert len(task.entries) == 1


async def test_a_catalog_goes_when_no_worker_refreshes_it_any_more() -> None:
    broker = MemoryBroker(test_clock=True)
    await broker.promote(now=NOW)
    publisher = Publisher(broker, "w1", b"{}")
    await publisher.publish()
    await broker.promote(now=NOW + TTL - 1.0)
    assert list(await published(broker)) == [digest_of(b"{}")]
    await publisher.publish()
    assert len(await published(broker, now=NOW + 2 * TTL - 2.0)) == 1
    assert await published(broker, now=NOW + 2 * TTL) == {}


async def test_a_task_that_was_added_is_told_of_in_the_next_life_of_a_worker() -> None:
    broker = MemoryBroker()
    app = shop(broker)
    worker = app.worker()
    async with worker:
        first = worker.publisher.digest
    app.task(name="more")(_some)
    async with worker:
        assert worker.publisher.digest != first
        assert len(decode_catalog(worker.publisher.data).tasks) == 2


async def test_a_drain_publishes_nothing() -> None:
    broker = MemoryBroker()
    app = shop(broker)
    await app.drain()
    assert await published(broker) == {}


async def test_a_worker_works_though_its_catalog_cannot_be_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> bytes:
        raise RuntimeError("a mistake of ours")

    publisher = Publisher(MemoryBroker(), "w1", broken)
    publisher.prepare()
    await publisher.publish()
    assert publisher.digest == ""
    assert [line.levelname for line in caplog.records] == ["WARNING"]


async def test_that_there_are_too_many_catalogs_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.broker.memory.documents.MAX_DOCUMENTS", 1)
    broker = MemoryBroker()
    await Publisher(broker, "w1", b"{}").publish()
    late = Publisher(broker, "w2", b"{ }")
    await late.publish()
    await late.publish()
    assert [line.levelno for line in caplog.records] == [logging.ERROR]


async def test_the_time_limit_of_a_worker_is_told_for_tasks_that_have_none() -> None:
    broker = MemoryBroker()
    app = Fairlead(store=broker)

    @app.task(name="a")
    async def plain() -> None: ...

    @app.task(name="b", timeout=None)
    async def endless() -> None: ...

    async with app.worker(task_timeout="1m") as worker:
        catalog = decode_catalog(worker.publisher.data)
    assert [entry.timeout for entry in catalog.tasks] == [60.0, None]


async def test_handlers_enqueue_by_name_what_another_program_has() -> None:
    store = connect("memory://")
    front, back = Fairlead(store=store), Fairlead(store=store)
    seen: list[Any] = []

    @back.task(name="back.work", queue="heavy")
    async def work(n: int) -> None:
        seen.append(n)

    @front.task(name="front.start")
    async def start() -> None:
        await front.asend("back.work", 1)

    async with back.worker(queues=["heavy"]) as worker:
        await worker.publisher.publish()
        await start.aenqueue()
        await front.drain(queues=["default"])
        await until(lambda: seen == [1])
