"""Live events over several shards, one of which goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from fairlead import Fairlead
from fairlead.broker.redis import RedisBroker
from fairlead.broker.sharded import ShardedBroker
from tests.api.live.site import Site, opened, received
from tests.support.servers import Running, server

pytestmark = pytest.mark.slow


@pytest.fixture
async def far() -> AsyncIterator[Running]:
    with server() as running:
        yield running


@pytest.fixture
async def site(far: Running) -> AsyncIterator[Site]:
    with server() as near:
        stores = {
            "0": RedisBroker(near.url, shard="0", patience=5.0),
            "f": RedisBroker(far.url, shard="f", patience=5.0),
        }
        store = ShardedBroker(stores, {"mail": "f"})
        async with opened(Fairlead(store=store)) as site:
            yield site


async def test_streams_go_on_without_a_shard_and_miss_nothing_of_it(
    site: Site, far: Running
) -> None:
    token = await site.token()
    async with site.subscribed(types=["submitted"]) as client:
        first = await site.fail.aenqueue()  # lives in the far shard
        event = await received(client)
        assert event["data"]["task_id"] == first.id
        far.pause()
        for _ in range(3):
            near = await site.add.aenqueue(1, 2)
            event = await received(client)
            assert event["data"]["task_id"] == near.id
            assert event["data"].get("type", "add") == "add"  # left out if it is not read in time

        async with site.socket(token) as late:  # one that comes now
            await late.send(
                json.dumps({"type": "subscribe", "types": ["submitted"], "after": event["id"]})
            )
            await received(late)
            await received(late)
            assert (await received(late))["data"] == {"available": False}
            near = await site.add.aenqueue(3, 4)
            for each in (late, client):
                assert (await received(each))["data"]["task_id"] == near.id

        far.resume()
        async with asyncio.timeout(20):
            last = await site.fail.aenqueue()
            event = await received(client)
        assert event["data"]["task_id"] == last.id

    async with site.subscribed(types=["submitted"], after=event["id"]) as client:
        handle = await site.add.aenqueue(5, 6)
        assert (await received(client))["data"]["task_id"] == handle.id
