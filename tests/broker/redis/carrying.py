"""A process that is killed on its way, see ``tests.support.deaths``.

Two shards, of which the queue ``far`` is in the second. ``link`` stores a child whose parent is in
the other shard; ``told`` completes that parent. Both carry what is in the outboxes then.
"""

from __future__ import annotations

from typing import Any

from fairlead.broker.redis import RedisBroker
from fairlead.broker.sharded import ShardedBroker
from tests.support.deaths import serve
from tests.support.store import NOW, Client, completed, drain, submit


def opened(url: str, near: str, far: str, *, test_clock: bool = True) -> ShardedBroker:
    """Two shards; all queues are in the first but ``far``."""
    stores = {
        name: RedisBroker(url, shard=name, test_clock=test_clock, patience=5.0)
        for name in (near, far)
    }
    return ShardedBroker(stores, {"far": far}, default=near)


async def _carry(order: dict[str, Any]) -> None:
    broker = opened(order["url"], order["near"], order["far"])
    c = Client(broker, f"carrying-{order['what']}")
    if order["what"] == "link":
        await c.enqueue(submit("child", after=["parent"]))
    else:
        (lease,) = await c.fetch(1, ["far"])
        assert await c.settle(completed(lease)) == ["applied"]
    await drain(broker, now=NOW)
    await broker.close()


if __name__ == "__main__":
    serve(_carry)
