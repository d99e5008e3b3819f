"""Calls of exchange before the engine store, byte for byte, what it stores for the same calls.

Each test asks two brokers the same, on two databases: one has the straight ways, the other not.
Whatever either answers, and every key of both, must be the same after each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from fairlead.broker.requests import Alter, Call, Fetch, LimiterChange, QueueChange, TenantChange
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from tests.broker.redis.straight_pair import PREFIX, Pair, everything, made
from tests.broker.redis.test_straight_exchange import History
from tests.support.long_way import READY, SMALL, counted_lua
from tests.support.store import NOW, Client, completed, dead, failed, ids, ref, released, submit
from tests.support.worker_process import until

QUEUES = ("default", "mail")


async def exchanged(
    pair: Pair,
    ends: list[Settlement],
    wanted: int = 0,
    *,
    start: int | None = None,
    now: float = NOW + 1,
    queues: tuple[str, ...] = QUEUES,
) -> tuple[list[Leased], bool]:
    """What was lent, and whether the call went straight."""
    before = pair.count(SMALL)
    fetch = Fetch(queues=queues, max=wanted, start=start) if wanted else None
    reply = await pair.do(lambda client: client.exchange(ends, fetch=fetch, now=now))
    return reply.leased, pair.count(SMALL) > before


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Both have ended a task of each of the tenants a and b, so that nothing is new."""
    made_pair = Pair()
    try:
        await made_pair.enqueue(submit(made(1)), submit(made(2), "b"))
        leases, _ = await exchanged(made_pair, [], 2)
        await exchanged(made_pair, [completed(lease) for lease in leases])
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit() == []
    finally:
        await made_pair.close()


async def _asked(client: Client, call: Call, ends: list[Settlement], fetch: Fetch) -> Any:
    return await client.broker.exchange(call, ends, fetch=fetch, now=NOW + 2)


async def _watched(client: Client, ids: list[str]) -> None:
    await client.broker.watch("other", ids, now=NOW)


# -- what goes straight ------------------------------------------------------------------------


async def test_a_call_that_finds_nothing_goes_straight(pair: Pair) -> None:
    assert await exchanged(pair, [], 10) == ([], True)
    assert await exchanged(pair, [], 1, queues=("mail",)) == ([], True)


@pytest.mark.parametrize("many", [1, 2, 16])
@pytest.mark.parametrize("tenants", ["a", "ab"])
async def test_a_few_are_lent_and_end_straight(pair: Pair, many: int, tenants: str) -> None:
    await pair.enqueue(*(submit(made(n + 10), tenants[n % len(tenants)]) for n in range(40)))
    ends: list[Settlement] = []
    for turn in range(4):
        leases, straight = await exchanged(pair, ends, many, now=NOW + 1 + turn)
        assert straight
        ends = [completed(lease, run_time=0.3 * n) for n, lease in enumerate(leases)]
    assert await exchanged(pair, ends, 1 if many < 16 else 30) != ([], False)


async def test_the_last_task_of_a_tenant_and_the_first_of_its_next_ones_go_straight(
    pair: Pair,
) -> None:
    for turn in range(6):
        await pair.enqueue(submit(made(10 + turn), "ab"[turn % 2]), now=NOW + turn)
        leases, straight = await exchanged(pair, [], 5, now=NOW + turn)
        assert (len(leases), straight) == (1, True)
        _, straight = await exchanged(pair, [completed(leases[0])], 5, now=NOW + turn)
        assert straight


async def test_levels_weights_costs_and_results_go_straight(pair: Pair) -> None:
    changes = [TenantChange(tenant=name, weight=w) for name, w in (("a", 3.0), ("b", 0.5))]
    await pair.do(lambda client: client.configure(*changes))
    tasks = [submit(made(n), "ab"[n % 2], level=n % 2, cost=1.0 + n % 3) for n in range(10, 40)]
    await pair.enqueue(*tasks)
    ends: list[Settlement] = []
    for turn in range(9):
        leases, straight = await exchanged(pair, ends, 4, now=NOW + turn)
        assert straight or turn == 0  # which looks for what is due next
        ends = [completed(lease, result=b"r" * n) for n, lease in enumerate(leases)]


async def test_queues_are_looked_into_in_their_order(pair: Pair) -> None:
    await pair.enqueue(submit(made(3), "a", "mail"))
    leases, _ = await exchanged(pair, [], 5)
    await exchanged(pair, [completed(lease) for lease in leases])
    await pair.enqueue(*(submit(made(n), "a", QUEUES[n % 2]) for n in range(10, 20)))
    first, straight = await exchanged(pair, [], 7, queues=("mail", "default"))
    assert straight
    assert [lease.message.queue for lease in first] == ["mail"] * 5 + ["default"] * 2
    more, straight = await exchanged(pair, [completed(lease) for lease in first], 7)
    assert (len(more), straight) == (3, True)


