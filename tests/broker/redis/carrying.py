"""A process that is killed on its way: ``python -m tests.broker.redis.carrying WHAT URL NEAR FAR``.

Two shards, of which the queue ``far`` is in the second. ``link`` stores a child whose parent is in
the other shard; ``told`` completes that parent. Both carry what is in the outboxes then.
"""

from __future__ import annotations

import asyncio
import sys

from fairlead.broker.redis import RedisBroker
from fairlead.broker.sharded import ShardedBroker
from tests.support.store import NOW, Client, completed, drain, submit


def opened(url: str, near: str, far: str, *, test_clock: bool = True) -> ShardedBroker:
    """Two shards; all queues are in the first but ``far``."""
    stores = {
        name: RedisBroker(url, shard=name, test_clock=test_clock, patience=5.0)
        for name in (near, far)
    }
    return ShardedBroker(stores, {"far": far}, default=near)


async def main(what: str, url: str, near: str, far: str) -> None:
    broker = opened(url, near, far)
    c = Client(broker, f"carrying-{what}")
    if what == "link":
        await c.enqueue(submit("child", after=["parent"]))
    else:
        (lease,) = await c.fetch(1, ["far"])
        assert await c.settle(completed(lease)) == ["applied"]
    await drain(broker, now=NOW)
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
