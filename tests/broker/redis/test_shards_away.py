"""A shard that is away, refuses or stays silent costs the others nothing but its own tasks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.broker import Store
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, Fetch
from fairlead.broker.sharded import ShardedBroker
from fairlead.model.errors import Ambiguous, OutOfOrder, Refused, Unreachable
from fairlead.model.lifecycle import State
from tests.support.proxy import proxy
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, ids, submit
from tests.worker.harness import until

QUEUES = ("far", "default")


@pytest.fixture
def near() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture
def far() -> Iterator[Running]:
    with server() as running:
        yield running


@contextlib.asynccontextmanager
async def opened(near: str, far: str, *, test_clock: bool = True) -> AsyncIterator[ShardedBroker]:
    stores = {
        "0": RedisBroker(near, shard="0", test_clock=test_clock, patience=5.0),
        "f": RedisBroker(far, shard="f", test_clock=test_clock, patience=5.0),
    }
    broker = ShardedBroker(stores, {"far": "f"})
    try:
        yield broker
    finally:
        with contextlib.suppress(Exception):
            await broker.close()


async def back(broker: ShardedBroker) -> None:
    """Wait until the shard is asked again."""
    for _ in range(500):
        if broker.away.why("f") is None:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the shard is still taken for away")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "refuses", "silent"])
async def test_a_shard_that_is_away_costs_others_a_moment_once(
    near: Running, far: Running, how: str
) -> None:
    async with opened(near.url, far.url) as broker:
        c = Client(broker)
        await c.fetch(1, QUEUES)  # connected, and all functions are there
        await c.enqueue(*(submit(f"n.{n}") for n in range(5)), submit("f.0", queue="far"))
        if how == "killed":
            far.kill()
        elif how == "silent":
            far.pause()
        else:
            far.admin("CONFIG", "SET", "min-replicas-to-write", "1")
        began = time.monotonic()
        assert ids(await c.fetch(1, QUEUES)) == ["n.0"]
        assert time.monotonic() - began < 4
        began = time.monotonic()
        for n in range(1, 5):
            assert ids(await c.fetch(1, QUEUES)) == [f"n.{n}"]
        assert time.monotonic() - began < 4  # each would take five seconds, if it were asked

        if how == "killed":
            far.start()
        elif how == "silent":
            far.resume()
        else:
            far.admin("CONFIG", "SET", "min-replicas-to-write", "0")
        await back(broker)
        if how == "refuses":
            assert ids(await c.fetch(1, QUEUES)) == ["f.0"]


async def test_outcomes_for_a_shard_that_is_away_are_sent_again_and_others_are_applied(
    near: Running, far: Running
) -> None:
    async with opened(near.url, far.url) as broker:
        c = Client(broker)
        await c.enqueue(submit("n"), submit("f", queue="far"))
        leases = {lease.message.id: lease for lease in await c.fetch(2, QUEUES)}
        far.admin("CONFIG", "SET", "min-replicas-to-write", "1")
        ends = [completed(leases["f"]), completed(leases["n"])]
        assert await c.settle(*ends) == ["later", "applied"]
        assert await c.settle(ends[0]) == ["later"]  # also by itself: others do not wait for it
        far.admin("CONFIG", "SET", "min-replicas-to-write", "0")
        await back(broker)
        assert await c.settle(ends[0]) == ["applied"]


async def test_what_a_shard_lent_in_a_lost_reply_goes_back_with_the_next_beat(
    near: Running, far: Running
) -> None:
    lent = b"fairlead_exchange_"
    async with (
        proxy(path=far.path, matching=lambda command: lent in command[:200]) as between,
        opened(near.url, between.url) as broker,
    ):
        c = Client(broker)
        await c.fetch(1, QUEUES)
        await c.enqueue(submit("n"), submit("f", queue="far"))
        between.swallow(up=False)
        call = Call("w1", 50)
        reply = await broker.exchange(call, fetch=Fetch(queues=QUEUES, max=2), now=NOW)
        assert ids(reply.leased) == ["n"]
        assert await broker.exchange(call, fetch=Fetch(queues=QUEUES, max=2), now=NOW) == reply
        between.heal()
        await back(broker)
        (record,) = await broker.find(["f"], now=NOW)
        assert record is not None
        assert record.state is State.RUNNING
        beat = await broker.beat(
            "w1", [c.ref(lease) for lease in reply.leased], answered=50, now=NOW
        )
        assert beat.unclaimed == 1
        assert beat.lost == []
        (record,) = await broker.find(["f"], now=NOW)
        assert record is not None
        assert (record.state, record.attempts) == (State.QUEUED, 0)


async def test_a_beat_keeps_the_leases_of_the_shards_that_are_there(
    near: Running, far: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(near.url, far.url) as broker:
        c = Client(broker)
        await c.enqueue(submit("n"), submit("f", queue="far"))
        leases = await c.fetch(2, QUEUES)

        async def away(*_: Any, **__: Any) -> Any:
            raise Unreachable("x")

        monkeypatch.setattr(broker.stores["f"], "beat", away)
        beat = await broker.beat("w1", [c.ref(lease) for lease in leases], now=NOW)
        assert beat.lost == []
        monkeypatch.setattr(broker.stores["0"], "beat", away)
        with pytest.raises(Unreachable):
            await broker.beat("w1", [c.ref(lease) for lease in leases], now=NOW)


async def test_all_shards_away_is_an_error_and_the_number_is_repeated(
    near: Running, far: Running
) -> None:
    async with opened(near.url, far.url) as broker:
        c = Client(broker)
        await c.enqueue(submit("n"), submit("f", queue="far"))
        for running in (near, far):
            running.admin("CONFIG", "SET", "min-replicas-to-write", "1")
        call, fetch = Call("w1", 50), Fetch(queues=QUEUES, max=2)
        with pytest.raises((Refused, Ambiguous)):  # the other if its time ended in the midst
            await broker.exchange(call, fetch=fetch, now=NOW)
        for running in (near, far):
            running.admin("CONFIG", "SET", "min-replicas-to-write", "0")
        await back(broker)
        reply = await broker.exchange(call, fetch=fetch, now=NOW)
        assert "f" in ids(reply.leased)


async def test_the_first_call_of_a_later_term_needs_no_shard_that_is_away(
    near: Running, far: Running
) -> None:
    async with opened(near.url, far.url) as broker:
        await broker.enqueue(Call("manager", 1_000), [submit("a")], now=NOW)
        far.admin("CONFIG", "SET", "min-replicas-to-write", "1")
        await broker.configure(Call("manager", 2_000), [], now=NOW)
        with pytest.raises(OutOfOrder):
            await broker.enqueue(Call("manager", 1_001), [submit("b")], now=NOW)


async def test_a_worker_goes_on_with_other_shards_and_settles_when_one_is_back(
    near: Running, far: Running
) -> None:
    async with opened(near.url, far.url, test_clock=False) as broker:
        store: Store = broker
        app = Fairlead(store=store)
        go = asyncio.Event()

        @app.task(queue="far")
        async def there() -> str:
            await go.wait()
            return "there"

        @app.task
        async def here(n: int) -> int:
            return n

        async with app.worker(concurrency=4) as worker:
            distant = await there.aenqueue()
            await until(lambda: len(worker.inflight) == 1)
            far.admin("CONFIG", "SET", "min-replicas-to-write", "1")
            go.set()
            await until(lambda: worker.syncer.unsettled > 0)
            began = time.monotonic()
            handles = [await here.aenqueue(n) for n in range(5)]
            await until(lambda: worker.syncer.settled == 5, timeout=10)
            assert time.monotonic() - began < 8
            far.admin("CONFIG", "SET", "min-replicas-to-write", "0")
            assert await distant.aresult(timeout=20) == "there"
            assert [await handle.aresult(timeout=20) for handle in handles] == list(range(5))
            assert worker.syncer.unsettled == 0


@pytest.mark.slow
async def test_events_of_the_other_shards_are_read_while_one_is_away(
    near: Running, far: Running
) -> None:
    async with opened(near.url, far.url) as broker:
        c = Client(broker)
        await c.enqueue(submit("n.0"), submit("f.0", queue="far"))
        place = (await broker.events(latest=True)).last
        await c.enqueue(submit("f.1", queue="far"))
        far.pause()
        await c.enqueue(submit("n.1"))
        began = time.monotonic()
        page = await broker.events(after=place, timeout=5.0)
        assert [event.task for event in page.events] == ["n.1"]
        assert (await broker.events(after=page.last, timeout=5.0)).events == []
        assert time.monotonic() - began < 6  # two seconds, once
        (found,) = await broker.find(["n.1"], parts="info")
        assert found is not None
        with pytest.raises((Unreachable, Ambiguous)):
            await broker.find(["f.1"], parts="info")  # nobody can say whether it exists

        far.resume()
        await back(broker)
        later = await broker.events(after=page.last, timeout=5.0)
        assert ([event.task for event in later.events], later.gap) == (["f.1"], False)