async def test_ends_under_several_tokens_in_any_order_go_straight(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(10, 20)))
    leases = [lease for _ in range(4) for lease in (await exchanged(pair, [], 2))[0]]
    some = [leases[n] for n in (3, 0, 6, 2, 1)]
    assert await exchanged(pair, [completed(lease) for lease in some]) == ([], True)
    left = [completed(lease) for lease in leases if lease not in some]
    assert await exchanged(pair, left) == ([], True)


@pytest.mark.parametrize("room", [130, 250])
async def test_a_hundred_of_as_many_tenants_go_straight(pair: Pair, room: int) -> None:
    """Some tenants end tasks, others are lent some, and others again lose what they kept."""
    queue = f"room-of-{room}"
    change = QueueChange(queue=queue, keep_completed_count=room)
    await pair.do(lambda client: client.configure(change))
    for first in range(0, 320, 160):
        tasks = [submit(made(1000 + first + n), f"t{n}", queue) for n in range(160)]
        await pair.enqueue(*tasks)
    ends: list[Settlement] = []
    ways = []
    for turn in range(5):
        leases, straight = await exchanged(
            pair, ends, 80, now=NOW + 1 + turn, start=50, queues=(queue,)
        )
        await pair.do(lambda client: client.broker.tidy(now=NOW))  # which looks at what is kept
        ends = [completed(lease, result=b"r" * (n % 7 == 0)) for n, lease in enumerate(leases)]
        ways.append(straight)
    # Once each tenant has had a loan and an end. The last call finds nothing and ends what is left,
    # which the engine does if there is no room for it. (With more tasks it goes straight as well.)
    assert ways == [False, False, True, True, room == 250]


async def test_what_is_not_plain_puts_lines_back_as_they_were() -> None:
    """A tenant's message is lost, which shows when lines have been taken from already."""
    pair = Pair()
    await pair.enqueue(*(submit(made(n), "abc"[n % 3]) for n in range(10, 40)))
    await exchanged(pair, [], 3)
    pair.spoil("HDEL", PREFIX + "tasks", made(14))
    leases, straight = await exchanged(pair, [], 9)
    assert (len(leases), straight) == (9, False)
    await pair.close()


async def test_large_calls_that_read_in_vain_are_tried_less(pair: Pair) -> None:
    queue = "often-watched"
    for first in range(100, 500, 100):
        await pair.enqueue(*(submit(made(first + n), "a", queue) for n in range(100)))
    leases, _ = await exchanged(pair, [], 60, queues=(queue,))
    await exchanged(pair, [completed(leases.pop())])
    ways = []
    for turn in range(5):
        watched = [leases[0].message.id] if turn < 2 else []
        await pair.do(partial(_watched, ids=watched))
        ends = [completed(lease) for lease in leases]
        leases, straight = await exchanged(pair, ends, 60, now=NOW + turn, queues=(queue,))
        ways.append(straight)
    assert ways == [False, False, False, True, True]  # the third was not tried


async def test_whoever_held_the_alarm_passes_it_on(pair: Pair) -> None:
    await pair.enqueue(submit(made(10), delay=50.0))

    async def woken(client: Client) -> bool:
        waits = asyncio.ensure_future(client.broker.wait(QUEUES, 5.0))
        await until(
            lambda: pair.servers[0].info("clients")["blocked_clients"] > 0, "the waiter to sleep"
        )
        await client.enqueue(submit(made(11)), now=NOW + 1)
        return await waits

    for client in pair.clients:  # how long they would have slept differs
        assert await woken(client)
    leases, straight = await exchanged(pair, [], 5, now=NOW + 2)
    assert (len(leases), straight) == (1, True)
    assert pair.servers[0].exists(PREFIX + "bell")


@pytest.mark.parametrize(
    "tenants", [1, 2, 5, *(pytest.param(many, marks=pytest.mark.slow) for many in (40, 70))]
)
@pytest.mark.parametrize("each", [1, 3])
async def test_room_is_made_alike(pair: Pair, tenants: int, each: int) -> None:
    """Whatever tenants hold of the room: some of it, a part that is theirs, or all of it."""
    change = QueueChange(queue="default", keep_completed_count=100)
    await pair.do(lambda client: client.configure(change))
    await pair.do(lambda client: client.broker.tidy(now=NOW))  # which looks at what is kept
    tasks = [submit(made(n), f"t{n % tenants}") for n in range(10, 310)]
    await pair.enqueue(*tasks)
    before: int = pair.count(SMALL)
    ends: list[Settlement] = []
    turns = 200 // each
    for turn in range(turns):
        leases, _ = await exchanged(pair, ends, each, now=NOW + 0.01 * turn)
        ends = [completed(lease, result=b"r" * (n % 2)) for n, lease in enumerate(leases)]
    assert pair.count(SMALL) - before > turns / 3


