"""Tasks that wait for very many: how much of them one call does."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, completed, dead, drain, states, submit

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
