"""Members of flows become tasks as they are stored, and every key is what the engine writes.

As in ``test_straight_exchange`` two brokers are asked the same, one of which has no short way, and
every answer and every key must be the same after each step.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from fairlead.broker.flows import FlowOrder, FlowPart
from fairlead.broker.requests import Moved, QueueChange, Submission
from fairlead.model.message import Leased
from fairlead.model.options import Dependency
from tests.broker.redis.straight_pair import LARGE, PREFIX, Pair, everything, exchanged, made
from tests.support.flows import commit, parts_of, stage
from tests.support.long_way import LAID
from tests.support.store import NOW, Client, completed, dead, failed, submit

FLOW = made(9_999)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made_pair = Pair()
    try:
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit(now=NOW + 60) == []
    finally:
        await made_pair.close()


async def staged(part: FlowPart, c: Client) -> list[str]:
    return await stage(c, part)


async def delivered(c: Client, now: float) -> Moved:
    return await c.broker.deliver(now=now)


async def retried(c: Client, now: float) -> Moved | None:
    return await c.broker.alter_flow(c.call(), FlowOrder(flow=FLOW, action="retry"), now=now)


async def laid(pair: Pair, *members: Submission, flow: str = FLOW, size: int = 500) -> int:
    """Write a flow and lay it out; how many members went the short way."""
    before = pair.count(LAID)
    for part in parts_of(flow, *members, size=size):
        assert await pair.do(partial(staged, part)) == ["staged"]
    assert (await pair.do(lambda client: commit(client, flow))).code == "committed"
    while (await pair.do(lambda client: client.broker.deliver(now=NOW))).more:
        pass
    return pair.count(LAID) - before


async def run_off(pair: Pair, wanted: int = 30) -> list[str]:
    """Complete whatever can run; which tasks did, in order."""
    ran: list[str] = []
    leases: list[Leased] = []
    while True:
        leases, _, _ = await exchanged(pair, [completed(lease) for lease in leases], wanted)
        more = (await pair.do(lambda client: client.broker.deliver(now=NOW + 1))).more
        ran += [lease.message.id for lease in leases]
        if not leases and not more:
            return ran


def fan_out(width: int, **options: Any) -> list[Submission]:
    """A task, so many behind it, and one behind these."""
    wide = [made(10 + n) for n in range(width)]
    return [
        submit(made(1)),
        *(submit(id, "ab"[n % 7 == 0], after=[made(1)], **options) for n, id in enumerate(wide)),
        submit(made(2), after=wide),
    ]


@pytest.mark.parametrize("width", [1, 17, 120])
async def test_a_fan_out_that_is_joined_is_laid_out_and_run_alike(pair: Pair, width: int) -> None:
    members = fan_out(width)
    assert await laid(pair, *members) == len(members)
    ran = await run_off(pair)
    assert (ran[0], ran[-1]) == (made(1), made(2))
    assert len(ran) == len(members)


async def test_levels_delays_and_sizes_are_no_reason_for_the_long_way(pair: Pair) -> None:
    chain = [
        submit(
            made(n),
            after=[made(n - 1)] if n > 1 else [],
            level=n % 4,
            delay=float(n % 2),
            at=NOW + 1 if n % 3 else None,
            body=b"x" * (n % 3) if n != 7 else LARGE,
            policy="run" if n % 5 == 0 else "wait",
            queue="mail" if n % 6 == 0 else "default",
        )
        for n in range(1, 20)
    ]
    assert await laid(pair, *chain) == len(chain)
    assert await run_off(pair) == [made(n) for n in range(1, 20)]


UNUSUAL: dict[str, dict[str, Any]] = {
    "a deadline": {"deadline": 5.0},
    "results that it reads": {"uses": True},
    "a parent that is queued": {"after": [made(500)]},
    "a parent that was completed": {"after": [made(501)]},
    "a parent that failed": {"after": [made(502)]},
    "a parent that nobody knows": {"after": [Dependency(made(503), known=True)]},
    "a parent that is named twice": {"after": [made(10), Dependency(made(10), known=True)]},
}


@pytest.mark.parametrize("what", UNUSUAL)
async def test_what_is_unusual_goes_the_long_way(pair: Pair, what: str) -> None:
    await pair.enqueue(*(submit(made(n)) for n in (501, 502, 500)))
    leases, _, _ = await exchanged(pair, [], 2, now=NOW)
    ends = [completed(leases[0]), dead(leases[1])]
    await exchanged(pair, ends, now=NOW)
    members = fan_out(20)
    options = {"after": [made(1)], **UNUSUAL[what]}
    members.insert(12, submit(made(400), **options))
    members.insert(13, submit(made(401), after=[made(400)]))
    assert await laid(pair, *members) in (len(members) - 1, len(members) - 2)
    await run_off(pair)


async def test_a_chosen_id_goes_the_long_way_and_so_does_a_queue_that_warns(pair: Pair) -> None:
    assert await laid(pair, submit("first"), submit(made(1), after=["first"])) == 1
    await pair.do(lambda client: client.configure(QueueChange(queue="mail", warn_depth=3)))
    warned = [submit(made(20 + n), queue="mail") for n in range(5)]
    assert await laid(pair, *warned, flow="chosen") == 0
    await run_off(pair)


async def test_a_flow_with_a_chosen_id_that_comes_again_has_another_life(pair: Pair) -> None:
    for turn in range(2):
        first = 100 * turn
        chain = [
            submit(made(first + n), after=[made(first + n - 1)] if n > 1 else [])
            for n in range(1, 9)
        ]
        assert await laid(pair, *chain, flow="nightly") == 8
        assert len(await run_off(pair)) == 8
        for _ in range(5):
            await pair.do(lambda client: client.broker.tidy(now=NOW + 90_000))


@pytest.mark.parametrize("key", ["asleep:default:a", "records", "before", "ties", "reserved"])
async def test_a_key_of_another_type_leaves_all_as_it_was(key: str) -> None:
    pair = Pair()
    for part in parts_of(FLOW, *fan_out(20)):
        await pair.do(partial(staged, part))
    pair.spoil("DEL", PREFIX + key)
    pair.spoil("SET", PREFIX + key, "strange")
    before = everything(pair.servers[0])
    answer = await pair.do(lambda client: commit(client, FLOW))
    assert "another type" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()


@pytest.mark.parametrize("seed", range(6))
async def test_random_flows_are_alike_after_each_step(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    await pair.enqueue(*(submit(made(500 + n), chance.choice("ab")) for n in range(3)))
    members: list[Submission] = []
    for n in range(1, 90):
        back = {n - chance.randint(1, 12) for _ in range(chance.choice([0, 1, 1, 2, 20]))}
        parents: list[str | Dependency] = [made(k) for k in back if k > 0]
        if chance.random() < 0.05:
            parents.append(made(500 + chance.randrange(3)))
        members.append(
            submit(
                made(n),
                chance.choice("ab"),
                after=parents,
                policy=chance.choice(["dead", "cancel", "wait", "run"]),
                delay=chance.choice([0.0, 0.0, 2.0]),
                deadline=chance.choice([None] * 9 + [4.0]),
            )
        )
    assert await laid(pair, *members, size=40) > 40
    leases: list[Leased] = []
    for turn in range(14):
        now = NOW + turn
        how: list[Any] = [chance.choice([*[completed] * 12, dead, failed]) for _ in leases]
        ends = [end(lease) for end, lease in zip(how, leases, strict=True)]
        leases, _, _ = await exchanged(pair, ends, 9, now=now)
        if turn in (5, 10):
            await pair.do(partial(retried, now=now))
        await pair.do(partial(delivered, now=now))