# -- a look before sleeping ----------------------------------------------------------------------


async def looked(pair: Pair, now: float = NOW + 2) -> tuple[Any, bool]:
    """What ready answers, and whether it went straight."""
    before = pair.count(READY)
    args = [f"t{now!r}", "", 5.0, *QUEUES]

    async def ask(client: Client) -> Any:
        broker: Any = client.broker
        return await broker.run("can_fetch", args)

    found = await pair.do(ask)
    return found, pair.count(READY) > before


async def test_a_look_that_finds_nothing_and_one_that_finds_something_go_straight(
    pair: Pair,
) -> None:
    assert await looked(pair) == ([0, b"", 1], True)
    assert await looked(pair) == ([0, b"", 0], True)
    await pair.enqueue(submit(made(10)), now=NOW + 2)
    assert await looked(pair) == ([1, b"", 0], True)
    await pair.enqueue(submit(made(11), delay=3.0), now=NOW + 2)
    await exchanged(pair, [], 5, now=NOW + 3)
    found, straight = await looked(pair, NOW + 3)
    assert (found[0], float(found[1]), straight) == (0, 2.0, True)


@pytest.mark.parametrize(
    "change",
    [
        QueueChange(queue="default", concurrency=1),
        QueueChange(queue="default", rate=0.1, burst=1),
        QueueChange(queue="default", paused=True),
        TenantChange(tenant="a", paused=True),
    ],
)
async def test_a_look_sees_limits_and_pauses(pair: Pair, change: Any) -> None:
    await pair.do(lambda client: client.configure(change, now=NOW + 2))
    await pair.enqueue(submit(made(10)), submit(made(11)), now=NOW + 2)
    await looked(pair)
    await exchanged(pair, [], 1, now=NOW + 2)
    await looked(pair)
    await looked(pair, NOW + 30)


# -- what does not -----------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "a queue's concurrency": QueueChange(queue="default", concurrency=1),
    "a queue's rate": QueueChange(queue="default", rate=0.5, burst=2),
    "a queue's warning": QueueChange(queue="default", warn_depth=2),
    "run time that is charged": QueueChange(queue="default", charge_run_time=True),
    "a pause": QueueChange(queue="default", paused=True),
    "a tenant's concurrency": TenantChange(tenant="a", concurrency=1),
    "a tenant's rate": TenantChange(tenant="a", rate=0.5, burst=1),
    "a pause of a tenant": TenantChange(tenant="a", paused=True),
    "nothing is kept": QueueChange(queue="default", keep_completed=0.0),
    "no room": QueueChange(queue="default", keep_completed_count=0),
    "few bytes": QueueChange(queue="default", keep_completed_bytes=1_000),
    "little room for the dead": QueueChange(queue="default", keep_dead_bytes=100),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_limits_pauses_and_room_hold_in_small_calls(pair: Pair, what: str) -> None:
    await pair.do(lambda client: client.configure(CHANGES[what]))
    await pair.do(lambda client: client.broker.tidy(now=NOW))  # which looks at what is kept
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(10, 30)))
    held: list[Leased] = []
    for turn in range(8):
        ends = [completed(lease, run_time=0.1 * n) for n, lease in enumerate(held[:1])]
        leases, _ = await exchanged(pair, ends, 2, now=NOW + turn)
        held = held[1:] + leases


async def test_tenants_with_more_than_four_levels_are_the_engines(pair: Pair) -> None:
    """Also while all that is left of a lower line are entries of tasks that were cancelled."""
    await pair.enqueue(*(submit(made(n), level=level) for n, level in enumerate((2, 5, 2, 7), 10)))
    leases, straight = await exchanged(pair, [], 1)
    assert not straight
    orders = [Alter(id=made(number), action="cancel") for number in (11, 13)]
    await pair.do(lambda client: client.alter(*orders))
    leases, straight = await exchanged(pair, [completed(leases[0])], 1)
    assert not straight
    assert ids(leases) == [made(12)]
    await pair.enqueue(submit(made(20)), submit(made(21)))
    leases, straight = await exchanged(pair, [completed(leases[0])], 1)
    assert straight, "nothing is left of the lower lines"


