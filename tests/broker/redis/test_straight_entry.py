"""Calls whose tasks have records go before the engine, and store what the engine stores.

As in ``test_straight_way`` two brokers are asked the same, one of which has no straight way, and
every answer and every key must be the same after each step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Moved, QueueChange, Submission, TenantChange
from fairlead.model.options import Dependency, Unique
from tests.broker.redis.straight_pair import (
    LARGE,
    PREFIX,
    Pair,
    begun,
    everything,
    exchanged,
    made,
)
from tests.support.store import NOW, Client, completed, submit


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Both know the queue, and in it the tenants a and b; a has something to do, b has not."""
    made_pair = Pair()
    try:
        await begun(made_pair)
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit(now=NOW + 60) == []
    finally:
        await made_pair.close()


def keyed(number: int, tenant: str = "a", key: str = "", **how: Any) -> Submission:
    return submit(made(number), tenant, unique=Unique(key=key or f"k{number}", **how))


def behind(number: int, *parents: int, tenant: str = "a", **options: Any) -> Submission:
    return submit(made(number), tenant, after=[made(each) for each in parents], **options)


async def promoted(client: Client, at: float) -> Moved:
    return await client.broker.promote(now=at)


async def delivered(client: Client, at: float) -> Moved:
    return await client.broker.deliver(now=at)


async def run_off(pair: Pair) -> None:
    """Complete whatever can run, half a minute later."""
    for at in (NOW + 1, NOW + 30):
        await pair.do(partial(promoted, at=at))
        leases, _, _ = await exchanged(pair, [], 50, now=at)
        while leases:
            ends = [completed(lease) for lease in leases]
            leases, _, _ = await exchanged(pair, ends, 50, now=at)
            await pair.do(partial(delivered, at=at))
            leases = leases or (await exchanged(pair, [], 50, now=at))[0]


# -- what goes straight ------------------------------------------------------------------------

RECORDED: dict[str, Sequence[Submission]] = {
    "a delay": [submit(made(10), delay=5.0)],
    "a delay of a tenant that had nothing to do": [submit(made(10), "b", delay=5.0)],
    "delays of several tenants": [submit(made(n), "abc"[n % 3], delay=5.0) for n in range(10, 30)],
    "several delays": [submit(made(n), "ab"[n % 2], delay=n % 7 / 2) for n in range(10, 30)],
    "a moment": [submit(made(10), delay=9.0, at=NOW + 5)],
    "a moment that is over": [submit(made(10), delay=9.0, at=NOW - 5), keyed(11)],
    "unique keys": [keyed(n, "ab"[n % 2]) for n in range(10, 30)],
    "a key until a task starts": [keyed(n, until="started") for n in (10, 11)],
    "a key for a time": [keyed(n, until="window", window=3.0) for n in (10, 11)],
    "the same key of two tenants": [keyed(10, "a", "k"), keyed(11, "b", "k")],
    "a key and a delay": [submit(made(10), unique=Unique(key="k"), delay=5.0)],
    "a dependency": [submit(made(10)), behind(11, 10)],
    "every second": [behind(n, *[n - 1][: n % 2], tenant="abcd"[n % 4]) for n in range(10, 40)],
    "one behind the other": [behind(n, *range(max(10, n - 1), n)) for n in range(10, 20)],
    "of another tenant": [submit(made(10)), behind(11, 10, tenant="b")],
    "a dependency and a delay": [submit(made(10)), behind(11, 10, delay=5.0)],
    "a dependency and a key": [submit(made(10)), behind(11, 10, unique=Unique(key="k"))],
    "dependencies with policies": [
        keyed(10),
        *(behind(n, 10, policy=("cancel", "wait", "run")[n % 3]) for n in range(11, 17)),
    ],
    "a parent that has a record": [submit(made(10), delay=5.0), behind(11, 10)],
    "as many dependents as stand with a parent": [
        submit(made(10)),
        *(behind(n, 10, tenant="ab"[n % 2]) for n in range(11, 27)),
    ],
    "as many parents as stand with a child": [
        *(submit(made(n)) for n in range(10, 26)),
        behind(30, *range(10, 26)),
    ],
    "plain ones among them": [
        submit(made(n), "ab"[n % 3 == 0], delay=float(n % 2)) for n in range(10, 40)
    ],
    "several levels": [
        submit(made(n), level=n % 4, unique=Unique(key=f"{n}")) for n in range(10, 30)
    ],
    "several bodies": [
        submit(made(n), delay=5.0, body=b"x" * (n % 3), trace=b"t" * (n % 2)) for n in range(10, 30)
    ],
    "costs and limiters": [
        submit(made(10), delay=5.0, cost=2.5),
        submit(made(11), unique=Unique(key="k"), limiters=("gpu",)),
    ],
    "as many as a call may have": [submit(made(n), delay=float(n % 2)) for n in range(10, 510)],
}


