"""Queues and priorities on servers of their own: where tasks are, and that all else holds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead.broker import connect, topology
from fairlead.broker.records import Finding
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Alter, Call, Fetch, Firing, QueueChange, TenantChange
from fairlead.broker.routes import with_routes
from fairlead.broker.sharded import ShardedBroker
from fairlead.cli.doctor_routes import former_servers
from fairlead.model.errors import InvalidInput, Unreachable
from fairlead.model.lifecycle import State
from tests.support.servers import Running, shared
from tests.support.store import NOW, Client, completed, ids, submit

CRITICAL, HIGH, NORMAL, LOW = range(4)


@pytest.fixture
def main() -> Iterator[Running]:
    with shared() as running:
        yield running


@pytest.fixture
def bulk(main: Running) -> Iterator[Running]:
    with shared() as running:
        yield running


@contextlib.asynccontextmanager
async def opened(url: str, routes: dict[str, str]) -> AsyncIterator[ShardedBroker]:
    """As ``connect`` does it, with a test clock."""
    found = topology.topology_of(with_routes(url, routes))
    stores = {
        shard: RedisBroker(server.url, shard=shard, test_clock=True, patience=5.0)
        for shard, server in found.servers.items()
    }
    broker = ShardedBroker(
        stores,
        found.queues,
        default=found.default,
        levels=found.levels,
        drained=found.drained,
        addresses={shard: server.address for shard, server in found.servers.items()},
    )
    try:
        yield broker
        assert await broker.audit(now=NOW) == []
    finally:
        await broker.close()


@pytest.fixture
async def broker(main: Running, bulk: Running) -> AsyncIterator[ShardedBroker]:
    routes = {"queue:reports": f"{bulk.url}?shard=bulk", "priority:low": f"{bulk.url}?shard=bulk"}
    async with opened(main.url, routes) as store:
        yield store


async def connected_hello(url: str, routes: dict[str, str]) -> None:
    """Say hello as a worker does."""
    store = connect(url, routes=routes)
    await store.hello()
    await store.close()


async def former(url: str) -> list[Finding]:
    store = connect(url)
    try:
        return await former_servers(store, url)
    finally:
        await store.close()


def stored(running: Running) -> bytes:
    """All keys of a server."""
    return b" ".join(running.admin("KEYS", "*"))


async def test_tasks_are_where_their_queue_or_their_priority_belongs(
    broker: ShardedBroker, main: Running, bulk: Running
) -> None:
    c = Client(broker)
    await c.enqueue(submit("n"), submit("l", level=LOW), submit("r", queue="reports"))
    await c.enqueue(submit("rl", queue="reports", level=LOW))
    assert b"fl1:{0}:" in stored(main)
    assert b"bulk" not in stored(main)
    assert b"{0}" not in stored(bulk)
    places = {shard: await store.where(["n", "l", "r", "rl"]) for shard, store in
              broker.stores.items()}  # fmt: skip
    found = {shard: [state is not None for state, *_ in each] for shard, each in places.items()}
    assert found == {
        "0": [True, False, False, False],
        "bulk": [False, False, True, False],
        "bulk_levels": [False, True, False, True],
    }
    snapshot = await broker.snapshot(now=NOW)
    counts = {name: each.ready for name, each in snapshot.queues.items()}
    assert counts == {"default": 2, "reports": 2}
    page, listed = await broker.page(now=NOW), []
    while True:
        listed += [task.message.id for task in page.tasks]
        if page.cursor is None:
            break
        page = await broker.page(cursor=page.cursor, now=NOW)
    assert sorted(listed) == ["l", "n", "r", "rl"]
    events = (await broker.events()).events
    assert sorted(event.task for event in events) == ["l", "n", "r", "rl"]


async def test_higher_levels_are_lent_first_and_each_eighth_fetch_begins_with_the_low_ones(
    broker: ShardedBroker,
) -> None:
    c = Client(broker)
    await c.enqueue(*(submit(f"l{n}", level=LOW) for n in range(30)))
    await c.enqueue(*(submit(f"h{n}", level=HIGH) for n in range(20)))
    got = [ids(await c.fetch(1))[0][0] for _ in range(24)]
    assert got == [*"hhhhhhhl" * 2, *"hhhhhhll"]  # 20 high ones are gone; then low ones all along
    assert [ids(await c.fetch(1))[0][0] for _ in range(4)] == ["l"] * 4
    await c.enqueue(submit("h", level=HIGH))
    assert ids(await c.fetch(3))[0] == "h"


async def test_a_repeated_exchange_is_the_same_in_whatever_turn(broker: ShardedBroker) -> None:
    c = Client(broker)
    await c.enqueue(submit("l", level=LOW), submit("h", level=HIGH))
    broker.turn = 7
    call, fetch = Call("w1", 50), Fetch(queues=("default",), max=1)
    reply = await broker.exchange(call, fetch=fetch, now=NOW)
    assert ids(reply.leased) == ["l"]
    assert await broker.exchange(call, fetch=fetch, now=NOW) == reply


async def test_pause_limits_purge_and_deletion_are_for_both_servers(
    broker: ShardedBroker,
) -> None:
    c = Client(broker)
    await c.enqueue(*(submit(f"{level}", level=level) for level in range(4)))
    await c.configure(QueueChange(queue="default", paused=True))
    assert await c.fetch(4) == []
    assert (await broker.snapshot(now=NOW)).queues["default"].paused
    await c.configure(QueueChange(queue="default", paused=False))
    await c.configure(TenantChange(queue="default", tenant="a", concurrency=1))
    leases = await c.fetch(4)
    assert ids(leases) == ["0", "3"]  # one on each server: limits count where they are kept
    await c.settle(*map(completed, leases))
    [refused] = [await broker.delete_queue(c.call(), "default", now=NOW)]
    assert refused.waiting == 2
    assert (await broker.settings("default", now=NOW)).queues != []  # all of it is still there
    await c.enqueue(submit("4", level=LOW))
    assert (await c.purge()).count == 3
    deleted = await broker.delete_queue(c.call(), "default", now=NOW)
    assert (deleted.refused, deleted.count) == (False, 5)
    assert (await broker.snapshot(now=NOW)).queues == {}


async def test_dependencies_cross_servers_in_both_directions(broker: ShardedBroker) -> None:
    c = Client(broker)
    await c.enqueue(
        submit("a"),
        submit("b", level=LOW, after=["a"]),
        submit("c", queue="reports", after=["b"]),
    )
    queues = ("default", "reports")
    for id in "abc":
        for _ in range(4):
            await broker.deliver(now=NOW)
        leases = await c.fetch(5, queues)
        assert ids(leases) == [id]
        await c.settle(completed(leases[0]))
    assert [each.state for each in await broker.find([*"abc"], now=NOW) if each] == [
        State.COMPLETED
    ] * 3


async def test_a_task_does_not_change_servers(broker: ShardedBroker) -> None:
    c = Client(broker)
    await c.enqueue(submit("n"), submit("l", level=LOW))

    def order(id: str, level: int) -> Alter:
        return Alter(id=id, action="prioritize", level=level)

    for id, level, words in (("l", HIGH, "with their queue"), ("n", LOW, "on unix:///")):
        with pytest.raises(InvalidInput, match=f"task {id} is on unix:///.*priority .*{words}"):
            await c.alter(order(id, level))
    answers = await c.alter(order("n", HIGH), order("l", LOW), order("nobody", HIGH))
    assert [answer.code for answer in answers] == ["done", "unchanged", "unknown"]


async def test_tasks_of_a_former_route_are_told_of_and_served_from_a_drained_server(
    main: Running, bulk: Running
) -> None:
    there = f"{bulk.url}?shard=bulk"
    async with opened(main.url, {"queue:reports": there, "priority:low": there}) as before:
        c = Client(before)
        await c.enqueue(submit("r", queue="reports"), submit("l", level=LOW), submit("n"))
    queues = ("default", "reports")
    async with opened(main.url, {"queue:default": there}) as other:
        found = [each for each in await other.diagnose() if each.name == "routes"]
        texts = sorted(f"{each.status} {each.text} | {each.hint}" for each in found)
        assert len(texts) == 2
        assert texts[0].startswith("warn queue default has 1 task on unix:///")
        assert f'"drain:0" = "{other.addresses["0"]}"' in texts[0]
        assert "queue reports has 1 task on unix:///" in texts[1]
        assert await Client(other, "w2").fetch(3, queues) == []
    await connected_hello(main.url, {"queue:reports": there, "priority:low": there})
    left = await former(main.url)
    texts = [f"{each.text} | {each.hint}" for each in left]
    assert ["bulk on unix:///" in texts[0], "bulk_levels on unix:///" in texts[1]] == [True] * 2
    assert all("has 1 task that no worker looks for" in text for text in texts)
    assert f'"drain:bulk" = "unix://{bulk.path}?shard=bulk"' in texts[1]
    assert await former(with_routes(main.url, {"drain:old": there})) == []
    async with opened(main.url, {"drain:old": there}) as after:
        assert [each for each in await after.diagnose() if each.name == "routes"] == []
        c = Client(after, "w3")
        await c.enqueue(submit("new", level=LOW))
        leases = await c.fetch(5, queues)
        assert sorted(ids(leases)) == ["l", "n", "new", "r"]
        assert set(await c.settle(*map(completed, leases))) == {"applied"}


async def test_what_a_schedule_fires_and_a_flow_stay_with_their_queue(
    broker: ShardedBroker,
) -> None:
    c = Client(broker)
    revision = await c.planned("s")
    firing = Firing(
        submission=submit("s-1", level=LOW), schedule="s", slot=NOW, revision=revision, next_at=None
    )
    (receipt,) = await c.fire(firing)
    assert receipt.code == "accepted"
    assert (await broker.stores["0"].where(["s-1"]))[0][0] is State.QUEUED
    assert ids(await c.fetch(1)) == ["s-1"]


async def test_a_fence_of_this_server_is_seen_while_the_other_one_is_away(
    broker: ShardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Client(broker)
    await c.enqueue(submit("parent"))
    (lease,) = await c.fetch(1)

    async def away(*_: Any, **__: Any) -> Any:
        raise Unreachable("x")

    for shard in ("bulk", "bulk_levels"):
        monkeypatch.setattr(broker.stores[shard], "where", away)
    child = submit("child", fence=c.ref(lease), after=["parent"])
    assert [each.code for each in await c.enqueue(child)] == ["accepted"]
    orphan = submit("orphan", after=["nobody"])
    with pytest.raises(Unreachable):  # it may be there
        await c.enqueue(orphan)


async def test_mail_of_one_server_comes_while_the_other_one_is_silent(
    broker: ShardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Client(broker)
    await c.enqueue(submit("n"))
    assert [each.state for each in await broker.watch("me", ["n"], now=NOW)] == [State.QUEUED]

    async def silent(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    for shard, verb in itertools.product(("bulk", "bulk_levels"), ("collect", "wait", "promote")):
        monkeypatch.setattr(broker.stores[shard], verb, silent)
        broker.away.failed(shard, Unreachable("x"))  # as the first call has found out
    (lease,) = await c.fetch(1)
    began = time.monotonic()
    assert not await broker.wait(["default"], 0.1)
    assert await broker.collect("me", 0, 0.0) == []
    await c.settle(completed(lease))
    assert [mail.id for mail in await broker.collect("me", 0, 1.0)] == ["n"]
    assert time.monotonic() - began < 5.0  # the silent ones would have ten
