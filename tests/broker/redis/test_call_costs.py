"""A call costs what it moves: not what is held, how many queues there are, or how large bodies are.

Measured in processor time of the server's main thread, many against few: what is compared are the
best of several calls, so that other work of the machine does not count.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from benchmarks.server_probe import Probe
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import (
    MAX_TOMBS,
    Fetch,
    LeaseRef,
    LimiterChange,
    QueueChange,
    TenantChange,
)
from tests.broker.redis.sample import PREFIX
from tests.support.fair import LiveClient
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, ref, submit

FEW = 200
MANY = pytest.mark.parametrize(
    ("many", "each"), [(2_000, 1), pytest.param(10_000, 128, marks=pytest.mark.slow)]
)
pytestmark = pytest.mark.serial


@pytest.fixture
def running() -> Iterator[Running]:
    with server() as found:
        yield found


# A call is short if it takes less than this does: 6 to 20 ms, as fast as the machine is. What
# reads all that there is in one call takes several times as long.
YARDSTICK = "local t = {} for i = 1, 15000 do t[i % 64] = tostring(i) .. 'x' end return #t"


class Meter:
    """What calls take from the server, in milliseconds."""

    def __init__(self, running: Running) -> None:
        self._probe, self._running = Probe(running.url), running

    def read(self) -> float:
        found = self._probe.info("cpu")
        return 1000 * sum(float(found[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))

    def close(self) -> None:
        self._probe.close()

    async def least(self, call: Callable[[], Awaitable[object]], times: int = 5) -> float:
        best = 1e9
        for _ in range(times):
            before = self.read()
            await call()
            best = min(best, self.read() - before)
        return best

    async def short(self) -> float:
        """What a short call takes at most on this machine."""

        async def loop() -> None:
            self._running.admin("EVAL", YARDSTICK, 0)

        return await self.least(loop, 10)


@pytest.fixture
def meter(running: Running) -> Iterator[Meter]:
    found = Meter(running)
    yield found
    found.close()


async def lend(c: LiveClient, count: int, each: int) -> list[LeaseRef]:
    """Lend so many tasks, a few with each exchange."""
    refs: list[LeaseRef] = []
    for start in range(0, count, 500):
        await c.enqueue(*(submit(f"{c.incarnation}.{start + i}") for i in range(500)))
    while len(refs) < count:
        fetch = Fetch(queues=("default",), max=min(each, count - len(refs)))
        reply = await c.broker.exchange(c.call(), fetch=fetch)
        refs += [ref(lease, c.incarnation) for lease in reply.leased]
    return refs


@MANY
async def test_giving_back_costs_what_goes_back_however_much_is_held(
    running: Running, meter: Meter, many: int, each: int
) -> None:
    broker = RedisBroker(running.url)
    spent = {}
    for name, count in (("few", FEW), ("many", many)):
        c = LiveClient(broker, name)
        await lend(c, count, each)
        spent[name] = await meter.least(partial(broker.give_back, name), 3)
        while (await broker.give_back(name)).more:
            pass
        await c.broker.purge(c.call(), "default")
        while (await c.broker.purge(c.call(), "default")).more:
            pass
    await broker.close()
    assert spent["many"] < 2 * spent["few"] + 1, spent


async def test_what_has_ended_is_not_read_again_when_the_rest_goes_back(running: Running) -> None:
    broker = RedisBroker(running.url)
    c = LiveClient(broker, "w")
    await c.enqueue(*(submit(f"t.{i}") for i in range(128)))
    fetch = Fetch(queues=("default",), max=128)
    leases = (await broker.exchange(c.call(), fetch=fetch)).leased
    for some in (leases[1:3], leases[3:127]):  # few, and many at a time
        await broker.exchange(c.call(), [completed(lease) for lease in some])
    (member,) = running.admin("ZRANGE", "fl1:{0}:held:w", 0, -1)
    assert member.decode().split("\x1f")[1:] == ["t.0", "t.127"]
    assert (await broker.give_back("w")).count == 2
    assert running.admin("EXISTS", "fl1:{0}:held:w", "fl1:{0}:leases") == 0
    await broker.close()


@pytest.mark.slow
@MANY
async def test_a_beat_compares_a_thousand_leases_in_a_short_call(
    running: Running, meter: Meter, many: int, each: int
) -> None:
    broker = RedisBroker(running.url)
    c = LiveClient(broker, "w")
    refs = await lend(c, many, each)

    async def beat() -> None:
        reply = await broker.beat("w", refs, answered=c.number)
        assert (reply.lost, reply.unclaimed) == ([], 0)

    spent, short = await meter.least(beat), await meter.short()
    calls = -(-many // 1_000)
    await broker.close()
    assert spent / calls < short, f"{spent:.1f} ms for {calls} calls"


# -- reads of many queues ----------------------------------------------------------------------


class Heard(RedisBroker):
    """A broker that remembers what its calls were answered."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.heard: list[tuple[str, Any]] = []

    async def run(self, verb: str, *args: Any, **options: Any) -> Any:
        reply = await super().run(verb, *args, **options)
        self.heard.append((verb, reply))
        return reply

    def replies(self, verb: str) -> list[Any]:
        found = [reply for name, reply in self.heard if name == verb]
        self.heard.clear()
        return found


async def many_queues(broker: RedisBroker, count: int) -> LiveClient:
    c = LiveClient(broker, "w")
    for start in range(0, count, 500):
        await c.enqueue(*(submit(f"{i}.t", queue=f"q.{i}") for i in range(start, start + 500)))
    return c


