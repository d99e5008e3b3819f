"""Two shards behind one broker. test_cluster runs most of this where they are on two nodes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.broker import connect
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import (
    QueueChange,
)
from fairlead.broker.sharded import ShardedBroker
from fairlead.broker.sharded.reads import in_transit
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import DependencyPolicy, State
from fairlead.model.message import Leased
from fairlead.model.options import Dependency
from fairlead.runtime import fault_injection
from tests.broker.redis.carrying import opened
from tests.support.deaths import Deaths, deaths
from tests.support.servers import Running, server
from tests.support.store import (
    NOW,
    Client,
    codes,
    complete_all,
    completed,
    dead,
    drain,
    events,
    ids,
    record,
    states,
    submit,
)

BOTH = ("default", "far")
END: dict[DependencyPolicy, State] = {
    "dead": State.DEAD,
    "cancel": State.CANCELLED,
    "wait": State.DEFERRED,
    "run": State.QUEUED,
}
POLICIES = pytest.mark.parametrize("policy", END)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Running]]:
    with server() as running:
        yield [running]


@pytest.fixture(scope="module")
def url(nodes: list[Running]) -> str:
    return nodes[0].url


@pytest.fixture(scope="module")
def names() -> tuple[str, str]:
    """The two shards; all queues live in the first but ``far``."""
    return "0", "other"


@pytest.fixture
async def broker(
    nodes: list[Running], url: str, names: tuple[str, str]
) -> AsyncIterator[ShardedBroker]:
    for node in nodes:
        node.admin("FLUSHALL")
    store = opened(url, *names)
    try:
        yield store
        await drain(store)
        assert await store.audit(now=NOW) == []
        assert not any((await in_transit(store)).values())
    finally:
        await store.close()


@pytest.fixture
def c(broker: ShardedBroker) -> Client:
    return Client(broker, "w1")


async def far_parent(c: Client) -> Leased:
    """A running task of the other shard."""
    (lease,) = await c.run(submit("parent", queue="far"), queues=["far"])
    return lease


async def released(broker: ShardedBroker, id: str = "child") -> int:
    """How often a task was let go."""
    return Counter(event.task for event in await events(broker, "queued"))[id]


# -- dependencies -----------------------------------------------------------------------------


async def test_a_result_is_pinned_in_its_own_shard_and_kept_by_retention_in_another(
    broker: ShardedBroker, c: Client
) -> None:
    lease = await far_parent(c)
    (near,) = await c.run(submit("near"))
    await c.enqueue(submit("child", after=["parent", "near"], uses=True, delay=9_000.0))
    await c.settle(completed(lease), completed(near))
    await drain(broker)
    later = NOW + 7_200.0
    while (await broker.tidy(now=later)).more:
        pass
    assert await states(broker, "near", "parent", now=later) == [State.COMPLETED, None]
    assert await complete_all(c, BOTH, now=NOW + 9_001.0) == 1


async def test_a_task_waits_for_one_of_another_shard(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    (receipt,) = await c.enqueue(submit("child", after=["parent"]))
    assert (receipt.code, receipt.state) == ("accepted", State.DEFERRED)
    await drain(broker)
    assert (await record(broker, "child")).waiting_for == ("parent",)
    assert (await record(broker, "parent")).dependents == 1
    assert await c.fetch(1) == []

    await c.settle(completed(lease))
    await drain(broker)
    assert ids(await c.fetch(1)) == ["child"]
    assert (await record(broker, "parent")).dependents == 0


async def test_nobody_has_to_call_deliver_while_all_goes_well(
    broker: ShardedBroker, c: Client
) -> None:
    lease = await far_parent(c)
    await c.enqueue(submit("child", after=["parent"]))
    waiting = asyncio.create_task(broker.wait(["default"], 5.0))
    await c.settle(completed(lease))
    assert await asyncio.wait_for(waiting, 4.0)
    assert ids(await c.fetch(1)) == ["child"]


async def test_a_chain_through_both_shards_is_one_batch(broker: ShardedBroker, c: Client) -> None:
    chain = [submit("t0", queue="far")]
    chain += [submit(f"t{i}", queue=BOTH[(i + 1) % 2], after=[f"t{i - 1}"]) for i in range(1, 7)]
    assert codes(await c.enqueue(*chain)) == ["accepted"] * 7
    ran = 0
    while count := await complete_all(c, BOTH):
        ran += count
        await drain(broker)
    assert ran == 7


@POLICIES
@pytest.mark.parametrize("when", ["before", "while", "after"])
async def test_the_policy_decides_wherever_the_parent_is(
    broker: ShardedBroker, c: Client, policy: DependencyPolicy, when: str
) -> None:
    """The parent dies before the child comes, while its link is on its way, or afterwards."""
    lease = await far_parent(c)
    child = submit("child", after=["parent"], policy=policy)
    if when == "before":
        await c.settle(dead(lease))
    await c.enqueue(child)
    if when == "after":
        await drain(broker)
    if when != "before":
        await c.settle(dead(lease))
    await drain(broker)

    found = await record(broker, "child")
    assert found.state is END[policy]
    assert found.waiting_for == (("parent",) if policy == "wait" else ())
    if policy == "dead":
        assert found.reason == "dependency_failed: parent"


@POLICIES
async def test_a_parent_that_completes_releases_whatever_the_policy(
    broker: ShardedBroker, c: Client, policy: DependencyPolicy
) -> None:
    lease = await far_parent(c)
    await c.enqueue(submit("child", after=["parent"], policy=policy), submit("later", delay=9))
    await c.settle(completed(lease))
    await c.enqueue(submit("second", after=["parent"], policy=policy, delay=9))
    await drain(broker)
    assert await states(broker, "child", "second") == [State.QUEUED, State.SCHEDULED]
    assert await released(broker) == 1


async def test_who_waits_for_a_dead_parent_runs_when_it_completes_after_all(
    broker: ShardedBroker, c: Client
) -> None:
    lease = await far_parent(c)
    await c.enqueue(submit("child", after=["parent"], policy="wait"))
    await c.settle(dead(lease))
    await drain(broker)
    await c.requeue("parent")
    assert await complete_all(c, ["far"]) == 1
    await drain(broker)
    assert await states(broker, "child") == [State.QUEUED]


async def test_who_waits_for_a_dead_parent_is_dead_once_it_is_forgotten(
    broker: ShardedBroker, c: Client
) -> None:
    lease = await far_parent(c)
    await c.enqueue(submit("child", after=["parent"], policy="wait"))
    await c.settle(dead(lease))
    await drain(broker)
    assert (await c.delete("parent")).code == "done"
    await drain(broker)
    assert (await record(broker, "child")).reason == "dependency_failed: parent"


async def test_unknown_dependencies_of_any_shard(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    ghost = Dependency("ghost", known=True)
    receipts = await c.enqueue(
        submit("bare", after=["parent", "ghost"]),
        submit("handle", after=[ghost]),
        submit("both", after=[ghost, "parent"]),
    )
    assert codes(receipts) == ["unknown_dependency", "accepted", "accepted"]
    assert receipts[0].detail == "ghost"
    await c.settle(completed(lease, keep=0))  # forgotten while the link is on its way, or later
    await drain(broker)
    assert await states(broker, "bare", "handle", "both") == [None, State.QUEUED, State.QUEUED]
    assert codes(await c.enqueue(submit("late", after=["parent"]))) == ["unknown_dependency"]


async def test_a_refused_item_of_the_same_batch_is_unknown(
    broker: ShardedBroker, c: Client
) -> None:
    await c.configure(QueueChange(queue="far", max_waiting=0))
    batch = [submit("p", queue="far"), submit("k", after=["p"]), submit("n")]
    assert codes(await c.enqueue(*batch)) == ["queue_full", "unknown_dependency", "accepted"]


@pytest.mark.parametrize("carried", [False, True])
async def test_a_child_that_is_cancelled_on_its_way_stays_cancelled(
    broker: ShardedBroker, c: Client, carried: bool
) -> None:
    lease = await far_parent(c)
    await c.enqueue(submit("child", after=["parent"]), submit("grandchild", after=["child"]))
    if carried:
        await drain(broker)
    await c.cancel("child")
    await drain(broker)
    assert (await record(broker, "parent")).dependents == 0
    await c.settle(completed(lease))
    await drain(broker)
    assert await states(broker, "child", "grandchild") == [State.CANCELLED, State.DEAD]
    assert await released(broker) == 0


async def test_one_failed_parent_is_enough(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    await c.enqueue(submit("near"), submit("good", queue="far"))
    await c.enqueue(submit("child", after=["near", "parent", "good"]))
    await drain(broker)
    assert len((await record(broker, "child")).waiting_for) == 3
    await c.settle(dead(lease))
    await drain(broker)
    assert await states(broker, "child") == [State.DEAD]
    for id in ("near", "good"):
        assert (await record(broker, id)).dependents == 0


async def test_a_fan_out_over_many_steps(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    await c.enqueue(*(submit(f"c{i}", after=["parent"]) for i in range(450)))
    assert any((await in_transit(broker)).values())
    await drain(broker)
    assert (await record(broker, "parent")).dependents == 450
    await c.settle(completed(lease))
    await drain(broker)
    assert await complete_all(c) == 450
    assert set(Counter(e.task for e in await events(broker, "queued")).values()) == {1}


async def test_entries_that_come_twice_change_nothing(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    near, far = names
    stores = broker.stores
    lease = await far_parent(c)
    link = b"1\x1fl\x1fchild\x1f1\x1fparent\x1f0"
    told = b"2\x1ft\x1fchild\x1f1\x1fparent\x1f0"
    gone = b"2\x1fl\x1fchild\x1f9\x1fparent\x1f0"  # another life of the id
    assert await stores[near].receive(far, [told], now=NOW) == 0  # nobody has heard of it
    await stores[near].enter(
        c.call(), [submit("child", after=["parent"])], {"parent": far}, now=NOW
    )
    for _ in range(3):
        assert await stores[far].receive(near, [link], now=NOW) == 0
    assert (await record(broker, "parent")).dependents == 1
    ((entry,),) = await stores[near].outbox([far], 10)
    assert entry.split(b"\x1f", 1)[1] == link.split(b"\x1f", 1)[1]
    assert await stores[near].confirm(far, [entry]) == 1
    assert await stores[near].confirm(far, [entry]) == 0

    await stores[far].exchange(c.call(), [completed(lease)], now=NOW)
    for _ in range(3):
        await stores[far].receive(near, [link, gone], now=NOW)  # answered once more each time
    counts = [await stores[near].receive(far, [told], now=NOW) for _ in range(3)]
    assert counts == [1, 0, 0]
    await drain(broker)
    assert await released(broker) == 1


async def test_the_audit_finds_an_edge_that_is_lost(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    near, far = names
    await far_parent(c)
    child = submit("child", after=["parent"])
    await broker.stores[near].enter(c.call(), [child], {"parent": far}, now=NOW)
    assert await broker.audit(now=NOW) == []  # it is on its way
    ((entry,),) = await broker.stores[near].outbox([far], 10)
    await broker.stores[near].confirm(far, [entry])
    (finding,) = await broker.audit(now=NOW)
    assert "child waits for parent" in finding
    await c.cancel("child")


# -- processes that die between two steps -------------------------------------------------------

CASES = [
    (what, site)
    for what in ("link", "told")
    for site in fault_injection.CARRYING
    if (what, site) != ("told", "stored")
]


@pytest.fixture(scope="module")
def dying() -> Iterator[Deaths]:
    with deaths("tests.broker.redis.carrying") as process:
        yield process


@pytest.mark.exhaustive
@pytest.mark.parametrize(("what", "site"), CASES)
async def test_whoever_comes_next_ends_what_a_killed_process_began(
    broker: ShardedBroker,
    c: Client,
    url: str,
    names: tuple[str, str],
    dying: Deaths,
    what: str,
    site: str,
) -> None:
    near, far = names
    await c.enqueue(submit("parent", queue="far"))
    if what == "told":
        await c.enqueue(submit("child", after=["parent"]))
        await drain(broker)
    status = await asyncio.to_thread(dying.at, site, 1, what=what, url=url, near=near, far=far)
    assert status == -signal.SIGKILL
    assert await broker.audit(now=NOW) == []

    await drain(broker)
    assert not any((await in_transit(broker)).values())
    if what == "link":
        assert await states(broker, "child") == [State.DEFERRED]
        assert (await record(broker, "parent")).dependents == 1
        assert await complete_all(c, ["far"]) == 1
        await drain(broker)
    assert await complete_all(c) == 1
    assert await released(broker) == 1
    assert await states(broker, "parent", "child") == [State.COMPLETED] * 2


# -- opening ----------------------------------------------------------------------------------


async def test_shards_are_opened_by_an_address(nodes: list[Running], url: str) -> None:
    store = connect(url, shards={"far": "other"})
    assert isinstance(store, ShardedBroker)
    assert (store.shard_of("far"), store.shard_of("any")) == ("other", "0")
    assert (await store.hello()).shard == "0"
    await store.close()


async def test_shards_are_said_by_a_url(nodes: list[Running], url: str) -> None:
    store = connect(f"{url}?shards=far=other,farther=third")
    assert isinstance(store, ShardedBroker)
    shards = [store.shard_of(name) for name in ("far", "farther", "any")]
    assert shards == ["other", "third", "0"]
    await store.close()


@pytest.mark.parametrize("name", ["", "a-b", "a.b", "x" * 33, "ä"])
def test_a_shard_has_a_short_name(name: str) -> None:
    with pytest.raises(InvalidOption, match="shard"):
        connect("redis://nowhere", shards={"far": name})
    with pytest.raises(InvalidOption):
        ShardedBroker({"0": RedisBroker("redis://nowhere")}, {"far": name})


def test_a_route_leads_to_a_shard_there_is() -> None:
    with pytest.raises(InvalidOption, match="one of 0"):
        ShardedBroker({"0": RedisBroker("redis://nowhere")}, {"far": "other"})
    with pytest.raises(InvalidOption, match="shards"):
        connect("memory://", shards={"far": "other"})


@pytest.mark.parametrize("text", ["nowhere:1:kill", "read:x:kill", "read:1:pause", "read"])
def test_a_fault_that_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=fault_injection.VARIABLE):
        fault_injection.parse(text)