@pytest.mark.parametrize("what", RECORDED)
async def test_tasks_with_records_go_straight(pair: Pair, what: str) -> None:
    assert await pair.enqueue(*RECORDED[what]) == 1
    await run_off(pair)


async def test_a_tenant_is_looked_at_when_its_first_task_is_due(pair: Pair) -> None:
    for n, delay in enumerate((5.0, 9.0, 3.0, 3.0)):
        assert await pair.enqueue(submit(made(10 + n), "b", delay=delay)) == 1
    await run_off(pair)


@pytest.mark.parametrize(("delay", "told"), [(2.0, 1), (4.9, 1), (5.0, 0), (9.0, 0)])
async def test_who_waits_wakes_for_what_is_due_earlier(delay: float, told: int) -> None:
    pair = Pair()
    await pair.enqueue(submit(made(1)))
    await exchanged(pair, [], 1, now=NOW)

    async def look(client: Client) -> Any:
        assert isinstance(client.broker, RedisBroker)
        return await client.broker.run("can_fetch", [f"t{NOW!r}", "", 5.0, "default"])

    await pair.do(look)  # it has the alarm, in five seconds
    pair.spoil("DEL", f"{PREFIX}bell")
    assert await pair.enqueue(submit(made(10), "b", delay=delay)) == 1
    assert pair.servers[0].llen(f"{PREFIX}bell") == told
    await pair.close()


async def test_a_repeated_call_gets_the_same_answer(pair: Pair) -> None:
    tasks = [keyed(10), submit(made(11), delay=5.0), behind(12, 11)]
    assert await pair.enqueue(*tasks) == 1
    again = await pair.again(0, tasks)
    assert [receipt.code for receipt in again] == ["accepted"] * 3


# -- what is left to the engine ----------------------------------------------------------------

LEFT: dict[str, Sequence[Submission]] = {
    "a chosen id": [submit("order-1", delay=5.0)],
    "a chosen id of the same length": [submit("order:1".ljust(32, "-"), delay=5.0)],
    "a known id": [submit(made(3), delay=5.0)],
    "an id that comes twice": [submit(made(10), delay=5.0), submit(made(10), delay=5.0)],
    "a deadline": [submit(made(10), delay=5.0, deadline=9.0)],
    "a key that is held": [keyed(10, key="held")],
    "a key that comes twice": [keyed(10, key="k"), keyed(11, key="k")],
    "a parent of an earlier call": [behind(10, 3)],
    "a parent that comes later": [behind(10, 11), submit(made(11))],
    "itself": [behind(10, 10)],
    "one dependent too many": [submit(made(10)), *(behind(n, 10) for n in range(11, 28))],
    "one parent too many": [
        *(submit(made(n)) for n in range(10, 27)),
        behind(30, *range(10, 27)),
    ],
    "a parent that is named twice": [
        submit(made(10)),
        submit(made(11), after=[made(10), Dependency(made(10), known=True)]),
    ],
    "a result that it will read": [submit(made(10)), behind(11, 10, uses=True)],
    "a large body": [submit(made(10), delay=5.0, body=LARGE)],
    "a level that few use": [submit(made(10), delay=5.0, level=5)],
    "a queue that is new": [submit(made(10), queue="other", delay=5.0)],
    "two queues": [submit(made(10), delay=5.0), submit(made(11), queue="other", delay=5.0)],
}


@pytest.mark.parametrize("what", LEFT)
async def test_what_is_unusual_is_left_to_the_engine(pair: Pair, what: str) -> None:
    assert await pair.enqueue(keyed(9, key="held")) == 1
    assert await pair.enqueue(*LEFT[what]) == 0
    await run_off(pair)


LIMITS: dict[str, QueueChange | TenantChange] = {
    "a pause of the queue": QueueChange(queue="default", paused=True),
    "a queue that may be full": QueueChange(queue="default", max_waiting=2),
    "a tenant that may be": QueueChange(queue="default", max_tenant_waiting=2),
    "a depth to warn of": QueueChange(queue="default", warn_depth=2),
    "a limit on what runs": QueueChange(queue="default", concurrency=1),
    "a rate": QueueChange(queue="default", rate=0.1),
}


@pytest.mark.parametrize("what", LIMITS)
async def test_limits_of_a_queue_are_the_engines(pair: Pair, what: str) -> None:
    await pair.do(lambda client: client.configure(LIMITS[what]))
    assert await pair.enqueue(*(submit(made(n), delay=5.0) for n in range(10, 14))) == 0


