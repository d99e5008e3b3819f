"""The straight way inside exchange stores, byte for byte, what the engine stores for a call.

Each test asks two brokers the same, on two databases: one has the straight ways but for the one
before the engine, which test_straight_small.py is about; the other has none of them.
Whatever either answers, and every key of both, must be the same after each step.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.broker.requests import Alter, Call, Fetch, LimiterChange, QueueChange, TenantChange
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.broker.redis.straight_pair import (
    LARGE,
    PREFIX,
    QUEUES,
    Pair,
    everything,
    exchanged,
    made,
)
from tests.support.long_way import ENDS, LOANS, ONE, SMALL, inner_lua
from tests.support.store import NOW, completed, dead, failed, ref, released, submit


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made_pair = Pair(lua=inner_lua)
    try:
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit() == []
    finally:
        await made_pair.close()


async def test_plain_tasks_are_lent_and_end_straight(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n), "abc"[n % 3]) for n in range(1, 31)))
    leases, _, loans = await exchanged(pair, [], 30)
    assert (len(leases), loans) == (30, 30)
    _, ends, _ = await exchanged(pair, [completed(lease) for lease in leases], 5)
    assert ends == 30


@pytest.mark.parametrize("wanted", [1, 2, 7, 64])
async def test_the_order_is_that_of_the_engine_however_many_are_asked_for(
    pair: Pair, wanted: int
) -> None:
    weights = {"a": 3.0, "b": 1.0, "c": 0.5}
    changes = [TenantChange(tenant=name, weight=weight) for name, weight in weights.items()]
    await pair.do(lambda client: client.configure(*changes))
    tasks = [
        submit(made(n), "abc"[n % 3], level=n // 3 % 4, cost=1.0 + n % 2) for n in range(1, 61)
    ]
    await pair.enqueue(*tasks)
    taken = 0
    while leases := (await exchanged(pair, [], wanted))[0]:
        taken += len(leases)
    assert taken == 60


@pytest.mark.parametrize("odd", [failed, dead, released])
async def test_an_end_that_is_not_plain_leaves_the_others_theirs(pair: Pair, odd: Any) -> None:
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(1, 41)))
    leases, _, _ = await exchanged(pair, [], 20)
    ends = [odd(lease) if n == 7 else completed(lease) for n, lease in enumerate(leases)]
    more, straight, loans = await exchanged(pair, ends, 20)
    assert (straight, len(more)) == (19, 20)
    assert loans >= 19


async def test_one_that_is_settled_twice_in_a_call_is_settled_in_its_order(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(1, 4)))
    leases, _, _ = await exchanged(pair, [], 3)
    again = [completed(leases[0]), completed(leases[0]), failed(leases[0])]
    reply = await pair.do(lambda client: client.exchange([*again, completed(leases[1])]))
    assert reply.settled == ["applied", "fenced", "fenced", "applied"]


async def test_ends_under_another_token_or_of_another_worker_are_fenced(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(1, 4)))
    leases, _, _ = await exchanged(pair, [], 3)
    late = Settlement(
        id=leases[0].message.id, token=leases[0].token - 1, to=completed(leases[0]).to
    )
    reply = await pair.do(lambda client: client.exchange([late]))
    assert reply.settled == ["fenced"]
    other = await pair.do(
        lambda client: client.broker.exchange(Call("other", 1), [completed(leases[1])], now=NOW)
    )
    assert other.settled == ["fenced"]
    assert pair.count(ENDS) == 0


async def test_held_tasks_begin_and_end_in_one_call(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(1, 11)))
    leases, _, _ = await exchanged(pair, [], 10, start=4)
    _, ends, _ = await exchanged(pair, [completed(lease) for lease in leases], now=NOW + 3)
    assert ends == 10


async def test_results_and_chosen_ids_go_straight(pair: Pair) -> None:
    tasks = [submit(f"order-{n}" if n % 2 else made(n)) for n in range(1, 11)]
    await pair.enqueue(*tasks)
    leases, _, loans = await exchanged(pair, [], 10)
    assert loans == 5  # a chosen id may have stood in the line before
    done = [completed(lease, result=b"r" * n) for n, lease in enumerate(leases)]
    _, ends, _ = await exchanged(pair, done)
    assert ends == 10


@pytest.mark.parametrize("tenants", [1, 2, 5, 40, 70])
async def test_what_is_kept_is_forgotten_alike(pair: Pair, tenants: int) -> None:
    """Whatever tenants hold of the room: some of it, a part that is theirs, or all of it."""
    change = QueueChange(queue="default", keep_completed_count=100)
    await pair.do(lambda client: client.configure(change))
    number = 0
    for turn in range(12):
        tasks = [submit(made(number + n + 1), f"t{(number + n) % tenants}") for n in range(40)]
        number += 40
        await pair.enqueue(*tasks, now=NOW + turn)
        leases, _, _ = await exchanged(pair, [], 40, now=NOW + turn)
        _, ends, _ = await exchanged(pair, [completed(lease) for lease in leases], now=NOW + turn)
        assert ends == 40


LIMITS: dict[str, QueueChange | TenantChange] = {
    "a queue's concurrency": QueueChange(queue="default", concurrency=5),
    "a queue's rate": QueueChange(queue="default", rate=3.0, burst=4),
    "a tenant's concurrency": TenantChange(tenant="a", concurrency=3),
    "a tenant's rate": TenantChange(tenant="a", rate=2.0, burst=2),
    "a pause": QueueChange(queue="default", paused=True),
    "a pause of a tenant": TenantChange(tenant="a", paused=True),
    "run time that is charged": QueueChange(queue="default", charge_run_time=True),
    "nothing is kept": QueueChange(queue="default", keep_completed=0.0),
}


@pytest.mark.parametrize("what", LIMITS)
async def test_limits_hold_on_the_straight_way(pair: Pair, what: str) -> None:
    await pair.do(lambda client: client.configure(LIMITS[what]))
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(1, 41)))
    leases: list[Leased] = []
    for turn in range(6):
        ends = [completed(lease, run_time=0.1 * n) for n, lease in enumerate(leases)]
        leases, _, _ = await exchanged(pair, ends, 8, now=NOW + turn)


async def test_a_fetch_goes_past_what_is_not_plain(pair: Pair) -> None:
    """A cancelled one, one with a limiter, a delayed one that is due, and a large one."""
    options: list[dict[str, Any]] = [{}, {"limiters": ("gpu",)}, {"delay": 1.0}, {"body": LARGE}]
    tasks = [submit(made(n), "ab"[n % 2], **options[n % 4 if n % 5 == 0 else 0]) for n in range(60)]
    await pair.enqueue(*tasks)
    await pair.do(lambda client: client.cancel(made(7)))
    for turn in range(2, 9):
        await exchanged(pair, [], 10, now=NOW + turn)
    assert 0 < pair.count(LOANS) < 59


async def test_a_watched_one_is_the_engines(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(1, 5)))
    await pair.do(lambda client: client.broker.watch("other", [made(2)], now=NOW))
    leases, _, _ = await exchanged(pair, [], 4)
    _, ends, _ = await exchanged(pair, [completed(lease) for lease in leases])
    assert ends == 3


# -- what the server refuses -------------------------------------------------------------------

STRANGE = (
    *("line:default:2:a", "line:default:2:b", "ready:default", "events"),
    *("kept:default", "done:default", "saved:default", "held:w1", "leases", "idle", "trims"),
    *("tasks", "records", "queues", "answers", "results", "ties"),
)


@pytest.mark.parametrize("name", STRANGE)
async def test_a_key_of_another_type_leaves_all_as_it_was(name: str) -> None:
    pair = Pair(lua=inner_lua)
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(1, 9)))
    leases, _, _ = await exchanged(pair, [], 4)
    pair.spoil("DEL", PREFIX + name)
    pair.spoil("SET", PREFIX + name, "strange")
    before = everything(pair.servers[0])
    ends = [completed(lease, result=b"r") for lease in leases]
    fetch = Fetch(queues=QUEUES, max=10)
    answer = await pair.do(lambda client: client.exchange(ends, fetch=fetch, now=NOW + 2))
    assert "another type" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()


# -- histories ---------------------------------------------------------------------------------


class History:
    """What happens to a pair, drawn from a seed: mostly exchanges, and a bit of everything."""

    queues: tuple[str, ...] = QUEUES  # that are asked
    batches: tuple[int, ...] = (1, 5, 20, 60)  # tasks that are enqueued in a call
    wants: tuple[int, ...] = (0, 1, 5, 20, 60)  # and asked for
    shares: tuple[float, ...] = (0.0, 0.5, 1.0, 1.0)  # which part of those on loan end
    unusuals: tuple[float, ...] = (0.06, 0.6)  # which part of the tasks may have an option
    part_held = 0.25  # of the calls that lend: of what they ask for a half is only held
    odds: tuple[float, ...] = (0.0, 0.0, 0.05, 0.5)  # parts of the ends that are not usual
    many: tuple[int, ...] = (1, 3, 8, 30)  # tenants
    event_bytes: tuple[int, ...] = (20_000, 1_000_000)
    lua = staticmethod(inner_lua)

    def __init__(self, seed: int) -> None:
        self.small = 0  # calls of exchange that never came to the engine
        self.one = 0  # of these, in which one task ends and one is lent at most
        self.draw = random.Random(seed)
        self.pair = Pair(self.draw.choice(self.event_bytes), self.lua)
        self.now, self.number = NOW, 0
        self.tenants = [f"t{n}" for n in range(self.draw.choice(self.many))]
        self.held: list[Leased] = []
        self.unusual = self.draw.choice(self.unusuals)
        # In one of three histories some tasks have levels that few tenants use.
        lower = (4, 5, 7) if seed % 3 == 0 else ()
        self.levels, self.moves = (2, 2, 2, 2, 2, 0, 1, 3, *lower), (1, *lower)

    def submission(self) -> Any:
        draw = self.draw
        self.number += 1
        tenant = draw.choice(self.tenants)
        id = made(self.number) if draw.random() > 0.03 else f"{tenant}:{draw.randint(1, 20)}"
        options: dict[str, Any] = {}
        if draw.random() < self.unusual:
            until: Any = draw.choice(("started", "done", "window"))
            unique = Unique(key=draw.choice("vwxyz"), until=until, window=2.0 * (until == "window"))
            parents = {
                made(max(1, self.number - draw.randint(1, 9)))
                for _ in range(draw.choice((1, 1, 3, 20)))
            }
            options = draw.choice(
                (
                    {"delay": draw.choice((0.5, 2.0))},
                    {"deadline": 3.0},
                    {"unique": unique},
                    {
                        "after": sorted(parents),
                        "policy": draw.choice(("dead", "cancel", "wait", "run")),
                    },
                    {"body": LARGE},
                    {"limiters": ("gpu",)},
                )
            )
        level, cost = draw.choice(self.levels), draw.choice((1.0, 1.0, 1.0, 3.0))
        queue = draw.choice(("default",) * 9 + ("mail",))
        return submit(id, tenant, queue, level=level, cost=cost, **options)

    async def enqueue(self) -> None:
        tasks = [self.submission() for _ in range(self.draw.choice(self.batches))]
        await self.pair.do(lambda client: client.enqueue(*tasks, now=self.now))

    def end(self, lease: Leased, odd: float) -> Settlement:
        if self.draw.random() < odd:
            return self.draw.choice((failed, dead, released))(lease)
        if self.draw.random() < 0.1:
            return completed(lease, result=b"r" * self.draw.randint(0, 50))
        return completed(lease)

    async def exchange(self) -> None:
        draw, odd = self.draw, self.draw.choice(self.odds)
        share = draw.choice(self.shares)
        ending = [lease for lease in self.held if draw.random() < share]
        left = [lease for lease in self.held if lease not in ending]
        ends = [self.end(lease, odd) for lease in ending]
        if ends and draw.random() < 0.03:
            ends.append(draw.choice(ends))
        wanted = draw.choice(self.wants)
        start = wanted // 2 if draw.random() < self.part_held else None
        fetch = Fetch(queues=self.queues, max=wanted, start=start) if wanted else None
        marked = [lease for lease in left if not lease.started and draw.random() < 0.3]
        number = self.pair.clients[0].number + 1

        async def ask() -> Any:
            return await self.pair.do(
                lambda c: c.broker.exchange(
                    Call(c.incarnation, number),
                    ends,
                    started=[ref(lease) for lease in marked],
                    fetch=fetch,
                    now=self.now,
                )
            )

        reply = await ask()
        if draw.random() < 0.25:  # the reply was lost
            reply = await ask()
        for client in self.pair.clients:
            client.number = number
        self.held = [*left, *reply.leased][:120]

    async def configure(self) -> None:
        draw = self.draw
        queue: dict[str, Any] = draw.choice(
            (
                {"paused": draw.random() < 0.2},
                {"warn_depth": draw.choice((None, 10))},
                {"concurrency": draw.choice((None, None, 10))},
                {"rate": draw.choice((None, None, 50.0))},
                {"charge_run_time": draw.random() < 0.2},
                {"strict_priorities": draw.random() < 0.2},
                {"keep_completed_count": draw.choice((0, 10, 20, 64, 200))},
                {"keep_completed": draw.choice((0.0, 3.0, 3600.0))},
                {"keep_completed_bytes": draw.choice((2_000, 1_000_000))},
            )
        )
        tenant: dict[str, Any] = draw.choice(
            (
                {"paused": draw.random() < 0.2},
                {"weight": draw.choice((0.5, 1.0, 3.0))},
                {"concurrency": draw.choice((None, None, 5))},
                {"rate": draw.choice((None, None, 20.0)), "burst": 3},
            )
        )
        change = draw.choice(
            (
                QueueChange(queue="default", **queue),
                TenantChange(tenant=draw.choice(self.tenants), **tenant),
                LimiterChange(name="gpu", concurrency=draw.choice((None, 1))),
            )
        )
        await self.pair.do(lambda client: client.configure(change, now=self.now))

    async def alter(self) -> None:
        action: Any = self.draw.choice(("cancel", "requeue", "delete", "run", "prioritize"))
        level = self.draw.choice(self.moves) if action == "prioritize" else None
        order = Alter(id=made(self.draw.randint(1, self.number + 1)), action=action, level=level)
        await self.pair.do(lambda client: client.alter(order, now=self.now))

    async def watch(self) -> None:
        ids = [made(self.draw.randint(1, self.number + 1)) for _ in range(3)]
        await self.pair.do(lambda client: client.broker.watch("other", ids, now=self.now))

    async def upkeep(self) -> None:
        verb = self.draw.choice(("promote", "tidy", "sweep", "deliver"))
        await self.pair.do(lambda client: getattr(client.broker, verb)(now=self.now))

    async def run(self, steps: int, stride: int = 1) -> int:
        """How many tasks ended and were lent straight; every key is compared at each stride."""
        self.pair.stride = stride
        ways = {
            self.enqueue: 6,
            self.exchange: 12,
            self.configure: 1,
            self.alter: 1,
            self.watch: 1,
            self.upkeep: 1,
        }
        try:
            await self.enqueue()
            for _ in range(steps):
                self.now += self.draw.choice((0.0, 0.001, 0.3, 0.3, 2.0))
                if self.draw.random() < 0.01:
                    self.now += self.draw.choice((20.0, 3600.0))
                (way,) = self.draw.choices(list(ways), list(ways.values()))
                await way()
            self.pair.compare()
            for client in self.pair.clients:
                assert await client.broker.audit() == []
            self.small, self.one = self.pair.count(SMALL), self.pair.count(ONE)
            return self.pair.count(ENDS) + self.pair.count(LOANS)
        finally:
            await self.pair.close()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))]
)
async def test_a_history_leaves_the_same_with_and_without_it(seed: int) -> None:
    assert await History(seed).run(80) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_long_histories_do_as_well(seed: int) -> None:
    assert await History(seed).run(300, stride=10) > 20
