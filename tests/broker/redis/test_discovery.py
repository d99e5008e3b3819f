"""The server is found again after it moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import pytest
import redis

from fairlead.model.errors import Ambiguous, Refused, Unreachable
from tests.broker.redis.harness import (
    COUNT,
    KEY,
    Opener,
    blocked,
    ran,
)
from tests.support.servers import (
    Running,
    cluster,
    sentinels,
)


@pytest.mark.slow
async def test_a_failover_is_followed_by_way_of_the_sentinels(connect: Opener) -> None:
    with sentinels(3) as watched:
        broker = connect(watched.url, patience=15.0, connect_timeout=1.0)
        assert await broker.command("SET", "a", "1") == b"OK"
        waiting = asyncio.create_task(broker.block("BLPOP", "bell", seconds=30))
        await blocked(watched.primary)
        watched.sentinels[0].kill()
        watched.primary.kill()
        with pytest.raises(Ambiguous):
            await waiting

        assert await broker.command("SET", "b", "2") == b"OK"
        assert watched.replica.admin("GET", "b") == b"2"


async def test_a_service_that_no_sentinel_knows_is_unreachable(connect: Opener) -> None:
    async def nobody(call: Awaitable[Any]) -> str:
        with pytest.raises(Unreachable) as caught:
            await call
        return str(caught.value)

    said = await nobody(
        connect("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main").command("PING", patience=0)
    )
    assert "no sentinel could name the primary of 'main'" in said
    assert "127.0.0.1:2: could not connect" in said


@pytest.mark.slow
async def test_a_cluster_s_slot_is_found_and_followed(connect: Opener) -> None:
    with cluster(3) as nodes:
        broker = connect(f"redis+cluster://127.0.0.1:{nodes[2].port}", key=KEY)
        assert await broker.run(COUNT, KEY, []) == 1
        slot = nodes[0].admin("CLUSTER", "KEYSLOT", KEY)
        [old] = [node for node in nodes if ran_here(node)]
        new = nodes[(nodes.index(old) + 1) % 3]

        owner = new.admin("CLUSTER", "MYID")
        new.admin("CLUSTER", "SETSLOT", slot, "IMPORTING", old.admin("CLUSTER", "MYID"))
        old.admin("CLUSTER", "SETSLOT", slot, "MIGRATING", owner)
        with pytest.raises(Refused, match="being moved") as caught:
            await broker.run(COUNT, KEY, [], patience=1.0)  # never on half of a shard
        assert caught.value.cause == "moving"
        assert ran(old) == 1

        old.admin("MIGRATE", "127.0.0.1", new.port, f"{KEY}n", 0, 1000)
        for node in (new, old, *nodes):
            node.admin("CLUSTER", "SETSLOT", slot, "NODE", owner)

        assert await broker.run(COUNT, KEY, []) == 2
        assert ran_here(new)


def ran_here(node: Running) -> bool:
    with contextlib.suppress(redis.ResponseError):
        return ran(node) > 0
    return False
