"""What a program declares is set once, and again when the broker has lost it."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.requests import Declaration, LimiterChange, QueueChange, TenantChange
from tests.support.store import NOW, Client, events, ids, submit


async def test_a_declaration_is_made_like_any_change(broker: Store, c: Client) -> None:
    await c.configure(
        Declaration(QueueChange(queue="mail", max_waiting=2)),
        Declaration(TenantChange(tenant="a", concurrency=1)),
        Declaration(LimiterChange(name="smtp", concurrency=1)),
    )
    receipts = await c.enqueue(*(submit(f"m{n}", queue="mail") for n in range(3)))
    assert [receipt.code for receipt in receipts] == ["accepted", "accepted", "queue_full"]
    assert ids(await c.fetch(3, ["mail"])) == ["m0"]
    await c.enqueue(*(submit(f"b{n}", "b", limiters=("smtp",)) for n in range(2)))
    assert ids(await c.fetch(3)) == ["b0"]


async def test_the_same_declaration_again_leaves_what_was_set_meanwhile(
    broker: Store, c: Client
) -> None:
    declared = [
        Declaration(QueueChange(queue="mail", concurrency=1)),
        Declaration(TenantChange(tenant="a", queue="mail", concurrency=1)),
        Declaration(LimiterChange(name="smtp", concurrency=1)),
    ]
    await c.configure(*declared)
    await c.configure(
        QueueChange(queue="mail", concurrency=None),
        TenantChange(tenant="a", queue="mail", concurrency=3),
        LimiterChange(name="smtp", concurrency=2),
    )
    told = len(await events(broker, "configured"))

    await c.configure(*declared)

    assert len(await events(broker, "configured")) == told
    await c.enqueue(*(submit(f"m{n}", queue="mail") for n in range(4)))
    assert len(await c.fetch(9, ["mail"])) == 3
    await c.enqueue(*(submit(f"b{n}", "b", limiters=("smtp",)) for n in range(4)))
    assert len(await c.fetch(9)) == 2


async def test_a_declaration_that_changed_is_made(c: Client) -> None:
    await c.configure(Declaration(QueueChange(queue="mail", concurrency=1)))
    await c.configure(QueueChange(queue="mail", concurrency=7))
    await c.configure(Declaration(QueueChange(queue="mail", concurrency=2)))

    await c.enqueue(*(submit(f"m{n}", queue="mail") for n in range(4)))
    assert len(await c.fetch(9, ["mail"])) == 2


async def test_of_two_declarations_in_a_call_the_later_one_counts(c: Client) -> None:
    one, two = (Declaration(QueueChange(queue="mail", concurrency=n)) for n in (1, 2))
    await c.configure(one, two, two)
    await c.configure(two)
    await c.enqueue(*(submit(f"m{n}", queue="mail") for n in range(4)))
    assert len(await c.fetch(9, ["mail"])) == 2

    await c.configure(one)  # it is not the last one any more
    assert await c.fetch(9, ["mail"]) == []


async def test_declarations_about_a_tenant_are_told_apart_by_queue(c: Client) -> None:
    everywhere = Declaration(TenantChange(tenant="a", concurrency=1))
    here = Declaration(TenantChange(tenant="a", queue="mail", concurrency=2))
    await c.configure(everywhere, here)
    await c.configure(TenantChange(tenant="a", queue="mail", concurrency=3))
    await c.configure(everywhere, here)

    await c.enqueue(*(submit(f"m{n}", queue="mail") for n in range(4)))
    assert len(await c.fetch(9, ["mail"])) == 3


async def test_what_was_declared_for_a_queue_that_was_deleted_is_declared_anew(
    broker: Store, c: Client
) -> None:
    declared = Declaration(QueueChange(queue="mail", max_waiting=1))
    await c.configure(declared)
    assert not (await broker.delete_queue(c.call(), "mail", now=NOW)).refused

    await c.configure(declared)  # the program starts again

    receipts = await c.enqueue(*(submit(f"m{n}", queue="mail") for n in range(2)))
    assert [receipt.code for receipt in receipts] == ["accepted", "queue_full"]