async def test_strict_queues_are_the_engines(pair: Pair) -> None:
    change = QueueChange(queue="default", strict_priorities=True)
    await pair.do(lambda client: client.configure(change))
    await pair.enqueue(*(submit(made(n), level=1 + n % 3) for n in range(10, 40)))
    ends: list[Settlement] = []
    for turn in range(8):
        leases, straight = await exchanged(pair, ends, 2, now=NOW + turn)
        assert not straight
        assert {lease.message.level for lease in leases} <= ({1} if turn < 5 else {2})
        ends = [completed(lease) for lease in leases]


OPTIONS: dict[str, dict[str, Any]] = {
    "a limiter": {"limiters": ("gpu",)},
    "a delay": {"delay": 1.0},
    "a deadline": {"deadline": 1.5},
    "a dependency": {"after": [made(1)]},
    "a large body": {"body": b"x" * 40_000},
}


@pytest.mark.parametrize("what", OPTIONS)
async def test_what_is_not_plain_is_the_engines(pair: Pair, what: str) -> None:
    change = LimiterChange(name="gpu", concurrency=1)
    await pair.do(lambda client: client.configure(change))
    tasks = [
        submit(made(n), "ab"[n % 2], **(OPTIONS[what] if n % 3 else {})) for n in range(10, 20)
    ]
    await pair.enqueue(*tasks)
    ends: list[Settlement] = []
    for turn in range(8):
        leases, _ = await exchanged(pair, ends, 2, now=NOW + turn)
        ends = [completed(lease) for lease in leases]


@pytest.mark.parametrize("odd", [failed, dead, released])
async def test_ends_that_are_not_usual_are_the_engines(pair: Pair, odd: Any) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(10, 20)))
    leases, _ = await exchanged(pair, [], 3)
    _, straight = await exchanged(pair, [completed(leases[0]), odd(leases[1])], 1)
    assert not straight
    await exchanged(pair, [completed(leases[2])], 2, now=NOW + 9)


async def test_a_call_is_fenced_repeated_or_refused_as_ever(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(10, 20)))
    leases, _ = await exchanged(pair, [], 3)
    late = Settlement(
        id=leases[0].message.id, token=leases[0].token - 1, to=completed(leases[0]).to
    )
    reply = await pair.do(lambda client: client.exchange([late]))
    assert reply.settled == ["fenced"]
    fetch = Fetch(queues=QUEUES, max=2)
    ends = [completed(leases[0])]
    for number in (7, 7, 6, 8):
        call = Call("w2", number)  # a name as long as that of the other
        mine = ends if number == 8 else []
        await pair.do(partial(_asked, call=call, ends=mine, fetch=fetch))
    assert (await exchanged(pair, ends))[1]


@pytest.mark.parametrize("name", ["odd\x1ename", "n" * 300])
async def test_an_odd_name_of_a_worker_is_the_engines(pair: Pair, name: str) -> None:
    await pair.enqueue(submit(made(10)))
    before = pair.count(SMALL)
    for number, queues in enumerate((("mail",), QUEUES), 1):
        fetch = Fetch(queues=queues, max=2)
        await pair.do(partial(_asked, call=Call(name, number), ends=[], fetch=fetch))
    assert pair.count(SMALL) == before


