"""Dependents that are gone behind the broker's back are counted, and hold nobody up.

Tasks that wait for one that is gone are let go by a repair.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import MAX_STEP
from fairlead.model.lifecycle import DependencyPolicy, State
from tests.broker.redis.sample import Spoiler
from tests.support.servers import server, shared
from tests.support.store import NOW, Client, completed, ids, states, submit


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


Damaged = tuple[RedisBroker, Client, Spoiler]


@pytest.fixture
async def shard() -> AsyncIterator[Damaged]:
    with shared() as running, redis.Redis(unix_socket_path=running.path) as client:
        broker = RedisBroker(running.url, test_clock=True)
        yield broker, Client(broker), Spoiler(client)
        await broker.close()


def lose(spoil: Spoiler, id: str) -> None:
    """Delete all that is known of a task itself."""
    for key in ("tasks", "records"):
        spoil.do("HDEL", key, id)


async def test_tasks_that_wait_for_a_lost_one_end_or_go_on_as_they_wanted(shard: Damaged) -> None:
    broker, c, spoil = shard
    policies: tuple[DependencyPolicy, ...] = ("dead", "cancel", "wait", "run")
    await c.enqueue(submit("lost"), submit("there"))
    await c.enqueue(*(submit(f"c-{each}", after=["lost"], policy=each) for each in policies))
    await c.enqueue(submit("both", after=["lost", "there"], policy="run"))
    await c.enqueue(submit("grandchild", after=["c-dead"]))
    lose(spoil, "lost")
    assert any("which no longer exists" in each for each in await broker.audit(now=NOW))

    shown = {each.kind: each for each in await broker.repair(now=NOW)}
    assert (shown["edge"].done, shown["edge"].left) == (0, 5)
    mended = {each.kind: each for each in await broker.repair(apply=True, now=NOW)}
    assert (mended["edge"].done, mended["edge"].left) == (5, 0)
    assert await broker.audit(now=NOW) == []
    assert await broker.repair(now=NOW) == []

    found = await broker.find([f"c-{each}" for each in policies], now=NOW)
    told = [(record.state, record.reason) for record in found if record is not None]
    why = "dependency_failed: lost"
    ends = [(State.DEAD, why), (State.CANCELLED, why), (State.DEAD, why), (State.QUEUED, "")]
    assert told == ends
    while (await broker.deliver(now=NOW)).more:
        pass
    assert await states(broker, "both", "grandchild", now=NOW) == [State.DEFERRED, State.DEAD]
    leases = await c.fetch(9)
    assert set(ids(leases)) == {"there", "c-run"}
    await c.settle(*(completed(lease) for lease in leases))
    assert ids(await c.fetch(9)) == ["both"]


async def test_many_that_wait_for_a_lost_one_and_for_many_are_let_go(shard: Damaged) -> None:
    broker, c, spoil = shard
    parents = [f"p{n}" for n in range(20)]  # more than stand in one text, on either side
    await c.enqueue(*(submit(id) for id in parents))
    await c.enqueue(*(submit(f"c{n}", after=parents, policy="run") for n in range(20)))
    for id in parents:
        lose(spoil, id)
    mended = {each.kind: each for each in await broker.repair(apply=True, now=NOW)}
    assert (mended["edge"].done, mended["edge"].left) == (400, 0)
    assert await broker.audit(now=NOW) == []
    assert len(await c.fetch(50)) == 20


async def test_a_task_that_is_about_to_hear_of_an_end_is_not_told_of_a_loss(shard: Damaged) -> None:
    """A parent that completed and was forgotten has let its dependents go, not ended them."""
    broker, c, spoil = shard
    (parent,) = await c.run(submit("parent"))
    names = [f"t{n}" for n in range(3 * MAX_STEP)]
    await c.enqueue(*(submit(id, after=["parent"]) for id in names))
    await c.settle(completed(parent, keep=1.0))
    _, life, _ = spoil.after("parent").split(":")
    lose(spoil, "parent")
    found = zip(names, await states(broker, *names, now=NOW), strict=True)
    waits = [id for id, state in found if state is State.DEFERRED]  # a call lets only so many go
    edge = (waits[-1], "parent", life)
    assert await broker.own("repair", NOW, "look", "edge", *edge) == b"1 0 0"
    await broker.repair(apply=True, now=NOW)
    while (await broker.deliver(now=NOW)).more:
        pass
    assert set(await states(broker, *names, now=NOW)) == {State.QUEUED}
