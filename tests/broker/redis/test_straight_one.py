"""Calls of exchange in which one task ends and one is lent at most store what the engine stores.

Each test asks two brokers the same, on two databases: one has the straight ways, the other not.
Whatever either answers, and every key of both, must be the same after each step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from fairlead.broker.requests import Call, Fetch, LimiterChange, QueueChange, TenantChange
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.broker.redis.straight_pair import PREFIX, Pair, everything, made
from tests.broker.redis.test_straight_small import Moderate
from tests.support.long_way import ONE
from tests.support.store import NOW, Client, completed, dead, failed, submit

QUEUES = ("default",)


async def exchanged(
    pair: Pair, ends: list[Settlement], wanted: int = 1, *, now: float = NOW + 1, start: int = 1
) -> tuple[list[Leased], bool]:
    """What was lent, and whether the call was taken as one of one task."""
    before = pair.count(ONE)
    fetch = Fetch(queues=QUEUES, max=wanted, start=start)
    reply = await pair.do(lambda client: client.exchange(ends, fetch=fetch, now=now))
    return reply.leased, pair.count(ONE) > before


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Both have ended a task of each of the tenants a and b, so that nothing is new."""
    made_pair = Pair()
    try:
        await made_pair.enqueue(submit(made(1)), submit(made(2), "b"))
        leases, _ = await exchanged(made_pair, [], 2, start=2)
        for lease in leases:
            await exchanged(made_pair, [completed(lease)])
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit() == []
    finally:
        await made_pair.close()


async def _asked(client: Client, call: Call, ends: list[Settlement]) -> Any:
    fetch = Fetch(queues=QUEUES, max=1)
    return await client.broker.exchange(call, ends, fetch=fetch, now=NOW + 2)


async def _asked_again(client: Client, back: int, ends: list[Settlement]) -> Any:
    """Ask under the last number, or one before it."""
    return await _asked(client, Call(client.incarnation, client.number - back), ends)


# -- what goes straight ------------------------------------------------------------------------


@pytest.mark.parametrize("tenants", ["a", "ab"])
@pytest.mark.parametrize("level", range(4))
async def test_one_ends_and_the_next_is_lent(pair: Pair, tenants: str, level: int) -> None:
    many = len(tenants)
    tasks = [submit(made(n + 10), tenants[n % many], level=level, cost=2.0) for n in range(12)]
    await pair.enqueue(*tasks)
    leases, _ = await exchanged(pair, [])
    for turn in range(12):  # behind the last one nothing is found
        ends = [completed(leases[0], run_time=0.3 * turn)]
        leases, one = await exchanged(pair, ends, now=NOW + 1 + turn)
        assert (len(leases), one) == (turn < 11, True)


async def test_who_asks_for_more_than_the_one_that_waits_gets_it(pair: Pair) -> None:
    await pair.enqueue(submit(made(10)))
    leases, _ = await exchanged(pair, [])
    for turn in range(20):
        await pair.enqueue(submit(made(11 + turn), "ab"[turn % 2]), now=NOW + turn)
        leases, one = await exchanged(pair, [completed(leases[0])], 10, now=NOW + 30 * turn)
        assert (len(leases), one) == (1, True)


async def test_a_tenant_that_holds_much_keeps_an_order_of_its_own(pair: Pair) -> None:
    """From a 64th of what the queue keeps on."""
    change = QueueChange(queue="default", keep_completed_count=256)
    await pair.do(lambda client: client.configure(change))
    await pair.do(lambda client: client.broker.tidy(now=NOW))
    await pair.enqueue(*(submit(made(10 + n), "aab"[n % 3]) for n in range(40)))
    leases, _ = await exchanged(pair, [])
    ways = []
    for turn in range(40):
        leases, one = await exchanged(pair, [completed(leases[0])], now=NOW + 1 + turn)
        ways.append(one)
    assert ways.count(False) < 4, "but when the order begins"
    assert ways[-5:] == [True] * 5