async def test_a_tenant_that_is_paused_may_have_tasks_that_sleep(pair: Pair) -> None:
    await pair.do(lambda client: client.configure(TenantChange(tenant="a", paused=True)))
    assert await pair.enqueue(keyed(10)) == 0
    assert await pair.enqueue(submit(made(11), delay=5.0)) == 1
    await run_off(pair)


async def test_a_new_tenant_is_the_engines_where_tenants_have_settings(pair: Pair) -> None:
    await pair.do(lambda client: client.configure(TenantChange(tenant="c", weight=3.0)))
    assert await pair.enqueue(submit(made(10), "c", delay=5.0)) == 0
    assert await pair.enqueue(submit(made(11), "c", delay=5.0), keyed(12, "c")) == 1
    await run_off(pair)


@pytest.mark.parametrize("options", [{"delay": 5.0}, {"unique": Unique(key="k")}])
async def test_bytes_are_counted_up_to_the_limit(pair: Pair, options: dict[str, Any]) -> None:
    """The last task that fits goes straight, and is one byte too large for the engine."""
    change = QueueChange(queue="default", max_tenant_bytes=1_000)
    await pair.do(lambda client: client.configure(change))
    held = 2 * (100 + 1)  # one runs, one waits
    for n, body in ((10, 1_000 - held - 100 + 1), (11, 1_000 - held - 100)):
        assert await pair.enqueue(submit(made(n), body=b"x" * body, **options)) == n - 10


@pytest.mark.parametrize("options", [{"delay": 5.0}, {"unique": Unique(key="k")}])
async def test_another_hour_is_begun_by_the_engine(pair: Pair, options: dict[str, Any]) -> None:
    assert await pair.enqueue(submit(made(10), **options), now=NOW + 3600) == 0
    assert await pair.enqueue(submit(made(11), delay=5.0), keyed(12), now=NOW + 3600) == 1


async def test_a_block_of_events_is_closed_by_the_engine() -> None:
    pair = Pair(event_bytes=16 * 400)
    taken = [await pair.enqueue(submit(made(n), delay=5.0)) for n in range(1, 40)]
    assert 0 in taken[1:]
    assert 1 in taken
    await pair.close()


# -- what the server refuses -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "line:default:2:a",
        "line:default:2:b",
        "asleep:default:a",
        "asleep:default:b",
        "records",
        "unique",
        "windows",
        "ties",
        "before",
        "due",
        "idle",
        "ready:default",
        "active:default",
        "events",
    ],
)
async def test_keys_of_another_type_leave_all_as_it_was(name: str) -> None:
    pair = Pair()
    await begun(pair)
    pair.spoil("DEL", PREFIX + name)
    pair.spoil("SET", PREFIX + name, "strange")
    before = everything(pair.servers[0])
    tasks = [
        *(keyed(10 + n, tenant) for n, tenant in enumerate("aab")),
        keyed(13, "b", until="window", window=3.0),
        *(submit(made(14 + n), tenant, delay=5.0) for n, tenant in enumerate("abb")),
        behind(17, 10),
    ]
    later = NOW + 61  # within a minute of its last call nobody looks into 'idle'
    answer = await pair.do(lambda client: client.enqueue(*tasks, now=later))
    assert "another type" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()


async def test_what_sleeps_under_a_key_of_another_type_leaves_that_of_others_as_it_was() -> None:
    """Whichever it is: the engine, which tries again, writes them in another order."""
    pair = Pair()
    await begun(pair)
    tenants = [f"t{n}" for n in range(6)]
    tasks = [submit(made(10 + n), tenant, delay=5.0) for n, tenant in enumerate(tenants)]
    for tenant in tenants:
        key = f"{PREFIX}asleep:default:{tenant}"
        pair.spoil("SET", key, "strange")
        before = everything(pair.servers[0])
        answer = await pair.do(lambda client: client.enqueue(*tasks))
        assert "another type" in answer[1]
        assert everything(pair.servers[0]) == before
        pair.spoil("DEL", key)
    await pair.close()


async def test_an_entry_that_the_server_refuses_leaves_all_as_it_was() -> None:
    pair = Pair()
    await begun(pair)
    pair.spoil("XADD", f"{PREFIX}events", f"{2**60}-0", "at", "0", "rows", "")
    before = everything(pair.servers[0])
    tasks = [keyed(10), keyed(11, "b"), submit(made(12), delay=5.0), behind(13, 12, tenant="b")]
    answer = await pair.do(lambda client: client.enqueue(*tasks))
    assert "equal or smaller" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()
