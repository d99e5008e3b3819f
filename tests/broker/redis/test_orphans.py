"""Dependents that are gone behind the broker's back are counted, and hold nobody up."""

from __future__ import annotations

import redis

from fairlead.broker.redis import RedisBroker
from fairlead.broker.verbs import MAX_STEP
from tests.broker.redis.sample import Spoiler
from tests.support.servers import server
from tests.support.store import NOW, Client, completed, submit


async def test_dependents_that_are_not_known_are_counted_and_forgotten() -> None:
    with server() as running, redis.Redis(unix_socket_path=running.path) as client:
        broker = RedisBroker(running.url, test_clock=True)
        c = Client(broker)
        (parent,) = await c.run(submit("parent"))
        gone = [f"t{i}" for i in range(MAX_STEP + 10)]
        await c.enqueue(*(submit(id, after=["parent"]) for id in gone))
        for key in ("tasks", "records", "before"):
            Spoiler(client).do("HDEL", key, *gone)
        await c.settle(completed(parent))
        assert not (await broker.deliver(now=NOW)).more
        assert (await broker.stats(now=NOW)).orphans == MAX_STEP + 10
        await broker.close()
