"""A call costs what it moves: not what is held, how many queues there are, or how large bodies are.

Measured in processor time of the server's main thread, many against few: what is compared are the
best of several calls, so that other work of the machine does not count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.verbs import Fetch, LeaseRef
from fairlead.cli.benchmarks.server_probe import Probe
from tests.support.fair import LiveClient
from tests.support.servers import Running, server
from tests.support.store import completed, ref, submit

FEW = 200
MANY = pytest.mark.parametrize(("many", "each"), [(2_000, 1), (10_000, 128)])
pytestmark = pytest.mark.serial


@pytest.fixture
def running() -> Iterator[Running]:
    with server() as found:
        yield found


class Meter:
    """What calls take from the server, in milliseconds."""

    def __init__(self, running: Running) -> None:
        self._probe = Probe(running.url)

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

    spent = await meter.least(beat)
    calls = -(-many // 1_000)
    await broker.close()
    assert spent / calls < 5, f"{spent:.1f} ms for {calls} calls"
