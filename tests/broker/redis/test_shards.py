"""Two shards behind one broker. test_cluster runs most of this where they are on two nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.broker import connect
from fairlead.broker.redis import RedisBroker
from fairlead.broker.sharded import ShardedBroker
from fairlead.broker.verbs import (
    Call,
    LeaseRef,
    LimiterChange,
    QueueChange,
    TenantChange,
    WorkerRecord,
    Write,
)
from fairlead.model.errors import Ambiguous, InvalidInput, InvalidOption, OutOfOrder, Unreachable
from fairlead.model.lifecycle import DependencyPolicy, State
from fairlead.model.message import Leased
from fairlead.model.options import Dependency
from fairlead.runtime import faults
from tests.broker.redis.carrying import opened
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
        assert await store.edges_in_transit() == 0
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


# -- routing ----------------------------------------------------------------------------------


async def test_tasks_live_in_the_shard_of_their_queue(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    receipts = await c.enqueue(submit("a"), submit("b", queue="far"), submit("c"))
    assert [(receipt.id, receipt.code) for receipt in receipts] == [
        ("a", "accepted"),
        ("b", "accepted"),
        ("c", "accepted"),
    ]
    near, far = (broker._stores[name] for name in names)
    assert [found is not None for found in await near.find(["a", "b", "c"])] == [True, False, True]
    assert [found is not None for found in await far.find(["a", "b", "c"])] == [False, True, False]

    assert await states(broker, "a", "b", "c", "d") == [State.QUEUED] * 3 + [None]
    snapshot = await broker.snapshot(now=NOW)
    assert (snapshot.depth, snapshot.ready) == (3, 3)
    assert {name: counts.depth for name, counts in snapshot.queues.items()} == {
        "default": 2,
        "far": 1,
    }


async def test_fetch_goes_from_shard_to_shard_until_it_has_enough(
    broker: ShardedBroker, c: Client
) -> None:
    await c.enqueue(*(submit(f"n{i}") for i in range(3)))
    await c.enqueue(*(submit(f"f{i}", queue="far") for i in range(3)))

    assert ids(await c.fetch(2, ["far", "default"])) == ["f0", "f1"]
    leases = await c.fetch(3, ["far", "default"])
    assert ids(leases) == ["f2", "n0", "n1"]
    assert await c.settle(*map(completed, leases)) == ["applied"] * 3
    assert ids(await c.fetch(9, BOTH)) == ["n2"]


async def test_only_the_first_of_all_shards_count_as_started(
    broker: ShardedBroker, c: Client
) -> None:
    await c.enqueue(*(submit(f"n{i}") for i in range(2)), submit("f", queue="far"))
    leases = await c.fetch(3, BOTH, start=1)
    began = [(await record(broker, lease.message.id)).started_at for lease in leases]
    assert began == [NOW, None, None]

    reply = await c.exchange(started=[c.ref(lease) for lease in leases[1:]])
    assert reply.started == ["applied"] * 2
    assert (await record(broker, "f")).started_at == NOW


async def test_a_broker_that_lent_nothing_finds_the_shard_of_a_lease(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str]
) -> None:
    leases = await c.run(submit("n"), submit("f", queue="far"), queues=BOTH)
    other = opened(url, *names)
    again = Client(other, "w1")
    again.number = 100
    write = Write(lease=c.ref(leases[1]), kind="xcom", key="k", value=b"v")
    assert await again.write(write) == ["applied"]
    assert await other.pull("a", ["k", "none"], now=NOW) == [b"v", None]
    beat = await other.beat("w1", [*map(c.ref, leases), LeaseRef("x", "w1", 7)], now=NOW)
    assert beat.lost == [LeaseRef("x", "w1", 7)]

    strange = completed(Leased(message=submit("x").message, token=7, attempt=1))
    assert await again.settle(*map(completed, leases), strange) == ["applied", "applied", "unknown"]
    await other.close()


async def test_a_repeated_number_gets_the_same_answers(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str]
) -> None:
    batch = [submit("p", queue="far"), submit("k", after=["p"]), submit("n"), submit("n")]
    first = await c.enqueue(*batch)
    assert codes(first) == ["accepted", "accepted", "accepted", "duplicate"]
    call = Call("w1", c.number)
    assert await broker.enqueue(call, batch, now=NOW) == first

    other = opened(url, *names)  # which remembers nothing
    assert await other.enqueue(call, batch, now=NOW) == first
    assert (await other.snapshot(now=NOW)).depth == 3
    await other.close()

    leases = await c.fetch(2, BOTH)
    call = Call("w1", c.number)
    assert (await broker.exchange(call, now=NOW)).leased == leases
    with pytest.raises(InvalidInput, match="was exchange"):
        await broker.enqueue(call, batch, now=NOW)
    with pytest.raises(OutOfOrder):
        await broker.exchange(Call("w1", call.number - 1), now=NOW)


async def test_what_one_shard_has_done_is_not_done_again_when_the_other_comes_back(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = broker._stores[names[1]]
    good = far.enter

    async def away(*_: object, **__: object) -> None:
        raise Unreachable("the server is away")

    monkeypatch.setattr(far, "enter", away)
    batch = [submit("n"), submit("f", queue="far")]
    with pytest.raises(Ambiguous, match="the server is away"):
        await c.enqueue(*batch)
    with pytest.raises(Unreachable):  # nothing was done at all
        await Client(broker, "w2").enqueue(submit("g", queue="far"))
    monkeypatch.setattr(far, "enter", good)

    receipts = await broker.enqueue(Call("w1", c.number), batch, now=NOW)
    assert codes(receipts) == ["accepted", "accepted"]
    assert (await broker.snapshot(now=NOW)).depth == 2


async def test_a_shard_that_is_away_does_not_keep_others_from_being_fetched_from(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await c.enqueue(submit("n"))

    async def away(*_: object, **__: object) -> None:
        raise Unreachable("the server is away")

    for verb in ("exchange", "promote", "wait"):
        monkeypatch.setattr(broker._stores[names[1]], verb, away)
    assert await broker.wait(["far", "default"], 5.0)
    assert ids(await c.fetch(2, ["far", "default"])) == ["n"]
    assert (await broker.promote(now=NOW)).count == 0
    with pytest.raises(Unreachable):
        await c.fetch(1, ["far"])
    monkeypatch.undo()


# -- limits, mail, events, reads --------------------------------------------------------------


async def test_limits_hold_in_each_shard(broker: ShardedBroker, c: Client) -> None:
    await c.configure(
        LimiterChange(name="api", concurrency=1),
        TenantChange(tenant="b", concurrency=1),
        QueueChange(queue="far", max_waiting=4),
    )
    await c.enqueue(*(submit(f"n{i}", limiters=("api",)) for i in range(2)))
    receipts = await c.enqueue(*(submit(f"f{i}", "b", "far") for i in range(5)))
    assert codes(receipts) == ["accepted"] * 4 + ["queue_full"]
    assert ids(await c.fetch(9, BOTH)) == ["n0", "f0"]
    assert (await c.purge("far")).count == 3


async def test_waiting_ends_with_the_first_shard_that_has_work(
    broker: ShardedBroker, c: Client
) -> None:
    assert not await broker.wait(BOTH, 0.05)
    waiting = asyncio.create_task(broker.wait(BOTH, 10.0))
    await asyncio.sleep(0.05)
    await c.enqueue(submit("f", queue="far"))
    assert await asyncio.wait_for(waiting, 2.0)


async def test_a_wake_up_that_was_not_used_goes_to_the_next(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str]
) -> None:
    await c.enqueue(submit("n"), submit("f", queue="far"))
    while len(broker._woken) < 2:  # both were awaited, and the first one's is enough
        assert await broker.wait(BOTH, 5.0)
    other = opened(url, *names)
    waiting = asyncio.create_task(other.wait(["far"], 4.0))
    assert ids(await c.fetch(1, BOTH)) == ["n"]
    assert await asyncio.wait_for(waiting, 2.0)
    await other.close()


async def test_mail_of_all_shards_is_numbered_in_one_line(broker: ShardedBroker, c: Client) -> None:
    leases = await c.run(
        submit("n"), submit("f", queue="far"), submit("g", queue="far"), queues=BOTH
    )
    watched = await broker.watch("w1", ["n", "f", "g", "x"], now=NOW)
    assert [watch.state for watch in watched] == [State.RUNNING] * 3 + [None]
    assert await broker.collect("w1", 0, 0.0) == []
    await c.settle(completed(leases[1]), completed(leases[2]))

    letters = await broker.collect("w1", 0, 5.0)
    assert [(mail.number, mail.id) for mail in letters] == [(1, "f"), (2, "g")]
    waiting = asyncio.create_task(broker.collect("w1", 1, 5.0))
    assert [(mail.number, mail.id) for mail in await waiting] == [(2, "g")]
    await c.settle(dead(leases[0]))
    found: dict[str, int] = {}
    while len(found) < 2:
        found |= {mail.id: mail.number for mail in await broker.collect("w1", 1, 5.0)}
    assert found == {"g": 2, "n": 3}
    assert await broker.collect("w1", 3, 0.0) == []


async def test_events_of_all_shards_are_read_in_pages(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    for i in range(6):
        await c.enqueue(submit(f"t{i}", queue=BOTH[i % 2]), now=NOW + i)
    seen, place = [], None
    while (page := await broker.events(after=place, limit=2)).events:
        assert len(page.events) <= 2
        seen += [event.task for event in page.events]
        place = page.last
    assert seen == [f"t{i}" for i in range(6)]
    assert not page.gap

    waiting = asyncio.create_task(broker.events(after=place, timeout=5.0))
    await asyncio.sleep(0.02)
    await c.enqueue(submit("late", queue="far"), now=NOW + 9)
    page = await waiting
    assert [(event.task, event.id.shard) for event in page.events] == [("late", names[1])]
    own = page.events[0].id  # says nothing of the other shard: it begins with its oldest
    assert [e.task for e in (await broker.events(after=own)).events] == ["t0", "t2", "t4"]

    page = await broker.events(reader="r", limit=4)
    await broker.events(reader="r", after=page.last)
    assert [e.task for e in (await broker.events(reader="r")).events] == ["t4", "t5", "late"]


async def test_pages_and_workers_are_those_of_all_shards(broker: ShardedBroker, c: Client) -> None:
    await c.enqueue(*(submit(f"t{i}", queue=BOTH[i % 2]) for i in range(8)))
    found, cursor = [], None
    while True:
        page = await broker.page(limit=3, cursor=cursor, now=NOW)
        found += [task.message.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == [f"t{i}" for i in range(8)]
    with pytest.raises(InvalidOption):
        await broker.page(cursor="nowhere:0")

    await broker.beat("w1", worker=WorkerRecord(incarnation="w1", queues=BOTH), now=NOW)
    (worker,) = await broker.workers(now=NOW)
    assert (worker.incarnation, worker.queues) == ("w1", BOTH)
    assert "+" in (await broker.hello()).generation


async def test_a_lost_worker_is_swept_in_all_shards(broker: ShardedBroker, c: Client) -> None:
    await broker.sweep(now=NOW)
    await c.run(submit("n"), submit("f", queue="far"), queues=BOTH)
    assert (await broker.give_back("w1", now=NOW)).count == 2
    assert await states(broker, "n", "f") == [State.QUEUED] * 2


async def test_a_fence_may_be_a_lease_of_another_shard(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    fence = c.ref(lease)
    (receipt,) = await c.enqueue(submit("under", fence=fence))
    assert receipt.code == "accepted"
    await c.settle(completed(lease))
    assert codes(await c.enqueue(submit("late", fence=fence))) == ["fenced"]


# -- dependencies -----------------------------------------------------------------------------


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
    assert await broker.edges_in_transit() > 0
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
    stores = broker._stores
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
    await broker._stores[near].enter(c.call(), [child], {"parent": far}, now=NOW)
    assert await broker.audit(now=NOW) == []  # it is on its way
    ((entry,),) = await broker._stores[near].outbox([far], 10)
    await broker._stores[near].confirm(far, [entry])
    (finding,) = await broker.audit(now=NOW)
    assert "child waits for parent" in finding
    await c.cancel("child")


# -- processes that die between two steps -------------------------------------------------------

CASES = [
    (what, site)
    for what in ("link", "told")
    for site in faults.SITES
    if (what, site) != ("told", "stored")
]


@pytest.mark.parametrize(("what", "site"), CASES)
async def test_whoever_comes_next_ends_what_a_killed_process_began(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str], what: str, site: str
) -> None:
    await c.enqueue(submit("parent", queue="far"))
    if what == "told":
        await c.enqueue(submit("child", after=["parent"]))
        await drain(broker)
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.broker.redis.carrying", what, url, *names],
        env={**os.environ, faults.VARIABLE: f"{site}:1:kill"},
        capture_output=True,
        timeout=30,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert await broker.audit(now=NOW) == []

    await drain(broker)
    assert await broker.edges_in_transit() == 0
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
    with pytest.raises(InvalidOption, match=faults.VARIABLE):
        faults.parse(text)
