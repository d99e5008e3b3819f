"""A repair beside workers: what is sound is left alone, and what is damaged comes back."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from fairlead.broker.records import Mended
from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.audit.walk import walk
from fairlead.broker.redis.repair import Judged, repair
from fairlead.broker.requests import LeaseRef, LimiterChange, QueueChange, Write
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from tests.broker.redis.sample import PREFIX, Spoiler
from tests.support.fair import LiveClient
from tests.support.servers import Running
from tests.support.store import NOW, completed, failed, ids, submit


@pytest.fixture
async def broker(valkey: Running) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(valkey.url)
    yield broker
    await broker.close()


@pytest.fixture
def spoil(valkey: Running) -> Iterator[Spoiler]:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        yield Spoiler(client)


class Traffic:
    """Workers and a producer, until they are told to stop."""

    def __init__(self, broker: RedisBroker, settle: Callable[[Leased, int], Settlement]) -> None:
        self._broker, self._settle = broker, settle
        self.ran: Counter[str] = Counter()
        self.entered = 0
        self.feeds = True
        self._stops = False

    async def feed(self) -> None:
        client = LiveClient(self._broker, "producer")
        while self.feeds:
            await client.enqueue(*(self.submission() for _ in range(20)))
            await asyncio.sleep(0.01)

    def submission(self) -> Any:
        self.entered += 1
        n = self.entered
        return submit(f"{n:032x}", f"t{n % 3}", limiters=("api",) if n % 5 == 0 else ())

    async def work(self, name: str) -> None:
        worker = LiveClient(self._broker, name)
        leases: list[Leased] = []
        for turn in itertools.count():
            ends = [self._settle(lease, self.ran[lease.message.id]) for lease in leases]
            leases = await worker.exchange(0 if self._stops else 7 + turn % 40, *ends)
            self.ran.update(ids(leases))
            if self._stops and not leases:
                return
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(self.work(f"w{n}"))
            group.create_task(self.feed())
            await asyncio.sleep(0.3)
            try:
                yield
            finally:
                self.feeds, self._stops = False, True


def end_plainly(lease: Leased, _times: int) -> Settlement:
    return completed(lease)


def end_at_last(lease: Leased, times: int) -> Settlement:
    """Some are retried again and again, at once or later."""
    n = int(lease.message.id, 16)
    if n % 2 or times > 20:
        return completed(lease)
    return failed(lease, 0.0 if n % 4 else 0.05)


def doubles(valkey: Running) -> list[bytes]:
    """Entries that stand in a line more than once."""
    found: list[bytes] = []
    for key in valkey.admin("KEYS", f"{PREFIX}line:*"):
        times = Counter(valkey.admin("LRANGE", key, 0, -1))
        found += [entry for entry, count in times.items() if count > 1]
    return found


def touched(mended: list[Mended]) -> list[Mended]:
    """Kinds of which something was mended, or was found to be wrong."""
    return [each for each in mended if each.done or each.left]


@pytest.mark.slow
@pytest.mark.parametrize("settle", [end_plainly, end_at_last])
async def test_a_sound_shard_is_left_alone_while_workers_go_on(
    valkey: Running, broker: RedisBroker, settle: Callable[[Leased, int], Settlement]
) -> None:
    c = LiveClient(broker, "first")
    await c.configure(
        LimiterChange(name="api", concurrency=20),
        QueueChange(queue="default", keep_completed_count=500),
    )
    traffic = Traffic(broker, settle)
    for _ in range(6):
        await c.enqueue(*(traffic.submission() for _ in range(500)))
    other = RedisBroker(valkey.url)
    async with traffic.going_on():
        assert touched(await other.repair()) == []
        for _ in range(3):
            assert touched(await other.repair(apply=True)) == []
            assert doubles(valkey) == []
    assert doubles(valkey) == []
    assert await other.repair() == []
    assert await other.audit() == []
    await other.close()


@pytest.mark.slow
async def test_all_tasks_end_of_a_shard_that_is_damaged_and_repaired_while_workers_go_on(
    valkey: Running, broker: RedisBroker, spoil: Spoiler
) -> None:
    traffic = Traffic(broker, end_plainly)
    c = LiveClient(broker, "first")
    for _ in range(4):
        await c.enqueue(*(traffic.submission() for _ in range(500)))
    other = RedisBroker(valkey.url)
    async with traffic.going_on():
        for keys in (["ready:default"], ["line:default:2:t1"], ["queues"], ["due", "leases"]):
            for key in keys:
                spoil.do("DEL", key)
            await asyncio.sleep(0.2)
            await other.repair(apply=True)
        traffic.feeds = False
        async with asyncio.timeout(60):
            while len(traffic.ran) < traffic.entered:
                await other.repair(apply=True)
                await asyncio.sleep(0.05)
    await other.repair(apply=True)
    assert touched(await other.repair(apply=True)) == []
    found = doubles(valkey), await other.audit()
    await other.close()
    assert found[0] == []
    # Counters of a queue that was lost begin at 0, and what ran then is counted when it ends.
    assert [each for each in found[1] if "more run times than" not in each] == []


async def test_two_repairs_at_once_put_nothing_into_a_line_twice(
    valkey: Running, broker: RedisBroker, spoil: Spoiler
) -> None:
    c = LiveClient(broker, "first")
    for start in range(0, 2000, 500):
        await c.enqueue(*(submit(f"{n:032x}") for n in range(start, start + 500)))
    spoil.do("DEL", "line:default:2:a")
    other = RedisBroker(valkey.url)
    both = await asyncio.gather(broker.repair(apply=True), other.repair(apply=True))
    assert sum(each.done for found in both for each in found if each.kind == "place") == 2000
    assert spoil.do("LLEN", "line:default:2:a") == 2000
    assert doubles(valkey) == []
    assert await other.audit() == []
    await other.close()


# -- what cannot be judged at one moment -------------------------------------------------------


async def fill_wide(broker: RedisBroker) -> None:
    """One queue with more tenants than a step looks at."""
    c = LiveClient(broker, "first")
    for start in range(0, 5_200, 200):
        await c.enqueue(*(submit(f"{n:032x}", f"t{n}") for n in range(start, start + 200)))


@pytest.mark.slow
async def test_a_queue_of_many_tenants_is_counted_in_pages(
    broker: RedisBroker, spoil: Spoiler
) -> None:
    await fill_wide(broker)
    assert await broker.repair() == []
    spoil.do("DEL", "queues")
    (mended,) = await broker.repair(apply=True)
    assert (mended.kind, mended.done, mended.left, mended.busy) == ("queue", 1, 0, 0)
    assert await broker.audit() == []
    w = LiveClient(broker, "w")
    await w.exchange(0, *map(completed, await w.exchange(50)))
    assert await broker.audit() == []


@pytest.mark.slow
async def test_a_queue_of_many_tenants_that_never_rests_is_left_alone_and_told_of(
    broker: RedisBroker, spoil: Spoiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.broker.redis.repair._ROUNDS", 1)  # the others would be like it
    await fill_wide(broker)
    spoil.poke("queues", "default", 8, "d", 7.0)  # the sum of weights
    command = (await broker.here()).server.command
    c = LiveClient(broker, "other")
    more = itertools.count(20_000)

    async def busy(*args: Any) -> Any:
        if args[:3] == ("HSCAN", broker.keys.tenants("default"), b"0"):
            await c.enqueue(submit(f"{next(more):032x}", "t7"))
        return await command(*args)

    async def step(*args: Any) -> Judged:
        return Judged(*map(int, (await broker.own("repair", None, *args)).split()))

    found = await repair(busy, broker.keys, step, apply=True)
    (queue,) = [each for each in found if each.kind == "queue"]
    assert (queue.done, queue.left, queue.busy) == (0, 0, 1)

    (mended,) = await broker.repair(apply=True)  # now it rests
    assert (mended.kind, mended.done, mended.busy) == ("queue", 1, 0)
    assert await broker.audit() == []


async def test_a_tenant_that_moves_between_walks_is_told_of_and_not_touched(
    broker: RedisBroker, spoil: Spoiler
) -> None:
    c = LiveClient(broker, "first")
    await c.enqueue(*(submit(f"{n:032x}") for n in range(20)))
    spoil.poke("tenants:default", "a", 8, "I", 99)  # how many are queued
    command = (await broker.here()).server.command
    more = itertools.count(100)

    async def busy(*args: Any) -> Any:
        if args[0] == "TYPE" and str(args[1]).endswith("}:tasks"):
            await c.enqueue(submit(f"{next(more):032x}"))
        return await command(*args)

    async def step(*args: Any) -> Judged:
        return Judged(*map(int, (await broker.own("repair", None, *args)).split()))

    found = await repair(busy, broker.keys, step, apply=True)
    (tenant,) = [each for each in found if each.kind == "tenant"]
    assert (tenant.done, tenant.left, tenant.busy) == (0, 0, 1)
    done = {each.kind: each.done for each in await broker.repair(apply=True)}
    assert done["tenant"] == 1
    assert await broker.audit() == []


# -- steps by themselves -----------------------------------------------------------------------


async def judged(broker: RedisBroker, mode: str, *args: Any) -> tuple[int, ...]:
    return tuple(map(int, (await broker.own("repair", None, mode, *args)).split()))


async def test_a_task_that_stands_in_a_long_line_is_not_put_there_again(
    valkey: Running, broker: RedisBroker
) -> None:
    c = LiveClient(broker, "first")
    names = [f"{n:032x}" for n in range(1500)]
    for start in range(0, 1500, 500):
        await c.enqueue(*(submit(id) for id in names[start : start + 500]))
    for start in range(0, 1500, 100):
        assert await judged(broker, "mend", "place", *names[start : start + 100]) == (100, 0, 0)
    assert doubles(valkey) == []


async def test_what_is_right_is_not_counted_as_mended(broker: RedisBroker) -> None:
    c = LiveClient(broker, "w1")
    await c.enqueue(*(submit(f"{n:032x}", f"t{n % 2}") for n in range(20)))
    await c.exchange(3, *map(completed, await c.exchange(5)))
    assert await judged(broker, "mend", "status", "default", "t0", "t1", "none") == (3, 0, 0)
    assert await judged(broker, "mend", "queue", "default") == (1, 0, 0)
    assert await judged(broker, "mend", "queue", "nowhere") == (1, 0, 0)
    (lease,) = await c.exchange(1)
    held = LeaseRef(lease.message.id, "w1", lease.token)
    await broker.write(c.call(), [Write(lease=held, kind="xcom", key="k", value=b"v")])
    tenant = lease.message.tenant
    assert await judged(broker, "mend", "xcom", tenant, "999", "7") == (1, 0, 0)  # as walks err
    gone = ("due", "default\x1ft0", "leases", "w1", "trims", "default", "done:default", "none")
    assert await judged(broker, "mend", "drop", *gone) == (4, 0, 0)
    assert await broker.audit() == []


async def test_a_step_looks_through_so_many_entries_and_leaves_the_rest(
    valkey: Running, broker: RedisBroker, spoil: Spoiler
) -> None:
    c = LiveClient(broker, "first")
    await c.enqueue(*(submit(f"{n:032x}") for n in range(5)))
    for _ in range(60):
        spoil.do("RPUSH", "line:default:2:a", *(f"stale.{n}" for n in range(1000)))
    names = [f"{n:032x}" for n in range(5)]
    assert await judged(broker, "mend", "place", *names) == (4, 0, 0)


async def test_room_in_a_limiter_is_counted_at_one_moment(
    broker: RedisBroker, spoil: Spoiler
) -> None:
    c = LiveClient(broker, "w1")
    await c.configure(LimiterChange(name="api", concurrency=3))
    await c.enqueue(*(submit(f"{n:032x}", limiters=("api",)) for n in range(4)))
    leases = await c.exchange(2)
    assert await judged(broker, "mend", "limiter", "api", "none") == (2, 0, 0)
    spoil.poke("limiters", "api", 36, "d", 3.0)  # as if another one held room
    assert await judged(broker, "look", "limiter", "api") == (1, 1, 0)
    assert await judged(broker, "mend", "limiter", "api") == (1, 1, 0)
    assert len(await c.exchange(5)) == 1
    await c.exchange(0, *map(completed, leases))
    assert await broker.audit() == []


async def test_room_in_a_limiter_is_not_judged_while_it_is_not_known_what_runs(
    broker: RedisBroker, spoil: Spoiler
) -> None:
    c = LiveClient(broker, "w1")
    await c.configure(LimiterChange(name="api", concurrency=3))
    await c.enqueue(submit("runs", limiters=("api",)))
    await c.exchange(1)
    spoil.do("DEL", "held:w1")
    assert await judged(broker, "mend", "limiter", "api") == (1, 0, 1)


async def test_a_record_is_not_made_up_for_a_task_that_waits_for_the_first_time(
    broker: RedisBroker, spoil: Spoiler
) -> None:
    c = LiveClient(broker, "w1")
    await c.enqueue(submit("waits"))
    spoil.do("ZADD", "dead:default", NOW, "waits")
    record = ("waits", 7, repr(NOW), "0", "", "0.0", "")
    assert await judged(broker, "mend", "record", *record) == (1, 0, 0)
    assert ids(await c.exchange(1)) == ["waits"]


# -- the walk ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("taken", "added"), [(0, 0), (30, 30), (400, 0), (0, 700), (450, 1800)])
async def test_a_line_that_moves_is_read_without_gaps_and_without_doubles(
    broker: RedisBroker, spoil: Spoiler, taken: int, added: int
) -> None:
    key, numbers = "line:default:2:a", itertools.count()
    spoil.do("RPUSH", key, *(next(numbers) for _ in range(2600)))
    command = (await broker.here()).server.command

    async def moving(*args: Any) -> Any:
        page = await command(*args)
        if args[0] == "LRANGE":
            if taken:
                spoil.do("LPOP", key, taken)
            if added and next(limit) < 20:
                spoil.do("RPUSH", key, *(next(numbers) for _ in range(added)))
        return page

    limit = itertools.count()
    shard = await walk(moving, broker.keys)
    found = [int(entry) for entry in shard.lists[key]]
    left = [int(entry) for entry in spoil.do("LRANGE", key, 0, -1)]
    assert len(found) == len(set(found))
    assert found == sorted(found)
    assert set(left) & set(range(2600)) <= set(found)  # all that was there all the time
