"""What is met twice in one call, or stands twice where it is kept, counts once."""

from __future__ import annotations

import msgspec

from fairlead.broker import Store
from fairlead.broker.requests import Alter, QueueChange
from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, completed, dead, ids, states, submit


def made(number: int) -> str:
    """An id like those that Fairlead makes."""
    return f"{number:032x}"


async def test_an_id_that_comes_back_after_it_was_deleted_is_lent_once(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit(made(1)), submit(made(2)))
    await c.cancel(made(2))
    await c.delete(made(2))
    await c.enqueue(submit(made(2)), submit(made(3)))

    leases = await c.fetch(10)

    assert sorted(ids(leases)) == [made(1), made(2), made(3)]
    assert await c.settle(*map(completed, leases)) == ["applied"] * 3


async def test_a_task_that_is_deleted_is_not_trimmed_as_well(broker: Store, c: Client) -> None:
    await c.settle(*map(completed, await c.run(*(submit(made(n)) for n in range(4)))))
    await c.enqueue(submit(made(9)))
    await c.configure(QueueChange(queue="default", keep_completed_count=3))

    await c.alter(Alter(id=made(0), action="delete"), Alter(id=made(9), action="cancel"))

    assert await states(broker, *map(made, (0, 1, 2, 3, 9))) == [
        *(None, None),
        *(State.COMPLETED, State.COMPLETED, State.CANCELLED),
    ]
    assert (await broker.snapshot(now=NOW)).completed == 2


async def test_a_deleted_task_does_not_let_one_go_that_is_kept_longer(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=3))
    (precious,) = await c.run(submit(made(7)))
    await c.settle(completed(precious, b"precious", keep=1e6))
    for second in (1, 2):
        leases = await c.run(submit(made(second)), now=NOW + second)
        await c.settle(*map(completed, leases), now=NOW + second)
    await c.delete(made(1), now=NOW + 3)

    leases = await c.run(submit(made(8)), submit(made(9)), now=NOW + 5)
    await c.settle(*map(completed, leases), now=NOW + 5)

    assert await states(broker, made(2), made(7), now=NOW + 5) == [None, State.COMPLETED]


async def test_a_settlement_with_a_token_that_never_was_is_fenced_alone(c: Client) -> None:
    one, other = await c.run(submit(made(1)), submit(made(2)))
    stray = msgspec.structs.replace(completed(other), token=-1)

    assert await c.settle(dead(one), stray, completed(other)) == ["applied", "fenced", "applied"]
