"""A worker that waits by ``take`` is woken, or handed the task itself; either way it runs once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Call, QueueChange, Settled, Taken
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.fair import WITH_REAL_CLOCK, LiveClient
from tests.support.store import Taking, completed, ids, submit

QUEUES = ("default",)


@pytest.fixture(params=WITH_REAL_CLOCK)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A new broker with a real clock, audited afterwards; its queue knows a tenant."""
    store = WITH_REAL_CLOCK[request.param]()
    try:
        client = LiveClient(store, "first")
        await client.enqueue(submit(_id(0)))
        await settle(client, *map(completed, await client.exchange(1)))
        yield store
        assert await store.audit() == []
    finally:
        await store.close()


def _id(number: int) -> str:
    return f"{number:032x}"


async def settle(client: LiveClient, *settlements: Settlement) -> list[Settled]:
    return (await client.broker.exchange(client.call(), settlements)).settled


async def loans(client: LiveClient, taking: Taking) -> list[Leased]:
    """What a worker has after its wait: what it was handed, or what it fetches."""
    taken = await taking.told()
    assert taken.found
    return taken.leased or await client.exchange(5)


async def test_a_task_that_is_there_ends_the_wait_at_once(broker: Store) -> None:
    producer, worker = LiveClient(broker, "p"), LiveClient(broker)
    await producer.enqueue(submit(_id(1)))
    assert await Taking(broker, worker.call()).told() == Taken(found=True)
    assert ids(await worker.exchange(5)) == [_id(1)]


async def test_a_task_that_comes_is_run_once_by_one_of_those_who_wait(broker: Store) -> None:
    producer = LiveClient(broker, "p")
    workers = [LiveClient(broker, f"w{n}") for n in range(3)]
    takes = [Taking(broker, worker.call()) for worker in workers]
    await asyncio.sleep(0.05)
    await producer.enqueue(submit(_id(1)))
    told = [asyncio.create_task(take.told()) for take in takes]
    done, _ = await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert len(done) == 1
    place = told.index(done.pop())
    (lease,) = await loans(workers[place], takes[place])
    assert (lease.message.id, lease.attempt, lease.started) == (_id(1), 1, True)
    assert await settle(workers[place], completed(lease)) == ["applied"]
    for worker in workers:
        assert await worker.exchange(5) == []
    await asyncio.wait_for(asyncio.gather(*(take.over() for take in takes), *told), 10)


async def test_nothing_in_time_is_nothing(broker: Store) -> None:
    worker = LiveClient(broker)
    assert await Taking(broker, worker.call(), QUEUES, 0.05).told() == Taken()


async def test_the_next_exchange_of_the_incarnation_ends_it(broker: Store) -> None:
    worker, producer = LiveClient(broker), LiveClient(broker, "p")
    take = Taking(broker, worker.call())
    await asyncio.sleep(0.05)
    await worker.exchange(0)
    assert await take.over() == Taken()
    await producer.enqueue(submit(_id(1)))
    (task,) = await broker.find([_id(1)])
    assert task is not None
    assert task.state is State.QUEUED
    assert ids(await worker.exchange(5)) == [_id(1)]


async def test_an_exchange_of_another_one_does_not(broker: Store) -> None:
    worker, other, producer = LiveClient(broker), LiveClient(broker, "o"), LiveClient(broker, "p")
    take = Taking(broker, worker.call())
    await asyncio.sleep(0.05)
    await other.exchange(0)
    await producer.enqueue(submit(_id(1)))
    assert ids(await loans(worker, take)) == [_id(1)]


async def test_what_comes_in_the_same_moment_as_the_exchange_is_lent_once(broker: Store) -> None:
    worker, producer = LiveClient(broker), LiveClient(broker, "p")
    for number in range(1, 20):
        take = Taking(broker, worker.call())
        await asyncio.sleep(0.002 * (number % 3))
        _, fetched = await asyncio.gather(producer.enqueue(submit(_id(number))), worker.exchange(5))
        leases = fetched + (await take.over()).leased
        leases += await worker.exchange(5)
        assert ids(leases) == [_id(number)]
        assert await settle(worker, *map(completed, leases)) == ["applied"]


async def test_a_pause_that_is_set_meanwhile_holds(broker: Store) -> None:
    worker, producer = LiveClient(broker), LiveClient(broker, "p")
    take = Taking(broker, worker.call(), QUEUES, 0.5)
    await asyncio.sleep(0.05)
    await producer.configure(QueueChange(queue="default", paused=True))
    await producer.enqueue(submit(_id(1)))
    assert await take.over() == Taken()
    await producer.configure(QueueChange(queue="default", paused=False))
    assert ids(await worker.exchange(5)) == [_id(1)]


async def test_what_a_wait_was_handed_goes_back_with_its_incarnation(broker: Store) -> None:
    worker, producer, other = LiveClient(broker), LiveClient(broker, "p"), LiveClient(broker, "o")
    take = Taking(broker, worker.call())
    await asyncio.sleep(0.05)
    await producer.enqueue(submit(_id(1)))
    await loans(worker, take)
    await broker.give_back(worker.incarnation, ())
    (lease,) = await other.exchange(5)
    assert (lease.message.id, lease.attempt, lease.crashes) == (_id(1), 1, 0)


async def test_a_lease_has_limits(broker: Store) -> None:
    with pytest.raises(InvalidOption):
        await broker.take(Call("w1", 1), QUEUES, 1.0, lambda: None, lease=0.0)
