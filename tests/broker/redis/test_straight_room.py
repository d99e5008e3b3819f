"""Room is made for what ended: the straight way of exchange beside the engine, byte for byte.

As in test_straight_small.py, of which this has the calls in which room for finished tasks is full
and tenants have orders of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from fairlead.broker.requests import Alter, QueueChange, TenantChange
from fairlead.model.lifecycle import Settlement
from tests.broker.redis.straight_pair import PREFIX, Pair, everything, made
from tests.broker.redis.test_straight_small import Overrun, exchanged
from tests.support.store import NOW, Client, completed, submit

_MANY = 40  # tenants: each holds more than a 64th of the room, and less than a 32nd


async def _altered(client: Client, orders: list[Alter], now: float) -> Any:
    return await client.alter(*orders, now=now)


class Filled:
    """A pair whose room is full; tenants end tasks in turn, or some of them more than others."""

    def __init__(self, pair: Pair, room: int) -> None:
        self.pair, self.room, self.number, self.now = pair, room, 100, NOW + 1
        # A library backs off from queues of this name for all tests on its server.
        self.queue = f"room-{uuid4().hex}"
        self.ends: list[Settlement] = []

    async def run(
        self, tenants: Sequence[str], calls: int, size: int = 60, result: bytes = b""
    ) -> list[bool]:
        """Run so many tasks of these tenants in each call; which calls went straight."""
        ways = []
        for call in range(calls):
            ids = range(self.number, self.number + size)
            self.number += size
            names = (tenants[(n + call) % len(tenants)] for n in range(size))
            await self.pair.enqueue(
                *(submit(made(id), name, self.queue) for id, name in zip(ids, names, strict=True)),
                now=self.now,
            )
            self.now += 0.125
            leases, straight = await exchanged(
                self.pair, self.ends, size, now=self.now, queues=(self.queue,)
            )
            self.ends = [completed(lease, result) for lease in leases]
            ways.append(straight)
        return ways

    async def keep(self, room: int, bytes: int = 10_000_000) -> None:
        change = QueueChange(
            queue=self.queue, keep_completed_count=room, keep_completed_bytes=bytes
        )
        await self.pair.do(lambda client: client.configure(change, now=self.now))
        await self.pair.do(lambda client: client.broker.tidy(now=self.now))


@pytest.fixture
async def filled() -> AsyncIterator[Filled]:
    pair = Pair()
    try:
        made_filled = Filled(pair, 320)
        await made_filled.keep(320)
        yield made_filled
        for client in pair.clients:
            assert await client.broker.audit() == []
    finally:
        await pair.close()


def names(count: int) -> list[str]:
    return [f"t{n}" for n in range(count)]


async def test_where_all_hold_about_the_same_the_oldest_go_straight(filled: Filled) -> None:
    """First those in the order of all, then those in the orders of forty tenants, in turn."""
    ways = await filled.run(names(_MANY), 20)
    assert sum(ways[-10:]) >= 9
    server = filled.pair.servers[0]
    assert server.llen(f"{PREFIX}kept:{filled.queue}") < 20
    assert server.zcard(f"{PREFIX}heads-done:{filled.queue}") == _MANY


@pytest.mark.parametrize("size", [20, 97, 128])
async def test_calls_of_any_size_give_the_same(filled: Filled, size: int) -> None:
    ways = await filled.run(names(_MANY), max(20, 800 // size), size)
    assert sum(ways[-8:]) >= 4


@pytest.mark.parametrize("tenants", [2, 3, 5, 12])
async def test_several_that_hold_much_give_straight(filled: Filled, tenants: int) -> None:
    await filled.run(names(tenants), 8)
    ways = await filled.run(names(tenants)[1:], 3)
    ways += await filled.run(names(tenants), 6, 100)
    assert sum(ways) >= 6, "one that comes to hold much is the engine's"


async def test_who_holds_much_gives_until_it_does_not_and_then_the_oldest_go(
    filled: Filled,
) -> None:
    await filled.run(names(_MANY), 14)
    ways = await filled.run(["t1", "t2", "t3"], 1, 17)  # they hold a little more than a 32nd
    ways += await filled.run(names(_MANY), 4, 90)
    assert sum(ways) >= 4
    ways = await filled.run(["t5"], 2, 100)  # one holds nearly all of that call
    ways += await filled.run(names(_MANY), 3, 90)
    assert sum(ways) >= 1


async def test_tasks_that_were_cancelled_stand_beside_those_that_completed(filled: Filled) -> None:
    await filled.run(names(_MANY), 8)
    ids = [made(90_000 + n) for n in range(2 * _MANY)]
    await filled.pair.enqueue(
        *(submit(id, f"t{n % _MANY}", filled.queue) for n, id in enumerate(ids)), now=filled.now
    )
    orders = [Alter(id=id, action="cancel") for id in ids[::3]]
    await filled.pair.do(lambda client: client.alter(*orders, now=filled.now))
    await filled.run(names(_MANY), 12)


async def test_tasks_that_were_deleted_leave_entries_that_stand_for_nothing(
    filled: Filled,
) -> None:
    await filled.run(names(_MANY), 14)
    orders = [Alter(id=made(n), action="delete") for n in range(filled.number - 300, filled.number)]
    await filled.pair.do(lambda client: client.alter(*orders[::7], now=filled.now))
    await filled.run(names(_MANY), 8)


async def test_orders_that_run_empty_are_the_engines(filled: Filled) -> None:
    """Those of tenants that end nothing any more."""
    await filled.run(names(_MANY), 14)
    await filled.run(names(20), 6)
    await filled.run(names(_MANY), 6)


@pytest.mark.parametrize("bytes", [50_000, 110_000])
async def test_bytes_that_weigh_more_than_tasks_count(filled: Filled, bytes: int) -> None:
    await filled.keep(320, bytes)
    await filled.run(names(8), 5)
    await filled.run(names(3), 3, 70, b"r" * 100)
    await filled.run(names(8), 5, 70, b"r" * 10)


async def test_shares_of_a_room_that_was_changed_since(filled: Filled) -> None:
    await filled.run(names(_MANY), 14)
    for room in (300, 280, 250, 400):
        await filled.keep(room)
        await filled.run(names(_MANY)[:30], 3)


async def test_who_holds_much_of_a_smaller_room_gives_first(filled: Filled) -> None:
    """What is noted of its share is of the larger room: by that it would give like all others."""
    await filled.keep(640)
    await filled.run(names(_MANY), 16, 80)
    last = range(filled.number - 80, filled.number)
    await filled.run(["t7"], 1, 3)
    others = [name for name in names(_MANY) if name != "t7"]
    await filled.run(others, 1, 78)
    newest = [made(id) for n, id in enumerate(last) if (n + 15) % _MANY != 7]
    for some in (newest[:40], newest[40:]):  # so that there is room again
        orders = [Alter(id=id, action="delete") for id in some]
        await filled.pair.do(partial(_altered, orders=orders, now=filled.now))
    await filled.keep(570)
    await exchanged(filled.pair, [], 1, queues=("mail",), now=filled.now)  # looks what is due next
    await filled.run(others, 2, 78)


async def test_two_that_have_the_same_moments_go_by_name(filled: Filled) -> None:
    """Also where a call gives so many that heads come round again."""
    for size in (128, 128, 128, 20, 128, 7, 128):
        await filled.run(names(34), 1, size)
        filled.now -= 0.125
    await filled.run(names(34), 8, 100)


@pytest.mark.parametrize("name", ["heads-done:", "large-done:", "kept:"])
async def test_a_key_of_another_type_leaves_all_as_it_was(name: str) -> None:
    pair = Pair()
    filled = Filled(pair, 320)
    await filled.keep(320)
    await filled.run(names(_MANY), 14)
    key = PREFIX + name + filled.queue + (":t7" if name == "kept:" else "")
    pair.spoil("DEL", key)
    pair.spoil("SET", key, "strange")
    before = everything(pair.servers[0])
    answer = await pair.do(lambda client: client.exchange(filled.ends, now=filled.now))
    assert "another type" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()


class Full(Overrun):
    """Room that is full nearly always, and tenants that hold about the same of it."""

    batches: tuple[int, ...] = (100, 150)
    shares: tuple[float, ...] = (0.7, 1.0, 1.0)
    many: tuple[int, ...] = (3, 34, 40, 50, 60)
    rooms: tuple[int, ...] = (100, 300, 640)
    limiting = 0.05

    async def configure(self) -> None:
        if self.draw.random() < 0.1:
            change = TenantChange(tenant=self.draw.choice(self.tenants), weight=3.0)
            await self.pair.do(lambda client: client.configure(change, now=self.now))
            return
        await super().configure()


@pytest.mark.parametrize("seeds", [(1, 4), pytest.param(range(12), marks=pytest.mark.slow)])
async def test_histories_of_full_rooms_leave_the_same(seeds: Sequence[int]) -> None:
    straight = 0
    for seed in seeds:
        history = Full(seed)
        await history.run(40)
        straight += history.small
    assert straight > 3 * len(seeds)
