"""The straight way into a server stores, byte for byte, what the engine stores for the same calls.

Each test asks two brokers the same, on two databases: one has the straight way, the other not.
Whatever either answers, and every key of both, must be the same after each step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker.requests import (
    Call,
    LimiterChange,
    QueueChange,
    Submission,
    TenantChange,
)
from fairlead.model.message import Leased
from tests.broker.redis.straight_history import History
from tests.broker.redis.straight_pair import LARGE, PREFIX, Pair, begun, everything, made
from tests.support.store import NOW, completed, submit


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Both know the queue, and in it the tenants a and b; a has something to do, b has not."""
    made_pair = Pair()
    try:
        await begun(made_pair)
        yield made_pair
        for client in made_pair.clients:
            assert await client.broker.audit() == []
    finally:
        await made_pair.close()


# -- what goes straight ------------------------------------------------------------------------

PLAIN: dict[str, tuple[Submission, ...]] = {
    "one task": (submit(made(10)),),
    "of a tenant that had nothing to do": (submit(made(10), "b"),),
    "several": tuple(submit(made(n)) for n in range(10, 30)),
    "of several tenants": tuple(submit(made(n), "ab"[n % 2]) for n in range(10, 30)),
    "of a tenant that is new": (submit(made(10), "c"),),
    "of new tenants among others": tuple(submit(made(n), "acde"[n % 4]) for n in range(10, 30)),
    "of several levels": tuple(submit(made(n), level=n % 4) for n in range(10, 30)),
    "with a cost": (submit(made(10), cost=2.5), submit(made(11))),
    "with a limiter": (submit(made(10), limiters=("gpu",)),),
    "with a trace": (submit(made(10), trace=b"00-abc"),),
    "as many as a call may have": tuple(submit(made(n)) for n in range(10, 510)),
}


@pytest.mark.parametrize("what", PLAIN)
async def test_plain_tasks_go_straight(pair: Pair, what: str) -> None:
    assert await pair.enqueue(*PLAIN[what]) == 1
    await pair.do(lambda client: client.fetch(50))


async def test_levels_below_the_fourth_go_through_the_engine(pair: Pair) -> None:
    assert await pair.enqueue(*(submit(made(n), level=n % 8) for n in range(10, 30))) == 0
    assert await pair.enqueue(submit(made(40))) == 1, "beside lower lines"
    await pair.do(lambda client: client.fetch(50))


async def test_settings_without_a_limit_are_not_in_the_way(pair: Pair) -> None:
    change = QueueChange(queue="default", keep_completed=60.0, max_tenant_bytes=10_000)
    await pair.do(lambda client: client.configure(change))
    assert await pair.enqueue(submit(made(10)), submit(made(11), "b")) == 1


async def test_neither_is_an_incarnation_that_is_new(pair: Pair) -> None:
    before = pair.taken
    await pair.do(lambda c: c.broker.enqueue(Call("other", 1), [submit(made(10))], now=NOW))
    assert pair.taken == before + 1


async def test_a_repeated_call_gets_the_same_answer_and_stores_nothing(pair: Pair) -> None:
    tasks = [submit(made(n), "ab"[n % 2]) for n in range(10, 20)]
    assert await pair.enqueue(*tasks) == 1
    before = pair.taken, everything(pair.servers[0])[b"fl1:{0}:tasks"]
    again = await pair.again(0, tasks)
    assert [receipt.code for receipt in again] == ["accepted"] * 10
    others = [submit(made(n)) for n in range(20, 30)]  # what the number was for counts, not this
    for back, told in ((0, "accepted"), (1, "OutOfOrder")):
        assert told in str(await pair.again(back, others))
    assert (pair.taken, everything(pair.servers[0])[b"fl1:{0}:tasks"]) == before


# -- what is left to the engine ----------------------------------------------------------------

LEFT: dict[str, tuple[Submission, ...]] = {
    "a chosen id": (submit("order-1"),),
    "a chosen id of the same length": (submit("order:1".ljust(32, "-")),),
    "a known id": (submit(made(3)),),
    "a known id among others": (submit(made(10)), submit(made(3))),
    "a known id among many": (*(submit(made(n)) for n in range(10, 40)), submit(made(3))),
    "an id that comes twice": (submit(made(10)), submit(made(10))),
    "an id that comes twice among many": tuple(submit(made(min(n, 38))) for n in range(10, 40)),
    "a deadline": (submit(made(10), deadline=5.0),),
    "a dependency of an earlier call": (submit(made(10), after=[made(3)]),),
    "one of several": (submit(made(10)), submit(made(11), deadline=5.0)),
    "a large body": (submit(made(10), body=LARGE),),
    "a queue that is new": (submit(made(10), queue="other"),),
    "two queues": (submit(made(10)), submit(made(11), queue="other")),
}


@pytest.mark.parametrize("what", LEFT)
async def test_what_is_not_plain_is_left_to_the_engine(pair: Pair, what: str) -> None:
    assert await pair.enqueue(*LEFT[what]) == 0


LIMITS: dict[str, QueueChange | TenantChange] = {
    "a pause of the queue": QueueChange(queue="default", paused=True),
    "a queue that may be full": QueueChange(queue="default", max_waiting=2),
    "a tenant that may be": QueueChange(queue="default", max_tenant_waiting=2),
    "bytes of a tenant": QueueChange(queue="default", max_tenant_bytes=300),
    "a depth to warn of": QueueChange(queue="default", warn_depth=2),
    "a limit on what runs": QueueChange(queue="default", concurrency=1),
    "a rate": QueueChange(queue="default", rate=0.1),
    "a pause of the tenant": TenantChange(tenant="a", paused=True),
}


