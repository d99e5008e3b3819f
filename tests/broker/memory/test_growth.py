"""Nothing in the memory broker grows without bound, whatever comes and goes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.broker.memory import MemoryBroker
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import (
    MAX_STEP,
    Alter,
    LimiterChange,
    QueueChange,
    TenantChange,
    Write,
)
from fairlead.model.lifecycle import FINAL, Settlement
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.support.fair import enqueue_all
from tests.support.store import NOW, Client, completed, dead, drain, failed, submit

TIMES = 2_000
SLACK = 200  # stale entries that may lie about, of whatever kind
HOUR = 3600.0
GPU = ("gpu",)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    store = MemoryBroker(test_clock=True)
    yield store
    assert await store.audit(now=NOW) == []
    await store.close()


@pytest.fixture
async def c(broker: MemoryBroker) -> Client:
    """A client of a broker that keeps nothing of what is finished."""
    client = Client(broker)
    await client.configure(
        QueueChange(queue="default", keep_completed_count=0, keep_dead=0.0),
    )
    return client


def heap(agenda: TimeIndex[Any]) -> int:
    """How many entries an agenda holds, stale ones too."""
    return len(agenda._heap) + len(agenda._line or ())


def entries(broker: MemoryBroker, tenant: str = "a") -> int:
    """How many entries the levels of a tenant hold, empty ones too."""
    return sum(map(len, broker.shard.queues["default"].tenants[tenant].levels))


async def tidied(broker: MemoryBroker, now: float) -> None:
    while (await broker.tidy(now=now)).more:
        pass


# -- levels and limiters ----------------------------------------------------------------------


async def test_the_waiters_of_a_limiter_do_not_pile_up(broker: MemoryBroker, c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=0))
    await c.enqueue(submit("stays", limiters=GPU), submit("too", "b", limiters=GPU))
    for i in range(TIMES):
        await c.enqueue(submit(f"t{i}", limiters=GPU))
        assert await c.fetch(1) == []
        await c.cancel(f"t{i}")

    (waiting,) = broker.shard.limiters["gpu"]._waiting.values()
    assert heap(waiting) <= SLACK
    assert entries(broker) <= SLACK
    assert len(broker.shard.queues["default"]._heap) <= SLACK


async def test_a_limiter_forgets_tenants_that_wait_no_longer(
    broker: MemoryBroker, c: Client
) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=0))
    for i in range(TIMES // 5):
        await c.enqueue(submit(f"t{i}", f"tenant.{i}", limiters=GPU))
        assert await c.fetch(1) == []
        await c.cancel(f"t{i}")

    assert broker.shard.limiters["gpu"]._waiting == {}
    assert len(broker.shard.queues["default"].tenants) <= SLACK


@pytest.mark.parametrize("level", [0, 2])
async def test_entries_of_cancelled_tasks_do_not_pile_up_where_nobody_fetches(
    broker: MemoryBroker, c: Client, level: int
) -> None:
    await c.enqueue(submit("stays"))
    for i in range(TIMES):
        await c.enqueue(submit(f"t{i}", level=level))
        await c.cancel(f"t{i}")

    assert entries(broker) <= SLACK
    assert len(await c.fetch(5)) == 1


async def test_entries_of_expired_and_purged_tasks_do_not_pile_up(
    broker: MemoryBroker, c: Client
) -> None:
    for i in range(TIMES // 100):
        now = NOW + 10.0 * i
        await c.enqueue(*(submit(f"e{i}.{k}", deadline=1.0) for k in range(MAX_STEP)), now=now)
        await c.enqueue(submit(f"p{i}", "b"), submit(f"q{i}", "b"), now=now)
        await broker.promote(now=now + 2.0)
        await c.purge("default", "b", now=now + 2.0)

    tenants = broker.shard.queues["default"].tenants.values()
    assert sum(len(level) for tenant in tenants for level in tenant.levels) <= SLACK


async def test_limiters_that_nobody_configured_are_forgotten_when_unused(
    broker: MemoryBroker, c: Client
) -> None:
    await c.configure(LimiterChange(name="closed", concurrency=0))
    for i in range(TIMES // 5):
        (lease,) = await c.run(submit(f"run.{i}", limiters=(f"used.{i}",)))
        await c.settle(completed(lease))
        await c.enqueue(submit(f"wait.{i}", "b", limiters=(f"wanted.{i}", "closed")))
        assert await c.fetch(1) == []
        await c.cancel(f"wait.{i}")

    assert set(broker.shard.limiters) == {"closed"}


async def test_limiters_that_were_lifted_are_forgotten(broker: MemoryBroker, c: Client) -> None:
    for i in range(TIMES // 5):
        await c.configure(LimiterChange(name=f"l{i}", concurrency=1, rate=1.0, burst=2))
        await c.configure(LimiterChange(name=f"l{i}", concurrency=None, rate=None, burst=1))

    assert broker.shard.limiters == {}


# -- tenants ----------------------------------------------------------------------------------


@pytest.mark.parametrize("charge", [False, True], ids=["by count", "by run time"])
@pytest.mark.parametrize("cost", [1.0, 20.0])
async def test_tenants_that_came_and_went_are_forgotten(
    broker: MemoryBroker, c: Client, cost: float, charge: bool
) -> None:
    await c.configure(QueueChange(queue="default", charge_run_time=charge))
    await enqueue_all(c, (submit(f"busy.{i}", "busy") for i in range(TIMES)))
    for i in range(TIMES):
        await c.enqueue(submit(f"t{i}", f"tenant.{i}", cost=cost))
        leases = await c.fetch(2)
        await c.settle(*(completed(lease, run_time=1.0 + i % 3) for lease in leases))
    while leases := await c.fetch(128):
        await c.settle(*(completed(lease, run_time=1.0) for lease in leases))

    queue = broker.shard.queues["default"]
    assert broker.shard.tasks == {}
    assert queue.active == {}
    assert len(queue.tenants) <= SLACK
    assert heap(queue._saved) <= 2 * SLACK
    assert len(queue._heap) <= 2 * SLACK


async def test_tenants_whose_tasks_never_ran_are_forgotten(broker: MemoryBroker, c: Client) -> None:
    for i in range(TIMES):
        await c.enqueue(submit(f"t{i}", f"tenant.{i}"))
        await c.cancel(f"t{i}")

    queue = broker.shard.queues["default"]
    assert queue.tenants == {}
    assert queue.active == {}
    assert heap(queue._saved) == 0
    assert len(queue._heap) <= SLACK


# -- agendas ----------------------------------------------------------------------------------


async def test_agendas_do_not_pile_up_what_was_called_off(broker: MemoryBroker, c: Client) -> None:
    shard = broker.shard
    await c.enqueue(submit("later", delay=1e6, deadline=2e6))
    for i in range(TIMES):
        await c.enqueue(
            submit(f"t{i}", delay=1e6, deadline=2e6, unique=Unique(key=f"k{i}")),
        )
        await c.cancel(f"t{i}")

    assert [len(agenda) for agenda in (shard.due, shard.deadlines)] == [1, 1]
    assert max(heap(agenda) for agenda in (shard.due, shard.deadlines)) <= SLACK
    assert shard.unique == {}
    assert heap(shard.queues["default"].finished._common) <= SLACK
    assert heap(shard.queues["default"].finished._heads) <= SLACK
    assert heap(shard.queues["default"].finished._large) <= SLACK
    assert heap(shard.idle_ends) <= SLACK  # 10,000 calls of one incarnation


async def test_agendas_do_not_pile_up_what_is_put_off(broker: MemoryBroker, c: Client) -> None:
    shard = broker.shard
    await c.configure(TenantChange(tenant="b", rate=0.001), LimiterChange(name="api", rate=0.001))
    await c.run(submit("spent", "b"), submit("used", "d", limiters=("api",)))
    await c.run(submit("held"))
    for i in range(TIMES // 2):
        now = NOW + i / 1e6
        await broker.beat("w1", worker=WorkerRecord(incarnation="w1"), now=now)
        await c.enqueue(submit(f"b{i}", "b"), submit(f"c{i}", "c", limiters=("api",)), now=now)
        assert await c.fetch(2, now=now) == []
        await c.alter(
            Alter(id=f"b{i}", action="cancel"), Alter(id=f"c{i}", action="cancel"), now=now
        )

    agendas: list[TimeIndex[Any]]
    agendas = [shard.lease_ends, shard.worker_ends, shard.alarms, shard.idle_ends]
    assert max(heap(agenda) for agenda in agendas) <= SLACK


async def test_retries_do_not_pile_up(broker: MemoryBroker, c: Client) -> None:
    await c.enqueue(submit("t", deadline=1e6))
    for i in range(TIMES):
        (lease,) = await c.fetch(1, now=NOW + i)
        await c.settle(failed(lease, 1.0), now=NOW + i)

    shard = broker.shard
    assert max(heap(agenda) for agenda in (shard.due, shard.deadlines)) <= SLACK
    assert entries(broker) == 0


# -- incarnations -----------------------------------------------------------------------------


async def test_silent_incarnations_are_forgotten_after_an_hour(
    broker: MemoryBroker, c: Client
) -> None:
    shard = broker.shard
    for i in range(TIMES // 10):
        worker = Client(broker, f"worker.{i}")
        (lease,) = await worker.run(submit(f"t{i}", unique=Unique(key=f"k{i}")))
        proof = worker.ref(lease)
        await worker.write(Write(lease=proof, kind="xcom", key=f"k{i}", value=b"v", ttl=60.0))
        await broker.watch(f"client.{i}", [f"t{i}"], now=NOW)
        await broker.beat(f"worker.{i}", worker=WorkerRecord(incarnation=f"worker.{i}"), now=NOW)
        await c.cancel(f"t{i}")  # mail to the worker
        await worker.settle(completed(lease))  # mail to the client
        window = Unique(key=f"w{i}", until="window", window=60.0)
        await c.enqueue(submit(f"w{i}", unique=window))
        await c.cancel(f"w{i}")
    assert len(shard.mailboxes) == TIMES // 5

    await tidied(broker, NOW + HOUR + 1.0)

    for kept in (shard.answers, shard.mailboxes, shard.workers, shard.xcom, shard.unique):
        assert kept == {}
    agendas: list[TimeIndex[Any]]
    agendas = [shard.idle_ends, shard.worker_ends, shard.xcom_ends, shard.windows]
    assert [len(agenda) for agenda in agendas] == [0, 0, 0, 0]
    assert max(heap(agenda) for agenda in agendas) <= SLACK
    assert shard.incarnations == {}
    assert len(shard.lease_ends) == 0


async def test_an_incarnation_whose_loop_was_closed_is_forgotten_as_well(
    broker: MemoryBroker,
) -> None:
    def listen_and_vanish() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(broker.collect("gone", 0, 60.0))
        loop.run_until_complete(asyncio.sleep(0.01))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    await asyncio.to_thread(listen_and_vanish)
    assert set(broker.shard.mailboxes) == {"gone"}

    for hours in (1, 2, 3):
        await tidied(broker, NOW + hours * (HOUR + 1.0))

    assert broker.shard.mailboxes == {}
    assert len(broker.shard.idle_ends) == 0
    gc.collect()


async def test_waiters_whose_loop_was_closed_are_forgotten(broker: MemoryBroker) -> None:
    def vanish() -> None:
        loop = asyncio.new_event_loop()
        tasks = [
            loop.create_task(broker.wait(["default"], 60.0)),
            loop.create_task(broker.events(timeout=60.0)),
        ]
        loop.run_until_complete(asyncio.sleep(0.001))
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    for _ in range(20):
        await asyncio.to_thread(vanish)
    c = Client(broker)
    await c.enqueue(submit("t"))

    assert len(broker.bell) == 0
    assert broker.event_sleepers == []
    gc.collect()


# -- what is kept -----------------------------------------------------------------------------


BIG = bytes(16_000)


@pytest.mark.parametrize("kind", ["progress", "checkpoint", "trace", "body", "result"])
@pytest.mark.parametrize("end", [completed, dead])
async def test_whatever_is_kept_of_a_task_counts_against_the_queues_bytes(
    broker: MemoryBroker, c: Client, kind: str, end: Callable[[Leased], Settlement]
) -> None:
    await c.configure(
        QueueChange(queue="default", keep_completed_bytes=320_000, keep_completed_count=1_000),
        QueueChange(queue="default", keep_dead_bytes=320_000, keep_dead=HOUR),
    )
    given: dict[str, Any] = {kind: BIG} if kind in ("trace", "body") else {}
    for i in range(60):
        (lease,) = await c.run(submit(f"t{i}", **given))
        if kind == "progress" or kind == "checkpoint":
            await c.write(Write(lease=c.ref(lease), kind=kind, value=BIG))  # type: ignore[arg-type]
        settlement = end(lease)
        await c.settle(replace(settlement, result=BIG) if kind == "result" else settlement)

    shard = broker.shard
    queue = shard.queues["default"]
    shelf = queue.finished if end is completed else queue.dead
    assert 15 <= len(shelf) == len(shard.tasks) <= 20
    assert len(shelf) * len(BIG) <= shelf.bytes <= 320_000


async def test_the_bytes_of_a_shelf_are_those_of_its_tasks(broker: MemoryBroker, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=1_000, keep_dead=HOUR))
    queue = broker.shard.queues["default"]
    shelves = queue.finished, queue.dead
    for i in range(100):
        (lease,) = await c.run(submit(f"t{i}", body=bytes(i), trace=bytes(2 * i)))
        await c.write(Write(lease=c.ref(lease), kind="progress", value=bytes(3 * i)))
        await c.settle(dead(lease) if i % 2 else completed(lease, bytes(i)))
    for i in range(1, 50, 2):
        await c.requeue(f"t{i}")
    for i in range(0, 50, 2):
        await c.delete(f"t{i}")

    tasks, tenant = broker.shard.tasks.values(), queue.tenants["a"]
    kept = sum(task.size for task in tasks if task.state in FINAL)
    assert sum(shelf.bytes for shelf in shelves) == kept > 0
    assert tenant.live_bytes == sum(task.size for task in tasks) - kept > 0
    await c.purge()
    assert tenant.live_bytes == 0
    await tidied(broker, NOW + 8 * 24 * HOUR)
    assert broker.shard.tasks == {}
    assert [shelf.bytes for shelf in shelves] == [0, 0]


async def test_the_entries_of_the_stream_are_bounded_by_its_bytes() -> None:
    broker = MemoryBroker(test_clock=True, event_bytes=4096)
    c = Client(broker)
    await c.configure(QueueChange(queue="default", keep_completed_count=0))
    stream = broker.shard.stream
    most = 0
    for i in range(TIMES):
        await c.enqueue(submit(f"t{i}"))
        await c.cancel(f"t{i}")
        most = max(most, len(stream._entries))
        assert stream._bytes <= 4096
        assert stream._first == 0 or stream._entries[stream._first - 1][3] == []

    assert most <= 2_000
    kept = stream._entries[stream._first :]
    assert sum(entry[2] for entry in kept) == stream._bytes
    assert [entry[0] for entry in kept] == [*range(stream._last - len(kept) + 1, stream._last + 1)]
    await broker.close()


async def test_the_register_of_tasks_is_bounded_by_those_that_are_known(
    broker: MemoryBroker, c: Client
) -> None:
    await c.enqueue(*(submit(f"stays.{i}", "b") for i in range(20)))
    most = 0
    for i in range(TIMES):
        await c.enqueue(submit(f"t{i}"))
        await c.cancel(f"t{i}")
        most = max(most, len(broker.shard._order))

    assert most <= SLACK
    assert len(broker.shard._by_sequence) == len(broker.shard.tasks) == 20
    page = await broker.page(now=NOW)
    assert [task.message.id for task in page.tasks] == [f"stays.{i}" for i in range(20)]


async def test_releases_that_were_delivered_are_forgotten(broker: MemoryBroker, c: Client) -> None:
    for i in range(TIMES // 50):
        (lease,) = await c.run(submit(f"p{i}"))
        await c.enqueue(*(submit(f"p{i}.{k}", after=[f"p{i}"]) for k in range(50)))
        await c.settle(dead(lease, keep=0))
    await drain(broker)

    assert len(broker.shard.releases) == 0
    assert broker.shard.ended == {}
    assert broker.shard.rung == set()
