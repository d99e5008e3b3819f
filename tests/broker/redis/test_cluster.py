"""Shards on two nodes of a real cluster, and what a cluster does to one shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.crc import key_slot

from fairlead.broker import connect
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call
from fairlead.broker.sharded import ShardedBroker
from fairlead.model.errors import Refused
from fairlead.model.lifecycle import State
from tests.broker.redis import test_shards as shards
from tests.broker.redis.test_shard_schedules import (  # noqa: F401 - they run here as well
    test_a_schedule_follows_when_its_queue_gets_another_route,
    test_a_schedule_that_moves_fires_no_slot_again,
)
from tests.broker.redis.test_shard_verbs import (  # noqa: F401 - they run here as well
    test_a_broker_that_lent_nothing_finds_the_shard_of_a_lease,
    test_a_fence_may_be_a_lease_of_another_shard,
    test_a_lost_worker_is_swept_in_all_shards,
    test_a_repeated_number_gets_the_same_answers,
    test_events_of_all_shards_are_read_in_pages,
    test_fetch_goes_from_shard_to_shard_until_it_has_enough,
    test_limits_hold_in_each_shard,
    test_mail_of_all_shards_is_numbered_in_one_line,
    test_pages_and_workers_are_those_of_all_shards,
    test_tasks_live_in_the_shard_of_their_queue,
    test_waiting_ends_with_the_first_shard_that_has_work,
)
from tests.broker.redis.test_shards import (  # noqa: F401 - they run here as well
    test_a_chain_through_both_shards_is_one_batch,
    test_a_child_that_is_cancelled_on_its_way_stays_cancelled,
    test_a_fan_out_over_many_steps,
    test_a_parent_that_completes_releases_whatever_the_policy,
    test_a_task_waits_for_one_of_another_shard,
    test_entries_that_come_twice_change_nothing,
    test_nobody_has_to_call_deliver_while_all_goes_well,
    test_one_failed_parent_is_enough,
    test_the_audit_finds_an_edge_that_is_lost,
    test_the_policy_decides_wherever_the_parent_is,
    test_unknown_dependencies_of_any_shard,
    test_who_waits_for_a_dead_parent_is_dead_once_it_is_forgotten,
    test_who_waits_for_a_dead_parent_runs_when_it_completes_after_all,
    test_whoever_comes_next_ends_what_a_killed_process_began,
)
from tests.support.servers import SLOTS, Running, cluster
from tests.support.store import NOW, Client, complete_all, completed, drain, states, submit

pytestmark = pytest.mark.slow

NODES = 3

broker, c, dying = shards.broker, shards.c, shards.dying


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Running]]:
    with cluster(NODES) as members:
        yield members


@pytest.fixture(scope="module")
def url(nodes: list[Running]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def home(shard: str) -> int:
    """Which node has a shard: the slots are spread evenly, in the order of the nodes."""
    return key_slot(f"fl1:{{{shard}}}:meta".encode()) * NODES // SLOTS


@pytest.fixture(scope="module")
def names(nodes: list[Running]) -> tuple[str, str]:
    """Two shards on two nodes."""
    first, second = "0", next(name for name in "abcdefgh" if home(name) != home("0"))
    for name in (first, second):
        slot = nodes[0].admin("CLUSTER", "KEYSLOT", f"fl1:{{{name}}}:meta")
        assert slot * NODES // SLOTS == home(name)
    return first, second


async def test_the_two_shards_are_on_two_nodes(
    broker: ShardedBroker,
    nodes: list[Running],
    names: tuple[str, str],
) -> None:
    await Client(broker).enqueue(submit("n"), submit("f", queue="far"))
    assert home(names[0]) != home(names[1])
    kept = [node.admin("KEYS", "*") for node in nodes]
    for index, keys in enumerate(kept):
        here = [name for name in names if home(name) == index]
        assert bool(keys) is bool(here)
        assert all(any(key.startswith(b"fl1:{%b}:" % n.encode()) for n in here) for key in keys)


async def test_shards_of_a_cluster_are_opened_by_its_address(
    nodes: list[Running], url: str, names: tuple[str, str]
) -> None:
    for node in nodes:
        node.admin("FLUSHALL")
    store = connect(url, shards={"far": names[1]})
    try:
        await store.hello()
        batch = [submit("p", queue="far"), submit("k", after=["p"])]
        receipts = await store.enqueue(Client(store).call(), batch)
        assert [receipt.state for receipt in receipts] == [State.QUEUED, State.DEFERRED]
    finally:
        await store.close()


# -- one shard ------------------------------------------------------------------------------------


@pytest.fixture
async def one(nodes: list[Running], url: str) -> AsyncIterator[RedisBroker]:
    for node in nodes:
        node.admin("FLUSHALL")
    store = RedisBroker(url, test_clock=True)
    try:
        yield store
        assert await store.audit(now=NOW) == []
    finally:
        await store.close()


async def test_one_shard_works_from_whichever_node_is_asked_first(
    one: RedisBroker, nodes: list[Running]
) -> None:
    for node in nodes:
        store = RedisBroker(f"redis+cluster://127.0.0.1:{node.port}", test_clock=True)
        worker = Client(store, f"w{node.port}")
        (lease,) = await worker.run(submit(f"t{node.port}"))
        assert await worker.settle(completed(lease)) == ["applied"]
        await store.close()
    assert (await one.snapshot(now=NOW)).completed == NODES


async def test_every_verb_that_touches_many_keys_stays_in_its_slot(one: RedisBroker) -> None:
    worker = Client(one)
    await worker.enqueue(
        *(submit(f"p{i}", f"tenant{i % 5}", limiters=("api",)) for i in range(20)),
        *(submit(f"c{i}", after=[f"p{i}"], delay=5) for i in range(20)),
    )
    assert await complete_all(worker) == 20
    await drain(one)
    assert (await one.promote(now=NOW + 5)).count == 20
    assert await complete_all(worker, now=NOW + 5) == 20
    assert (await worker.purge(now=NOW + 5)).count == 0
    assert (await one.tidy(now=NOW + 9_999)).count > 40  # and incarnations that are idle by then
    assert await states(one, "p0", "c0", now=NOW + 9_999) == [None, None]


async def test_a_shard_moves_to_another_node_while_it_is_used(
    one: RedisBroker, nodes: list[Running]
) -> None:
    """The slot is moved as operators do it."""
    worker = Client(one)
    await worker.enqueue(*(submit(f"t{i}") for i in range(10)))
    slot = key_slot(b"fl1:{0}:meta")
    source, target = nodes[home("0")], nodes[(home("0") + 1) % NODES]
    ids = {node.port: node.admin("CLUSTER", "MYID").decode() for node in nodes}
    target.admin("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
    source.admin("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
    try:
        keys = source.admin("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        source.admin("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, nodes[(home("0") + 2) % NODES]):
            node.admin("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])
        assert await complete_all(worker) == 10
    finally:
        target.admin("FLUSHALL")
        for node in nodes:
            node.admin("CLUSTER", "SETSLOT", slot, "NODE", ids[source.port])
        await one.hello()


async def test_calls_wait_for_their_time_while_a_slot_is_moved_and_then_say_so(
    one: RedisBroker, nodes: list[Running]
) -> None:
    """ASK is not followed: from the first moment of the move until its end nothing is served."""
    loop = asyncio.get_running_loop()
    slot = key_slot(b"fl1:{0}:meta")
    source, target = nodes[home("0")], nodes[(home("0") + 1) % NODES]
    ids = {node.port: node.admin("CLUSTER", "MYID").decode() for node in nodes}
    worker = Client(one)
    await worker.enqueue(submit("before"))
    target.admin("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
    source.admin("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
    try:
        began = loop.time()
        with pytest.raises(Refused) as refused:
            await one.enqueue(Call("other", 1, began + 3.0), [submit("during")], now=NOW)
        assert (refused.value.cause, refused.value.passes) == ("moving", True)
        assert loop.time() - began > 1.0  # it gives up when the next pause would be too long
        waiting = asyncio.ensure_future(worker.enqueue(submit("later")))
        await asyncio.sleep(0.5)
        assert not waiting.done()
    finally:
        for node in (source, target):
            node.admin("CLUSTER", "SETSLOT", slot, "STABLE")

    await waiting
    assert await states(one, "during", now=NOW) == [None]  # refused: nothing changed
    assert await complete_all(worker) == 2