@pytest.mark.parametrize("what", LIMITS)
async def test_limits_and_pauses_are_the_engines(pair: Pair, what: str) -> None:
    assert await pair.enqueue(submit(made(9), "b")) == 1  # it may run, whatever comes
    await pair.do(lambda client: client.configure(LIMITS[what]))
    assert await pair.enqueue(*(submit(made(n)) for n in range(10, 14))) == 0


async def test_a_new_tenant_is_the_engines_where_tenants_have_settings(pair: Pair) -> None:
    change = TenantChange(tenant="c", weight=3.0)
    await pair.do(lambda client: client.configure(change))
    assert await pair.enqueue(submit(made(10), "c"), submit(made(11))) == 0
    assert await pair.enqueue(submit(made(12), "c"), submit(made(13))) == 1
    await pair.do(lambda client: client.fetch(50))


async def test_bytes_are_counted_up_to_the_limit(pair: Pair) -> None:
    """The last task that fits goes straight, and is one byte too large for the engine."""
    change = QueueChange(queue="default", max_tenant_bytes=1_000)
    await pair.do(lambda client: client.configure(change))
    held = 2 * (100 + 1)  # one runs, one waits
    for n, body in ((10, 1_000 - held - 100 + 1), (11, 1_000 - held - 100)):
        assert await pair.enqueue(submit(made(n), body=b"x" * body)) == n - 10


async def test_bytes_of_several_are_counted_up_to_the_limit(pair: Pair) -> None:
    change = QueueChange(queue="default", max_tenant_bytes=1_000)
    await pair.do(lambda client: client.configure(change))
    held = 2 * (100 + 1)  # and the first of the two that do not fit
    for n, body in ((10, 1_000 - held - 200 + 1), (12, 1_000 - held - 300)):
        tasks = submit(made(n), body=b""), submit(made(n + 1), body=b"x" * body)
        assert await pair.enqueue(*tasks) == (n - 10) // 2


async def test_a_tenant_at_a_limiter_is_the_engines(pair: Pair) -> None:
    await pair.do(lambda client: client.configure(LimiterChange(name="gpu", concurrency=1)))
    tasks = (submit(made(n), "b", limiters=("gpu",)) for n in (10, 11))
    assert await pair.enqueue(*tasks) == 1
    await pair.do(lambda client: client.fetch(5))
    assert await pair.enqueue(submit(made(12))) == 1
    assert await pair.enqueue(submit(made(13), "b")) == 0


async def test_another_hour_is_begun_by_the_engine(pair: Pair) -> None:
    assert await pair.enqueue(submit(made(10)), now=NOW + 3600) == 0
    assert await pair.enqueue(submit(made(11)), now=NOW + 3600) == 1


@pytest.mark.parametrize("many", [1, 2])
async def test_a_block_of_events_is_closed_by_the_engine(many: int) -> None:
    pair = Pair(event_bytes=16 * 400)
    taken = [
        await pair.enqueue(*(submit(made(many * turn + n)) for n in range(many)))
        for turn in range(1, 40)
    ]
    assert 0 in taken[1:]
    assert 1 in taken
    await pair.close()


# -- what the server refuses -------------------------------------------------------------------

STRANGE: dict[str, tuple[str, ...]] = {
    "a line": ("line:default:2:a",),
    "the second line": ("line:default:2:b",),
    "who is known": ("idle",),
    "who may run": ("ready:default",),
    "who has work": ("active:default",),
    "events": ("events",),
}


BOTH = (submit(made(10)), submit(made(11), "b"))
_OTHERS = (("a", BOTH[1]), ("the second", BOTH[0]))  # whose line is another one


@pytest.mark.parametrize("tasks", [BOTH, BOTH[:1], BOTH[1:]], ids=["two", "one", "the other"])
@pytest.mark.parametrize("what", STRANGE)
async def test_keys_of_another_type_leave_all_as_it_was(
    what: str, tasks: tuple[Submission, ...]
) -> None:
    pair = Pair()
    await pair.enqueue(submit(made(1)), submit(made(2), "b"))
    await pair.do(lambda c: c.settle(*map(completed, [])))
    leases: list[Leased] = await pair.do(lambda client: client.fetch(2))
    await pair.do(lambda client: client.settle(*map(completed, leases)))
    for name in STRANGE[what]:
        pair.spoil("DEL", PREFIX + name)
        pair.spoil("SET", PREFIX + name, "strange")
    before = everything(pair.servers[0])
    answer = await pair.do(lambda client: client.enqueue(*tasks))
    if any(what == f"{which} line" and tasks == (other,) for which, other in _OTHERS):
        assert [receipt.code for receipt in answer] == ["accepted"]
    else:
        assert "another type" in answer[1]
        assert everything(pair.servers[0]) == before
    await pair.close()


@pytest.mark.parametrize("tasks", [BOTH, BOTH[:1]], ids=["two", "one"])
async def test_an_entry_that_the_server_refuses_leaves_all_as_it_was(
    tasks: tuple[Submission, ...],
) -> None:
    pair = Pair()
    await pair.enqueue(submit(made(1)), submit(made(2), "b"))
    pair.spoil("XADD", f"{PREFIX}events", f"{2**60}-0", "at", "0", "rows", "")
    before = everything(pair.servers[0])
    answer = await pair.do(lambda client: client.enqueue(*tasks))
    assert "equal or smaller" in answer[1]
    assert everything(pair.servers[0]) == before
    await pair.close()


# -- histories ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
async def test_a_history_leaves_the_same_with_and_without_it(seed: int) -> None:
    assert await History(seed).run(80) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_long_histories_do_as_well(seed: int) -> None:
    assert await History(seed).run(300, stride=10) > 30