async def test_neither_are_dead_tasks_in_the_way_nor_a_weight(pair: Pair) -> None:
    await pair.do(lambda client: client.configure(TenantChange(tenant="a", weight=3.0)))
    await pair.enqueue(*(submit(made(n + 10), "ab"[n % 2]) for n in range(9)))
    leases, _ = await exchanged(pair, [])
    leases, _ = await exchanged(pair, [dead(leases[0])])
    leases, one = await exchanged(pair, [completed(leases[0])])
    leases, again = await exchanged(pair, [completed(leases[0])])
    assert one
    assert again


async def test_one_of_several_that_were_lent_by_a_call_ends(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n + 10), "ab"[n % 2]) for n in range(9)))
    leases, _ = await exchanged(pair, [], 5, start=5)
    for lease in leases:
        assert (await exchanged(pair, [completed(lease)]))[1]


async def test_a_repeated_call_gets_the_same_answer(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(3)))
    leases, _ = await exchanged(pair, [])
    ends = [completed(leases[0])]
    leases, one = await exchanged(pair, ends)
    assert one
    for back in (0, 1):
        answer = await pair.do(partial(_asked_again, back=back, ends=ends))
        assert "OutOfOrder" in str(answer) if back else answer.leased == leases


async def test_who_asks_for_more_where_more_wait_gets_all(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(4)))
    leases, _ = await exchanged(pair, [])
    leases, one = await exchanged(pair, [completed(leases[0])], 10, start=10)
    assert (len(leases), one) == (3, False)


# -- what does not -----------------------------------------------------------------------------

UNUSUAL: dict[str, Callable[[Leased], Settlement]] = {
    "a failure": failed,
    "a death": dead,
    "a result": lambda lease: completed(lease, result=b"r"),
    "a time of its own": lambda lease: completed(lease, keep=5.0),
}


@pytest.mark.parametrize("what", UNUSUAL)
async def test_an_unusual_end_is_not_for_it(pair: Pair, what: str) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(3)))
    leases, _ = await exchanged(pair, [])
    assert not (await exchanged(pair, [UNUSUAL[what](leases[0])]))[1]


NEXT: dict[str, dict[str, Any]] = {
    "a limiter": {"limiters": ("gpu",)},
    "a unique key": {"unique": Unique(key="k")},
    "a low level": {"level": 5},
}


@pytest.mark.parametrize("what", NEXT)
@pytest.mark.parametrize("tenant", "ab")
async def test_neither_is_an_unusual_task_that_comes_next(
    pair: Pair, what: str, tenant: str
) -> None:
    """What was taken from its line is put back."""
    await pair.do(lambda client: client.configure(LimiterChange(name="gpu", concurrency=1)))
    await pair.enqueue(submit(made(10)), submit(made(11), tenant, **NEXT[what]))
    leases, _ = await exchanged(pair, [])
    leases, one = await exchanged(pair, [completed(leases[0])])
    assert (len(leases), one) == (1, False)
    await exchanged(pair, [completed(leases[0])])


CHANGES: dict[str, QueueChange | TenantChange] = {
    "a pause": QueueChange(queue="default", paused=True),
    "a limit": QueueChange(queue="default", concurrency=5),
    "a rate": QueueChange(queue="default", rate=5.0),
    "a full room": QueueChange(queue="default", keep_completed_count=2),
    "few bytes": QueueChange(queue="default", keep_completed_bytes=200),
    "a limit of the tenant": TenantChange(tenant="a", concurrency=5),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_neither_are_limits_and_room(pair: Pair, what: str) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(3)))
    leases, _ = await exchanged(pair, [])
    await pair.do(lambda client: client.configure(CHANGES[what]))
    await pair.do(lambda client: client.broker.tidy(now=NOW))
    assert not (await exchanged(pair, [completed(leases[0])]))[1]


async def test_where_room_is_full_somebody_gives(pair: Pair) -> None:
    change = QueueChange(queue="default", keep_completed_count=20)
    await pair.do(lambda client: client.configure(change))
    await pair.do(lambda client: client.broker.tidy(now=NOW))
    await pair.enqueue(*(submit(made(10 + n), "ab"[n % 2]) for n in range(30)))
    leases, _ = await exchanged(pair, [])
    ways = []
    for turn in range(30):
        leases, one = await exchanged(pair, [completed(leases[0])], now=NOW + 1 + turn)
        ways.append(one)
    assert True in ways
    assert ways[-8:] == [False] * 8