async def test_no_call_of_a_snapshot_tells_of_more_than_its_share(running: Running) -> None:
    broker = Heard(running.url)
    c = await many_queues(broker, 1_500)
    for k in range(0, 1_500, 50):  # 2,000 tenants in what one call looks at
        tenants = [f"t{i}" for i in range(10)]
        await c.enqueue(
            *(submit(f"{q}.{t}", t, f"q.{q}") for q in range(k, k + 50) for t in tenants)
        )
    await c.enqueue(*(submit(f"x.{i}", f"t{i}", "x") for i in range(190)))
    for part in range(4):  # one that has more by itself
        await c.enqueue(*(submit(f"wide.{part}.{i}", f"t{part}.{i}", "wide") for i in range(190)))
    broker.heard.clear()

    found = await broker.snapshot()

    shares = [reply[6] for reply in broker.replies("snapshot")]
    assert len(found.queues) == 1_502
    assert sum(len(queue.tenants) for queue in found.queues.values()) == 1_500 * 11 + 190 + 760
    assert len(found.queues["wide"].tenants) == 4 * 190
    assert len(shares) < 2 * 1_500 * 11 / 500
    for queues in shares:
        told = [len(each) // 2 for each in queues[4::6]]
        assert sum(told) <= 500 or max(told) > 500 > sum(told) - max(told), "tenants"

    assert len((await broker.snapshot(tenants=False)).queues) == 1_502
    looked = [len(reply[6]) // 6 + len(reply[3]) for reply in broker.replies("snapshot")]
    assert max(looked) < 2 * 200, "queues"

    await broker.snapshot("x")
    await broker.snapshot("x", tenants=False)
    assert [len(reply[6][4]) // 2 for reply in broker.replies("snapshot")] == [190, 0]
    await broker.close()


async def test_what_limiters_are_told_of_is_shared_between_calls(running: Running) -> None:
    broker = Heard(running.url)
    c = LiveClient(broker, "w")
    names = [f"q.{i}" for i in range(250)]
    limiters = [f"l.{i}" for i in range(5)]
    await broker.configure(c.call(), [LimiterChange(name=name, concurrency=1) for name in limiters])
    for name in limiters:
        await c.enqueue(*(submit(f"{q}.{name}", name, q, limiters=(name,)) for q in names))
        await broker.exchange(c.call(), fetch=Fetch(queues=tuple(names), max=100))
    broker.heard.clear()

    found = await broker.snapshot()

    assert [found.limiters[name].waiting for name in limiters] == [249] * len(limiters)
    assert {each.used for each in found.limiters.values()} == {1}
    assert max(len(reply[5]) // 3 for reply in broker.replies("snapshot")) <= 2  # 500 of lobbies
    await broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("read", ["snapshot", "stats", "workers", "tidy"])
async def test_thousands_of_queues_and_workers_are_read_in_short_calls(
    running: Running, meter: Meter, read: str
) -> None:
    broker = Heard(running.url)
    await many_queues(broker, 5_000)
    for i in range(2_000 if read == "workers" else 0):
        record = WorkerRecord(incarnation=f"w{i}", host="h" * 40, queues=("default",) * 20)
        await broker.beat(record.incarnation, worker=record)
    broker.heard.clear()
    await getattr(broker, read)()
    calls = len(broker.heard)
    spent, short = await meter.least(getattr(broker, read)), await meter.short()
    await broker.close()
    assert spent / calls < short, f"{spent:.1f} ms for {calls} calls"
    assert (calls > 8) == (read != "tidy")


async def test_a_tenant_is_configured_where_it_is_known_and_other_queues_are_not_read(
    running: Running, meter: Meter
) -> None:
    broker = RedisBroker(running.url)
    c = await many_queues(broker, 5_000)
    await c.enqueue(submit("t", "acme", "q.7"))

    async def configure() -> None:
        await broker.configure(c.call(), [TenantChange(tenant="acme", paused=True)])

    spent = await meter.least(configure)
    assert (await broker.exchange(c.call(), fetch=Fetch(queues=("q.7",), max=5))).leased[1:] == []
    read = await meter.least(partial(broker.snapshot, tenants=False))
    await broker.close()
    assert spent < read / 4, f"{spent:.1f} ms; to read all queues takes {read:.1f}"


async def test_making_room_for_chosen_ids_is_not_looked_for_one_by_one(running: Running) -> None:
    broker = RedisBroker(running.url, test_clock=True)
    c = Client(broker)
    await c.configure(QueueChange(queue="default", keep_completed_count=1))
    await c.settle(*map(completed, await c.run(*(submit(f"first.{n}") for n in range(3)))))
    known = f"{PREFIX}tombs"
    stone = running.admin("HGET", known, "first.0")
    names = [f"old.{n}" for n in range(MAX_TOMBS)]
    for start in range(0, MAX_TOMBS, 1000):
        part = names[start : start + 1000]
        till = struct.unpack_from("<d", stone)[0]
        running.admin("ZADD", f"{known}:a", *(each for id in part for each in (till, id)))
        running.admin("HSET", known, *(each for id in part for each in (id, stone)))
    running.set_numbers(tombs=running.numbers()["tombs"] + MAX_TOMBS)
    leases = await c.run(*(submit(f"t.{n}") for n in range(100)))
    running.admin("CONFIG", "RESETSTAT")
    assert set(await c.settle(*map(completed, leases), now=NOW + 1.0)) == {"applied"}
    asked = running.admin("INFO", "commandstats")["cmdstat_zrange"]["calls"]
    assert asked < 100, "not once or more for each"
    await broker.close()
