"""Queues as an operator sees them: the counts of one, and how it is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead import Fairlead, InvalidName, QueueInUse
from tests.support.servers import Running, server


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture(params=["memory", "valkey"])
async def app(request: pytest.FixtureRequest, valkey: Running) -> AsyncIterator[Fairlead]:
    valkey.admin("FLUSHALL")
    app = Fairlead("memory://" if request.param == "memory" else valkey.url)
    yield app
    await app.aclose()


async def test_the_counts_of_one_queue_are_those_of_the_whole(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    await app.aconfigure_limiter("gpu", concurrency=1)
    for queue in ("mail", "mail", "reports"):
        await work.using(queue=queue, tenant="acme").aenqueue()
    whole = await app.asnapshot()
    assert sorted(whole.queues) == ["mail", "reports"]
    assert list(whole.limiters) == ["gpu"]
    one = await app.asnapshot("mail")
    assert (one.queues, one.depth, one.limiters) == ({"mail": whole.queues["mail"]}, 2, {})
    one = await asyncio.to_thread(app.snapshot, "mail", tenants=False)
    assert one.queues["mail"].tenants == {}
    assert (await app.asnapshot("nowhere")).queues == {}
    with pytest.raises(InvalidName, match="'a b'"):
        await app.asnapshot("a b")


async def test_a_queue_is_deleted_when_there_is_nothing_left_to_do(app: Fairlead) -> None:
    @app.task(name="work")
    def work() -> None: ...

    await app.aconfigure_queue("mail", max_waiting=100)
    for _ in range(60):  # more than one call forgets
        await work.using(queue="mail").aenqueue()
    assert await app.drain() == 60
    await work.using(queue="mail").aenqueue()
    await work.using(queue="mail", delay=60).aenqueue()

    with pytest.raises(QueueInUse, match="'mail' still has tasks: 2 wait, 0 run") as raised:
        await app.adelete_queue("mail")
    error = raised.value
    assert (error.queue, error.waiting, error.running, error.pinned) == ("mail", 2, 0, 0)
    assert error.cause == "in_use"
    with pytest.raises(QueueInUse):
        await asyncio.to_thread(app.delete_queue, "mail")
    assert (await app.asnapshot()).queues["mail"].completed == 60

    assert await app.apurge("mail") == 2
    assert await app.adelete_queue("mail") == 62
    assert (await app.asnapshot()).queues == {}
    assert (await app.astats()).queues == {}


def test_deleting_a_queue_that_nobody_knows_does_nothing(app: Fairlead) -> None:
    assert app.delete_queue("nowhere") == 0
    with pytest.raises(InvalidName, match="'a b'"):
        app.delete_queue("a b")


async def test_a_purge_of_everything_takes_what_waits_in_any_queue(app: Fairlead) -> None:
    @app.task
    def work() -> None: ...

    await work.using(queue="done").aenqueue()
    assert await app.drain() == 1
    await work.using(queue="ready").aenqueue()
    await work.using(queue="later", delay=60).aenqueue()
    assert await app.apurge() == 2
    found = await app.asnapshot(tenants=False)
    assert (found.depth, found.cancelled, found.completed) == (0, 2, 1)
