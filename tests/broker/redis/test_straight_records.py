"""Tasks with records go the short ways: in, to their lines, on loan, and to their ends.

As in ``test_straight_exchange`` two brokers are asked the same, one of which has no short way, and
every answer and every key must be the same after each step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.broker.requests import MAX_STEP
from fairlead.model.options import Unique
from tests.broker.redis.straight_pair import PREFIX, Pair, everything, exchanged, made
from tests.support.long_way import inner_lua
from tests.support.store import NOW, completed, dead, submit


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made_pair = Pair(lua=inner_lua)
    try:
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit() == []
    finally:
        await made_pair.close()


OPTIONS: dict[str, dict[str, Any]] = {
    "a delay": {"delay": 0.5},
    "a moment": {"delay": 9.0, "at": NOW + 0.5},
    "a unique key until it is done": {"unique": Unique(key="k")},
    "a unique key for a window": {"unique": Unique(key="k", until="window", window=5.0)},
    "a dependency": {"after": [made(1)]},
}


@pytest.mark.parametrize("what", OPTIONS)
async def test_tasks_with_records_are_lent_and_end_straight(pair: Pair, what: str) -> None:
    await pair.enqueue(submit(made(1), "a"), submit(made(2), "b"))
    special = [submit(made(n), f"t{n}", **OPTIONS[what]) for n in range(10, 30)]
    await pair.enqueue(submit(made(3), "a"), *special)
    leases, _, loans = await exchanged(pair, [], 3, now=NOW)
    assert {lease.message.id for lease in leases} >= {made(1)}
    _, ends, _ = await exchanged(pair, [completed(lease) for lease in leases], now=NOW)
    assert (loans, ends) == (3, 3)
    leases, _, loans = await exchanged(pair, [], 60)
    assert (len(leases), loans) == (20, 20)
    _, ends, _ = await exchanged(pair, [completed(lease) for lease in leases], now=NOW + 2)
    assert ends == 20


async def test_a_key_that_is_freed_at_the_start_is_the_engines(pair: Pair) -> None:
    unique = Unique(key="k", until="started")
    await pair.enqueue(submit(made(1), "a"), submit(made(2), "a", unique=unique))
    leases, _, loans = await exchanged(pair, [], 2)
    assert (len(leases), loans) == (2, 1)
    await pair.enqueue(submit(made(3), "a", unique=unique))
    (other,), _, _ = await exchanged(pair, [], 2)
    await exchanged(pair, [completed(lease) for lease in (*leases, other)])


async def test_a_key_that_is_held_is_held_by_one(pair: Pair) -> None:
    unique = Unique(key="k")
    await pair.enqueue(submit(made(1), "a"))
    await pair.enqueue(*(submit(made(n), "a", unique=unique) for n in range(2, 5)))
    assert len((await exchanged(pair, [], 9))[0]) == 2


@pytest.mark.parametrize("width", [1, 16, 17, 70])
async def test_a_fan_out_that_is_joined_is_released_alike(pair: Pair, width: int) -> None:
    """Of few and of many dependents, and of few and of many parents."""
    wide = [made(10 + n) for n in range(width)]
    await pair.enqueue(submit(made(1), "a"), submit(made(2), "b"))
    await pair.enqueue(
        submit(made(3), "a"),
        *(submit(id, "ab"[n % 2], after=[made(1), made(3)]) for n, id in enumerate(wide)),
        submit(made(4), "a", after=wide),
    )
    leases, _, _ = await exchanged(pair, [], 9)
    ran = {lease.message.id for lease in leases}
    while leases:
        leases, _, _ = await exchanged(pair, [completed(lease) for lease in leases], 50)
        await pair.do(lambda client: client.broker.deliver(now=NOW + 1))
        leases = leases or (await exchanged(pair, [], 50))[0]
        ran |= {lease.message.id for lease in leases}
    assert ran == {made(1), made(2), made(3), made(4), *wide}


async def test_those_who_wait_for_a_task_that_is_forgotten_are_told_in_the_next_call(
    pair: Pair,
) -> None:
    parents = [made(n) for n in range(1, MAX_STEP + 11)]
    await pair.enqueue(*(submit(id) for id in parents))
    await pair.enqueue(*(submit(made(100 + n), after=[id]) for n, id in enumerate(parents)))
    leases, _, _ = await exchanged(pair, [], len(parents))
    await exchanged(pair, [dead(lease, keep=0.0) for lease in leases])
    moved = await pair.do(lambda client: client.broker.deliver(now=NOW + 1))
    assert (moved.count, moved.more) == (10, False)
    snapshot = await pair.do(lambda client: client.broker.snapshot(now=NOW + 1))
    assert snapshot.depth == 0


@pytest.mark.parametrize("how", ["enqueued", "released"])
async def test_what_sleeps_under_a_key_of_another_type_leaves_all_as_it_was(how: str) -> None:
    pair = Pair(lua=inner_lua)
    tenants = [f"t{n}" for n in range(6)]
    await pair.enqueue(
        submit(made(1), "a"), *(submit(made(10 + n), t) for n, t in enumerate(tenants))
    )
    children = [submit(made(20 + n), t, after=[made(1)]) for n, t in enumerate(tenants)]
    if how == "released":
        await pair.enqueue(*children)
    leases, _, _ = await exchanged(pair, [], 1)
    ends = [completed(lease) for lease in leases]
    for tenant in tenants:
        key, aside = f"{PREFIX}asleep:default:{tenant}", "aside"
        if how == "released":
            pair.spoil("RENAME", key, aside)
        pair.spoil("SET", key, "strange")
        before = everything(pair.servers[0])
        if how == "released":
            answer = await pair.do(lambda client: client.exchange(ends, now=NOW + 2))
        else:
            answer = await pair.do(lambda client: client.enqueue(*children, now=NOW + 2))
        assert "another type" in answer[1]
        assert everything(pair.servers[0]) == before
        pair.spoil("DEL", key)
        if how == "released":
            pair.spoil("RENAME", aside, key)
    await pair.close()