@pytest.mark.parametrize("start", [0, 1, 7])
async def test_held_ones_go_straight_and_marks_are_the_engines(pair: Pair, start: int) -> None:
    await pair.enqueue(*(submit(made(n), "ab"[n // 3 % 2]) for n in range(10, 30)))
    leases, straight = await exchanged(pair, [], 8, start=start)
    assert straight
    assert [lease.started for lease in leases] == [n < start for n in range(8)]
    more, straight = await exchanged(pair, [completed(lease) for lease in leases[2:]], 8, start=2)
    assert straight
    marks = [ref(more[4])]
    await pair.do(lambda c: c.exchange([completed(leases[0])], started=marks, now=NOW + 2))
    _, straight = await exchanged(pair, [completed(lease) for lease in more[3:]], now=NOW + 5)
    assert straight


async def test_a_watched_one_is_the_engines_in_a_small_call_as_well(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(10, 14)))
    await pair.do(lambda client: client.broker.watch("other", [made(11)], now=NOW))
    leases, _ = await exchanged(pair, [], 4)
    by_id = {lease.message.id: lease for lease in leases}
    assert not (await exchanged(pair, [completed(by_id[made(11)])]))[1]
    assert (await exchanged(pair, [completed(by_id[made(12)])]))[1]


async def test_another_hour_is_the_engines(pair: Pair) -> None:
    await pair.enqueue(*(submit(made(n)) for n in range(10, 14)))
    leases, _ = await exchanged(pair, [], 2)
    later = NOW + 3600
    assert not (await exchanged(pair, [completed(leases[0])], 1, now=later))[1]
    await exchanged(pair, [completed(leases[1])], 1, now=later)


async def test_a_full_block_of_events_is_the_engines() -> None:
    pair = Pair(event_bytes=10_000)
    await pair.enqueue(*(submit(made(n)) for n in range(10, 90)))
    ends: list[Settlement] = []
    ways = set()
    for turn in range(30):
        leases, straight = await exchanged(pair, ends, 2, now=NOW + turn)
        ends = [completed(lease) for lease in leases]
        ways.add(straight)
    assert ways == {True, False}
    await pair.close()


STRANGE = (
    *("line:default:2:a", "ready:default", "events", "active:default", "saved:default"),
    *("kept:default", "held:w1", "leases", "idle", "tenants:default"),
    *("tasks", "records", "queues", "answers", "results", "ties"),
)


@pytest.mark.parametrize("name", STRANGE)
async def test_a_key_of_another_type_leaves_all_as_it_was(name: str) -> None:
    pair = Pair()
    await pair.enqueue(*(submit(made(n), "ab"[n % 2]) for n in range(1, 9)))
    leases, _ = await exchanged(pair, [], 2)
    await exchanged(pair, [completed(leases[0])])
    pair.spoil("DEL", PREFIX + name)
    pair.spoil("SET", PREFIX + name, "strange")
    before = everything(pair.servers[0])
    ends = [completed(leases[1], result=b"r")]
    fetch = Fetch(queues=QUEUES, max=6)
    answer = await pair.do(lambda client: client.exchange(ends, fetch=fetch, now=NOW + 2))
    if name != "active:default":  # which is not written
        assert "another type" in answer[1]
        assert everything(pair.servers[0]) == before
    await pair.close()


# -- histories ---------------------------------------------------------------------------------


class Moderate(History):
    """A worker that is not overrun: a few tasks at a time, most of them plain."""

    batches: tuple[int, ...] = (1, 1, 2, 3, 8)
    wants: tuple[int, ...] = (0, 1, 1, 3, 5, 30)
    odds: tuple[float, ...] = (0.0, 0.0, 0.0, 0.1)
    unusuals: tuple[float, ...] = (0.01,)
    part_held = 0.2
    rooms: tuple[int, ...] = (10, 20, 64, 200)  # for completed tasks
    limiting = 0.2  # which part of the changes is about more than room
    lua = staticmethod(counted_lua)

    @property
    def least(self) -> int:
        """How many calls go straight at least: few where tenants come to have five levels."""
        return 5 if max(self.levels) > 3 else 10

    async def configure(self) -> None:
        """Mostly how much is kept, which tidy looks at once."""
        if self.draw.random() < self.limiting:
            await super().configure()
            return
        change = QueueChange(
            queue="default",
            keep_completed_count=self.draw.choice(self.rooms),
            keep_completed_bytes=self.draw.choice((2_000, 1_000_000, 1_000_000)),
        )
        await self.pair.do(lambda client: client.configure(change, now=self.now))
        await self.pair.do(lambda client: client.broker.tidy(now=self.now))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))]
)
async def test_a_history_leaves_the_same_with_and_without_it(seed: int) -> None:
    history = Moderate(seed)
    await history.run(120)
    assert history.small > history.least


class Overrun(Moderate):
    """A worker that settles and fetches a hundred at a time, of many tenants."""

    batches: tuple[int, ...] = (100,)
    wants: tuple[int, ...] = (60, 100, 128)
    unusuals: tuple[float, ...] = (0.0,)
    part_held = 0.5
    odds: tuple[float, ...] = (0.0, 0.0, 0.0, 0.02)
    many: tuple[int, ...] = (1, 40, 130)
    event_bytes: tuple[int, ...] = (1_000_000,)
    rooms: tuple[int, ...] = (300, 1_000)

    def submission(self) -> Any:
        self.number += 1
        return submit(made(self.number), self.draw.choice(self.tenants))


@pytest.mark.parametrize("seeds", [(0, 2), pytest.param(range(12), marks=pytest.mark.slow)])
async def test_histories_of_large_calls_leave_the_same(seeds: Sequence[int]) -> None:
    """How many calls of one go straight depends on others: a library backs off for all."""
    straight = 0
    for seed in seeds:
        history = Overrun(seed)
        await history.run(30)
        straight += history.small
    assert straight > 2 * len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_long_histories_do_as_well(seed: int) -> None:
    history = Moderate(seed)
    await history.run(400, stride=10)
    assert history.small > history.least
