"""Many tasks due in one second, most of them of one tenant: the others do not wait for it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis

from fairlead.broker.redis import RedisBroker
from tests.support.servers import Running
from tests.support.store import NOW, Client, completed, submit

TENANTS = 50
HUGE = "t00"
DUE = NOW + 1_000.0  # and in the second that follows


async def enqueue(c: Client, total: int) -> tuple[Counter[str], dict[str, float]]:
    """So many tasks, 51 % of one tenant; how many of whom, and when each is due."""
    chance = random.Random(total)
    others = [f"t{n:02}" for n in range(1, TENANTS)]
    owners = [HUGE] * (total * 51 // 100)
    owners += [others[n % len(others)] for n in range(total - len(owners))]
    chance.shuffle(owners)
    due = {f"{chance.getrandbits(128):032x}": DUE + chance.random() for _ in owners}
    tasks = [
        submit(id, tenant, delay=at - NOW)
        for (id, at), tenant in zip(due.items(), owners, strict=True)
    ]
    for start in range(0, total, 500):
        await c.enqueue(*tasks[start : start + 500])
    return Counter(owners), due


@pytest.mark.parametrize(
    ("total", "window"),
    [
        (4_000, 500),
        pytest.param(
            *(100_000, 5_000),
            marks=(pytest.mark.long(45), pytest.mark.slow, pytest.mark.timeout(900)),
        ),
    ],
)
async def test_tenants_share_what_is_due_in_one_second(
    valkey: Running, total: int, window: int
) -> None:
    broker = RedisBroker(valkey.url, test_clock=True)
    c = Client(broker)
    left, due = await enqueue(c, total)
    assert await c.fetch(128, now=DUE) == []

    served: list[str] = []
    now = DUE + 1.0
    while leases := await c.fetch(100, now=now):
        assert all(due[lease.message.id] <= now for lease in leases)
        served += [lease.message.tenant for lease in leases]
        await c.settle(*(completed(lease) for lease in leases), now=now)
        now += 0.001
    assert Counter(served) == left

    share = window / TENANTS
    for start in range(0, total, window):
        got = Counter(served[start : start + window])
        left -= got
        busy = {tenant for tenant, many in left.items() if many > 0}  # all the time
        assert all(got[tenant] >= share - 2 for tenant in busy)
        assert max((got[t] for t in busy), default=0) - min((got[t] for t in busy), default=0) <= 2
    await broker.close()


async def test_none_is_early(valkey: Running) -> None:
    broker = RedisBroker(valkey.url, test_clock=True)
    c = Client(broker)
    left, due = await enqueue(c, 2_000)
    served = 0
    for step in range(101):
        now = DUE + step / 100
        leases = await c.fetch(128, now=now)
        assert all(due[lease.message.id] <= now for lease in leases)
        served += len(leases)
        await c.settle(*(completed(lease) for lease in leases), now=now)
    assert served == left.total()
    assert await broker.audit(now=DUE + 2) == []
    await broker.close()


async def test_what_a_call_put_elsewhere_is_not_passed_over_one_by_one(valkey: Running) -> None:
    broker = RedisBroker(valkey.url, test_clock=True)
    c = Client(broker)
    await enqueue(c, 2_000)
    await broker.promote(now=DUE - 1)
    with redis.Redis.from_url(valkey.url) as server:
        before = server.info("commandstats")["cmdstat_zrangebyscore"]["calls"]
        promoted = await broker.promote(now=DUE + 1)
        after = server.info("commandstats")["cmdstat_zrangebyscore"]["calls"]
    assert promoted.count >= TENANTS, "all of them were looked at, and have another moment now"
    assert after - before < TENANTS // 2
    await broker.close()
