"""Tasks that wait for very many: how much of them one call does."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.model.lifecycle import State
from fairlead.model.options import Dependency
from tests.support.flows import make, ordered
from tests.support.store import (
    NOW,
    Client,
    complete_all,
    completed,
    dead,
    drain,
    states,
    submit,
)

HOUR, DAY = 3600.0, 86_400.0

PARENTS = [f"p{i:02}" for i in range(60)]
WIDE = [f"w{i:02}" for i in range(20)]


async def test_few_that_wait_for_many_end_in_one_call_for_one_that_failed(
    broker: Store, c: Client
) -> None:
    leases = await c.run(*map(submit, PARENTS))
    await c.enqueue(*(submit(id, after=PARENTS) for id in WIDE))
    await c.settle(dead(leases[0]))
    assert (await states(broker, *WIDE)).count(State.DEAD) == 3
    assert (await broker.deliver(now=NOW)).more
    assert await broker.audit(now=NOW) == []
    await drain(broker)
    assert await states(broker, *WIDE) == [State.DEAD] * 20


async def test_few_that_wait_for_many_expire_in_one_call(broker: Store, c: Client) -> None:
    await c.run(*map(submit, PARENTS))
    await c.enqueue(*(submit(id, after=PARENTS, deadline=5) for id in WIDE))
    now = NOW + 6
    moved = await broker.promote(now=now)
    assert (moved.count, moved.more) == (3, True)
    assert (await states(broker, *WIDE, now=now)).count(State.DEAD) == 3
    while (await broker.promote(now=now)).more:
        pass
    assert await states(broker, *WIDE, now=now) == [State.DEAD] * 20


async def test_many_that_wait_for_many_are_let_go_at_once(broker: Store, c: Client) -> None:
    leases = await c.run(*map(submit, PARENTS))
    await c.enqueue(*(submit(id, after=PARENTS) for id in WIDE))
    for lease in leases:
        await c.settle(completed(lease))
    assert await states(broker, *WIDE) == [State.QUEUED] * 20


# -- members of flows that read what they depend on --------------------------------------------


async def tidied(broker: Store, now: float) -> list[State | None]:
    """The states of the parents once everything overdue is forgotten."""
    while (await broker.tidy(now=now)).more:
        pass
    return await states(broker, *PARENTS, now=now)


async def test_all_that_a_member_reads_is_kept_even_if_the_first_are_unknown(
    broker: Store, c: Client
) -> None:
    leases = await c.run(*map(submit, PARENTS))
    await c.settle(*map(completed, leases))
    gone = [Dependency(f"gone-{i}", known=True) for i in range(50)]
    await make(c, "f", submit("wide", after=[*gone, *PARENTS], uses=True, queue="other", delay=DAY))
    assert await tidied(broker, NOW + 2 * HOUR) == [State.COMPLETED] * 60
    assert await complete_all(c, ["other"], now=NOW + DAY) == 1
    await drain(broker, now=NOW + DAY)
    assert await tidied(broker, NOW + DAY + 2 * HOUR) == [None] * 60


async def test_what_a_member_reads_that_was_retried_is_forgotten_in_the_end(
    broker: Store, c: Client
) -> None:
    leases = await c.run(*map(submit, PARENTS))
    await c.settle(*map(completed, leases))
    await make(c, "f", submit("wide", after=PARENTS, uses=True))
    for _ in range(2):
        (lease,) = await c.fetch(1)
        await c.settle(dead(lease))
        await drain(broker)
        assert (await ordered(c, "f", "retry"))[0] == 1
        await drain(broker)
        assert await broker.audit(now=NOW) == []
    assert await complete_all(c) == 1
    await drain(broker)
    assert await tidied(broker, NOW + 2 * HOUR) == [None] * 60
