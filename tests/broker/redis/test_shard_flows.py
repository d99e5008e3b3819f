"""Flows over two shards: each lies in one, and may depend on tasks of the other."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.broker.flows import FlowOrder, Staged
from fairlead.broker.requests import Call
from fairlead.broker.sharded import ShardedBroker
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.model.options import Dependency
from tests.broker.redis import test_shards as shards
from tests.broker.redis.test_shards import BOTH, far_parent
from tests.support.flows import alter_flow, commit, flow_record, make, ordered, parts_of, stage
from tests.support.store import (
    NOW,
    Client,
    complete_all,
    completed,
    dead,
    drain,
    ids,
    record,
    states,
    submit,
)

# The fixtures are the same.
nodes, url, names = shards.nodes, shards.url, shards.names
broker, c = shards.broker, shards.c


@pytest.mark.parametrize("queue", BOTH)
async def test_a_flow_lies_in_the_shard_of_its_queues(
    broker: ShardedBroker, c: Client, names: tuple[str, str], queue: str
) -> None:
    members = [submit(f"t{i}", queue=queue) for i in range(60)]
    await make(c, "f", *members, submit("z", queue=queue, after=["t0"]), size=25)
    has = [(await broker.stores[name].flows(["f"], now=NOW))[0] is not None for name in names]
    assert has == [queue == "default", queue == "far"]
    assert (await flow_record(broker, "f")).laid_out == 61
    assert (await broker.members("f", start=58, now=NOW)) == ["t58", "t59", "z"]
    assert await broker.members("none", now=NOW) == []
    assert await broker.flows(["none"], now=NOW) == [None]
    (watched,) = await broker.watch("client", ["f"], now=NOW)
    assert watched.state is State.RUNNING
    assert await complete_all(c, [queue]) == 61
    (letter,) = await broker.collect("client", 0, 1.0)
    assert (letter.id, letter.state) == ("f", State.COMPLETED)


async def test_queues_of_two_shards_are_refused_by_name(broker: ShardedBroker, c: Client) -> None:
    (part,) = parts_of("f", submit("a"), submit("b", queue="far"))
    with pytest.raises(InvalidInput, match=r"queue default in shard .* queue far in shard"):
        await broker.stage(c.call(), part, now=NOW)
    assert (await commit(c, "f")).code == "unknown"


async def test_members_wait_for_tasks_of_the_other_shard(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    members = [submit("a", after=["parent"]), submit("b", after=["a"]), submit("x")]
    await make(c, "f", *members, *(submit(f"t{i}", queue="more") for i in range(60)))
    assert (await record(broker, "a")).waiting_for == ("parent",)
    assert (await record(broker, "parent")).dependents == 1
    assert ids(await c.fetch(5)) == ["x"]
    await c.settle(completed(lease))
    await drain(broker)
    assert await states(broker, "a", "b") == [State.QUEUED, State.DEFERRED]


async def test_what_failed_for_a_task_of_the_other_shard_is_retried(
    broker: ShardedBroker, c: Client
) -> None:
    lease = await far_parent(c)
    await make(c, "f", submit("a", after=["parent"]), submit("b", after=["a"]))
    await c.settle(dead(lease))
    await drain(broker)
    assert await states(broker, "a", "b") == [State.DEAD, State.DEAD]
    assert (await c.requeue("parent")).code == "done"
    assert (await ordered(c, "f", "retry"))[0] == 2
    await drain(broker)
    assert (await record(broker, "a")).waiting_for == ("parent",)
    assert await complete_all(c, ["far"]) == 1
    await drain(broker)
    assert await complete_all(c) == 2
    assert (await flow_record(broker, "f")).state is State.COMPLETED


async def test_unknown_dependencies_of_any_shard(broker: ShardedBroker, c: Client) -> None:
    (part,) = parts_of("f", submit("a", after=["ghost"]))
    assert await broker.stage(c.call(), part, now=NOW) == Staged(
        code="unknown_dependency", detail="ghost"
    )
    await make(c, "f", submit("a", after=[Dependency("ghost", known=True)]))
    assert await states(broker, "a") == [State.QUEUED]


async def test_orders_find_the_shard_of_a_flow(broker: ShardedBroker, c: Client) -> None:
    await make(c, "f", *(submit(f"t{i}", queue="far") for i in range(70)))
    assert await ordered(c, "f", "cancel") == (50, True)
    order = FlowOrder(flow="f", action="cancel")
    again = await broker.alter_flow(Call("w1", c.number), order, now=NOW)
    assert again is not None
    assert again.count == 50
    await drain(broker)
    assert (await flow_record(broker, "f")).cancelled == 70
    assert await alter_flow(c, "none", "cancel") is None


async def test_a_repeated_call_gets_the_same_answer(broker: ShardedBroker, c: Client) -> None:
    (part,) = parts_of("f", submit("a", queue="far"))
    assert await stage(c, part) == ["staged"]
    assert (await broker.stage(Call("w1", c.number), part, now=NOW)).code == "staged"
    assert (await commit(c, "f")).code == "committed"
    assert (await broker.commit(Call("w1", c.number), "f", now=NOW)).code == "committed"
    assert await broker.members("f", now=NOW) == ["a"]


async def test_other_shards_are_asked_only_for_what_is_no_member(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    for name in names:
        store = broker.stores[name]

        def where(ids: list[str], *, _name: str = name, _of: Any = store.where, **more: Any) -> Any:
            asked.extend((_name, id) for id in ids)
            return _of(ids, **more)

        def committed(*args: Any, _name: str = name, _of: Any = store.commit, **more: Any) -> Any:
            asked.append((_name, "commit"))
            return _of(*args, **more)

        monkeypatch.setattr(store, "where", where)
        monkeypatch.setattr(store, "commit", committed)
    await far_parent(c)
    asked.clear()
    members = [submit("a", after=["parent"]), submit("b", after=["a"]), submit("z", after=["a"])]
    await make(c, "f", *members, size=1)
    assert asked == [(names[1], "parent"), (names[0], "commit")]


async def test_one_that_waits_for_many_of_the_other_shard_leaves_them_in_steps(
    broker: ShardedBroker, c: Client
) -> None:
    parents = [f"p{i:02}" for i in range(120)]
    await c.enqueue(*(submit(id, queue="far") for id in parents))
    await c.enqueue(submit("child", after=parents))
    await drain(broker)
    assert {(await record(broker, id)).dependents for id in parents} == {1}
    await c.cancel("child")
    await drain(broker)
    assert {(await record(broker, id)).dependents for id in parents} == {0}