async def test_neither_is_one_that_somebody_waits_for(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(3)))
    leases, _ = await exchanged(pair, [])
    await pair.do(lambda client: client.broker.watch("other", [made(10)], now=NOW))
    assert not (await exchanged(pair, [completed(leases[0])]))[1]


async def test_nor_one_that_is_held_or_on_loan_to_another_or_not_any_more(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(9)))
    before = pair.count(ONE)
    leases, _ = await exchanged(pair, [], 3)
    assert not (await exchanged(pair, [completed(leases[2])]))[1], "held"
    for call in (Call("w2", 1), Call("w2", 2)):  # a name of the same length
        await pair.do(partial(_asked, call=call, ends=[completed(leases[0])]))
    assert (await exchanged(pair, [completed(leases[0])]))[1]
    assert not (await exchanged(pair, [completed(leases[0])]))[1], "over"
    assert pair.count(ONE) == before + 1


async def test_a_token_of_an_earlier_loan_is_the_engines(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n + 10)) for n in range(3)))
    leases, _ = await exchanged(pair, [])
    end = completed(leases[0])
    earlier = msgspec.structs.replace(end, token=end.token - 1)
    assert not (await exchanged(pair, [earlier]))[1]
    assert (await exchanged(pair, [end]))[1]


async def test_a_full_block_of_events_is_the_engines() -> None:
    pair = Pair(event_bytes=10_000)
    await pair.enqueue(*(submit(made(n)) for n in range(10, 90)))
    leases, _ = await exchanged(pair, [])
    ways = set()
    for turn in range(60):
        leases, one = await exchanged(pair, [completed(leases[0])], now=NOW + turn)
        ways.add(one)
    assert ways == {True, False}
    await pair.close()


STRANGE = (
    *("line:default:2:a", "ready:default", "events", "saved:default", "kept:default"),
    *("held:w1", "leases", "idle", "tenants:default", "tasks", "records", "queues", "answers"),
)


@pytest.mark.parametrize("name", STRANGE)
async def test_a_key_of_another_type_leaves_all_as_it_was(name: str) -> None:
    pair = Pair()
    await pair.enqueue(*(submit(made(n)) for n in range(1, 9)))
    leases, _ = await exchanged(pair, [], 2, start=2)
    await exchanged(pair, [completed(leases[0])])
    pair.spoil("DEL", PREFIX + name)
    pair.spoil("SET", PREFIX + name, "strange")
    before = everything(pair.servers[0])
    fetch = Fetch(queues=QUEUES, max=1)
    later = NOW + 90
    answer = await pair.do(
        lambda client: client.exchange([completed(leases[1])], fetch=fetch, now=later)
    )
    assert "another type" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()


# -- histories ---------------------------------------------------------------------------------


class Trickle(Moderate):
    """A worker that keeps up: one task at a time, of one queue."""

    queues: tuple[str, ...] = QUEUES
    batches: tuple[int, ...] = (1, 1, 1, 2)
    wants: tuple[int, ...] = (1, 1, 1, 1, 5)
    shares: tuple[float, ...] = (0.0, 1.0, 1.0, 1.0)
    unusuals: tuple[float, ...] = (0.0, 0.01)
    many: tuple[int, ...] = (1, 2, 5)
    part_held = 0.05
    limiting = 0.03
    rooms: tuple[int, ...] = (64, 200, 1_000)


@pytest.mark.parametrize(
    "seeds", [range(2), *(pytest.param(range(n, n + 4), marks=pytest.mark.slow) for n in (2, 6))]
)
async def test_histories_leave_the_same_with_and_without_it(seeds: range) -> None:
    taken = 0
    for seed in seeds:
        history = Trickle(seed)
        await history.run(250, stride=2)
        taken += history.one
    assert taken > 4 * len(seeds)
