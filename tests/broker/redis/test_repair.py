"""A shard whose indexes somebody deleted is mended from what is known of its tasks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from fairlead.broker.documents import DocumentChange
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Alter, LimiterChange, QueueChange, TenantChange, Write
from fairlead.model.lifecycle import State
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.broker.redis.sample import Spoiler
from tests.support.fair import LiveClient
from tests.support.servers import Running
from tests.support.store import NOW, Client, completed, dead, failed, ids, states, submit

LATER = NOW + 100.0  # all leases are over, and all is due


@pytest.fixture
async def broker(valkey: Running) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(valkey.url, test_clock=True)
    yield broker
    await broker.close()


@pytest.fixture
def c(broker: RedisBroker) -> Client:
    return Client(broker)


@pytest.fixture
def spoil(valkey: Running) -> Iterator[Spoiler]:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        yield Spoiler(client)


async def fill(c: Client) -> set[str]:
    """Tasks of some tenants in every state; those that have to run yet."""
    await c.configure(
        LimiterChange(name="api", concurrency=5),
        TenantChange(tenant="b", weight=2.0),
        QueueChange(queue="default", keep_completed_count=640),
    )
    many = await c.run(*(submit(f"{n + 1000:032x}", "keeps") for n in range(30)))
    await c.settle(*(completed(lease) for lease in many))  # more than fits with the others
    finished = [submit("done", "a"), submit("dead", "a"), submit(f"{7:032x}", "a")]
    one, two, three = await c.run(*finished)
    await c.settle(completed(one), dead(two), completed(three, result=b"7"))
    (retried,) = await c.run(submit("retried", "b"))
    await c.settle(failed(retried, 5))
    runs, _ = await c.run(submit("runs", "a", limiters=("api",)), submit(f"{1:032x}", "c"))
    await c.write(Write(lease=c.ref(runs), kind="xcom", key="k", value=b"v"))
    waiting = [submit(f"{tenant}.{n:03}", tenant) for tenant in "abc" for n in range(40)]
    waiting += [submit(f"{16 * n + 15:032x}", "c", level=1) for n in range(40)]
    waiting += [submit(f"late.{n}", "b", delay=10 + n) for n in range(5)]
    waiting.append(submit("parent", "c", delay=20))
    waiting.append(submit("child", "c", after=["parent"]))
    waiting.append(submit("in-time", "a", deadline=5_000))
    waiting.append(submit("held", "a", unique=Unique(key="k"), delay=30))
    await c.enqueue(*waiting)
    moved = ("a.005", f"{16 * 3 + 15:032x}", "late.2", "child")
    await c.alter(*(Alter(id=id, action="prioritize", level=0) for id in moved))
    return {each.message.id for each in waiting} | {"retried", "runs", f"{1:032x}"}


async def run_all(broker: RedisBroker) -> set[str]:
    """What is left, run to its end by another worker."""
    w = Client(broker, "w2")
    await broker.sweep(now=LATER)
    for second in range(0, 40, 5):
        while (await broker.sweep(now=LATER + second)).more:
            pass
    ran: list[str] = []
    for _ in range(100):
        leases = await w.fetch(50, now=LATER + 60)
        ran += ids(leases)
        await w.settle(*(completed(lease) for lease in leases), now=LATER + 60)
        if not leases:
            break
    assert len(ran) == len(set(ran)), "a task ran twice"
    return set(ran)


DAMAGE = {
    "a line": ["line:default:2:a"],
    "all lines": ["line:default:2:a", "line:default:2:b", "line:default:2:c", "line:default:1:c"],
    "ready": ["ready:default"],
    "tenants": ["tenants:default"],
    "queues": ["queues"],
    "records": ["records"],
    "due": ["due"],
    "leases": ["leases"],
    "what is lent": ["held:w1"],
    "asleep": ["asleep:default:a", "asleep:default:b", "asleep:default:c"],
    "deadlines": ["deadlines"],
    "shelves": ["done:default", "kept:default", "dead:default"],
    "the shelf of one tenant": ["kept:default:keeps", "done:default:keeps"],
    "who keeps much": ["large-done:default", "heads-done:default"],
    "when queues are tidied": ["trims"],
    "how much XCom values count for": ["xcom-bytes"],
    "unique keys": ["unique"],
    "active": ["active:default"],
    "ready, tenants and queues": ["ready:default", "tenants:default", "queues"],
    "every index": [
        *("ready:default", "tenants:default", "queues", "due", "leases", "deadlines", "unique"),
        *("active:default", "line:default:2:a", "line:default:2:b", "line:default:2:c"),
        *("line:default:1:c", "asleep:default:a", "asleep:default:b", "asleep:default:c"),
        *("done:default", "kept:default", "dead:default", "held:w1"),
    ],
}


@pytest.mark.parametrize("keys", DAMAGE.values(), ids=DAMAGE)
async def test_after_a_repair_the_audit_is_clean_and_all_tasks_run(
    broker: RedisBroker, c: Client, spoil: Spoiler, keys: list[str]
) -> None:
    left = await fill(c)
    assert await broker.repair(now=NOW) == []
    for key in keys:
        spoil.do("DEL", key)
    before = await broker.audit(now=NOW)
    assert before

    shown = await broker.repair(now=NOW)  # a dry run
    assert shown
    assert all(each.done == 0 and each.left for each in shown)
    assert await broker.audit(now=NOW) == before

    mended = await broker.repair(apply=True, now=NOW)
    assert all(each.done and not each.left for each in mended), mended
    assert await broker.audit(now=NOW) == []
    assert await broker.repair(now=NOW) == []

    assert await run_all(broker) == left
    assert await states(broker, "done", "dead", now=LATER + 60) != [State.QUEUED] * 2
    assert await broker.audit(now=LATER + 60) == []


async def test_what_others_will_read_is_counted_anew(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    one, two = await c.run(submit("one"), submit("two"))
    await c.enqueue(submit("reader", after=["one", "two"], uses=True, delay=60.0))
    size = 100 + len(one.message.body) + 5
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=size))
    await c.settle(completed(one, b"12345"), completed(two, b"12345"))  # for one there is room
    spoil.do("DEL", "tenants:default")
    assert any(
        "pinned" in finding or "dropped" in finding for finding in await broker.audit(now=NOW)
    )
    await broker.repair(apply=True, now=NOW)
    assert await broker.audit(now=NOW) == []
    spoil.poke("tenants:default", "a", -9, "d", 7)
    assert await broker.audit(now=NOW) == [
        f"tenant a of default counts 7 bytes of pinned tasks, there are {size}"
    ]
    await broker.repair(apply=True, now=NOW)
    assert await broker.audit(now=NOW) == []


async def test_workers_may_go_on_while_a_shard_is_repaired(valkey: Running, spoil: Spoiler) -> None:
    broker = RedisBroker(valkey.url)
    c = LiveClient(broker, "producer")
    names = [f"{tenant}.{n:03}" for n in range(150) for tenant in "abcdef"]
    await c.enqueue(*(submit(id, id[0]) for id in names[:450]))
    ran: Counter[str] = Counter()
    over = asyncio.Event()

    async def work(name: str) -> None:
        worker = LiveClient(broker, name)
        leases: list[Leased] = []
        while leases or not over.is_set():
            wanted = 0 if over.is_set() else 3
            leases = await worker.exchange(wanted, *(completed(lease) for lease in leases))
            ran.update(ids(leases))
            await asyncio.sleep(0.005)

    async def produce() -> None:
        for id in names[450:]:
            await c.enqueue(submit(id, id[0]))

    workers = [asyncio.create_task(work(f"w{n}")) for n in range(3)]
    producer = asyncio.create_task(produce())
    await asyncio.sleep(0.05)
    for key in ("line:default:2:a", "ready:default", "due", "active:default"):
        spoil.do("DEL", key)
    await broker.repair(apply=True)
    await producer
    async with asyncio.timeout(60):
        while len(ran) < len(names):
            await broker.repair(apply=True)
            await asyncio.sleep(0.01)
    over.set()
    await asyncio.gather(*workers)
    assert set(ran.values()) == {1}
    assert await broker.repair(apply=True) == [] or await broker.repair() == []
    assert await broker.audit() == []
    await broker.close()


async def judged(broker: RedisBroker, *args: Any) -> tuple[int, ...]:
    """What one step saw to, mended, and could not judge."""
    return tuple(map(int, (await broker.own("repair", NOW, "mend", *args)).split()))


async def test_a_step_that_comes_too_late_changes_nothing(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    await c.enqueue(*(submit(f"t{n}") for n in range(3)))
    seen = spoil.do("HGET", "tenants:default", "a")
    await c.fetch(1)  # since it was seen
    counts = (0, 0, 9, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0)
    assert await judged(broker, "tenant", "default", "a", seen, *counts) == (1, 0, 1)
    assert await judged(broker, "place", "t0", "t1", "nobody") == (3, 0, 0)
    assert await broker.audit(now=NOW) == []
    assert ids(await c.fetch(10)) == ["t1", "t2"]


# -- entries that belong to nothing ------------------------------------------------------------


async def test_tidy_goes_on_beside_a_queue_that_was_lost(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    (lease,) = await c.run(submit("done"))
    await c.settle(completed(lease, keep=10.0))
    spoil.do("ZADD", "trims", 1, "ghost")
    assert (await broker.tidy(now=LATER)).count == 1
    assert spoil.do("ZSCORE", "trims", "ghost") is None


async def test_a_queue_that_was_lost_is_not_to_be_tidied_any_more(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    await c.enqueue(submit("t"))
    spoil.do("ZADD", "trims", LATER, "ghost")
    (mended,) = await broker.repair(apply=True, now=NOW)
    assert (mended.kind, mended.done, mended.left) == ("drop", 1, 0)
    assert await broker.audit(now=NOW) == []


@pytest.mark.parametrize("queue", ["default", "lost"])
async def test_ranks_of_a_tenant_that_nobody_knows_are_removed(
    broker: RedisBroker, c: Client, spoil: Spoiler, queue: str
) -> None:
    await c.enqueue(submit("t"))
    for rank in ("large-done", "heads-done", "large-dead", "heads-dead"):
        spoil.do("ZADD", f"{rank}:{queue}", 1, "nobody")
    (mended,) = await broker.repair(apply=True, now=NOW)
    assert (mended.kind, mended.done, mended.left) == ("status", 1, 0)
    assert await broker.audit(now=NOW) == []


async def test_tasks_end_beside_an_order_whose_tenant_was_lost(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=640))
    many = await c.run(*(submit(f"{n + 1000:032x}", "keeps") for n in range(30)))
    await c.settle(*map(completed, many))
    spoil.do("HDEL", "tenants:default", "keeps")
    assert await c.settle(*map(completed, await c.run(submit("other", "other")))) == ["applied"]
    await broker.tidy(now=NOW + 4000)
    await broker.repair(apply=True, now=NOW + 4000)
    assert await broker.audit(now=NOW + 4000) == []


@pytest.mark.parametrize("shelf", ["done:default", "dead:default"])
async def test_a_queue_is_deleted_beside_entries_of_its_shelves_that_belong_to_nothing(
    broker: RedisBroker, c: Client, spoil: Spoiler, shelf: str
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=640))
    spoil.do("ZADD", shelf, NOW + 1, "gone")
    many = await c.run(*(submit(f"{n + 1000:032x}", "keeps") for n in range(30)))
    await c.settle(*map(completed, many))
    answer = await broker.delete_queue(c.call(), "default", now=NOW)
    assert (answer.count, answer.more, answer.refused) == (30, False, False)
    assert await broker.audit(now=NOW) == []


async def test_a_tenant_gives_beside_entries_of_its_shelf_that_belong_to_nothing(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=20))
    spoil.do("ZADD", "done:default", NOW + 1, "gone")
    for n in range(0, 60, 20):
        many = await c.run(*(submit(f"{1000 + n + i:032x}", "keeps") for i in range(20)))
        assert set(await c.settle(*map(completed, many))) == {"applied"}
    assert await broker.audit(now=NOW) == []


async def test_documents_trails_and_orders_are_left_alone(
    broker: RedisBroker, c: Client, spoil: Spoiler
) -> None:
    await fill(c)
    changes = [
        DocumentChange(kind="token", name=name, value=b"v", ttl=ttl)
        for name, ttl in (("stays", None), ("brief", 1e6))
    ]
    await broker.write_documents(c.call(), changes, now=NOW)
    await broker.note(c.call(), "audit", [b"1", b"2"], now=NOW)
    await broker.beat("w1", worker=WorkerRecord(incarnation="w1"), now=NOW)
    await broker.order_worker(c.call(), "w1", "pause", now=NOW)
    held = await broker.lead("manager", "m1", now=NOW)
    documents = await broker.documents("token", now=NOW)
    notes = await broker.notes("audit", now=NOW)

    for key in ("tenants:default", "queues", "ready:default", "due", "line:default:0:a"):
        spoil.do("DEL", key)
    await broker.repair(apply=True, now=NOW)

    assert await broker.documents("token", now=NOW) == documents
    assert await broker.notes("audit", now=NOW) == notes
    assert await broker.lead("manager", "m1", now=NOW) == held
    assert [each.order for each in await broker.workers(now=NOW)] == ["pause"]
    assert await broker.audit(now=NOW) == []
