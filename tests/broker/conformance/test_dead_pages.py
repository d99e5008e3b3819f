"""Listings of dead tasks: they come however much else is stored, in pages that go on."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.records import Page
from fairlead.broker.requests import QueueChange
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import State
from tests.support.store import NOW, Client, dead, submit


async def die(c: Client, *ids: str, tenant: str = "a", queue: str = "default", at: float) -> None:
    body = b"x" * 200
    await c.enqueue(*(submit(id, tenant, queue, body=body) for id in ids), now=at)
    leases = await c.fetch(len(ids), [queue], now=at)
    await c.settle(*(dead(lease) for lease in leases), now=at)


async def pages(
    broker: Store, limit: int, *, queue: str | None = None, tenant: str | None = None
) -> list[Page]:
    found: list[Page] = []
    cursor = None
    while not found or cursor is not None:
        page = await broker.page(
            state=State.DEAD,
            queue=queue,
            tenant=tenant,
            cursor=cursor,
            limit=limit,
            now=NOW + 99,
        )
        assert len(page.tasks) <= limit
        found.append(page)
        cursor = page.cursor
        assert len(found) < 100
    return found


def ids_of(found: list[Page]) -> list[str]:
    return [record.message.id for page in found for record in page.tasks]


async def test_dead_tasks_of_all_queues_are_listed_once(broker: Store, c: Client) -> None:
    wanted = []
    for queue in ("web", "mail"):
        for n in range(7):
            wanted.append(f"{queue}.{n}")
            await die(c, f"{queue}.{n}", tenant=f"t{n % 3}", queue=queue, at=NOW + n)
    await c.enqueue(*(submit(f"w.{n}") for n in range(20)))
    for limit in (1, 3, 100):
        assert sorted(ids_of(await pages(broker, limit))) == sorted(wanted)
    assert sorted(ids_of(await pages(broker, 2, queue="web"))) == sorted(wanted[:7])
    assert sorted(ids_of(await pages(broker, 2, tenant="t1"))) == [
        "mail.1", "mail.4", "web.1", "web.4",
    ]  # fmt: skip
    assert ids_of(await pages(broker, 5, queue="nothing")) == []


async def test_those_that_ended_at_one_moment_are_listed_once(broker: Store, c: Client) -> None:
    names = [f"d.{n:02}" for n in range(30)]
    await die(c, *names, at=NOW)
    assert sorted(ids_of(await pages(broker, 4))) == names


async def test_tenants_that_hold_much_are_listed_as_well(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_dead_bytes=64 * 600))
    small = [f"s.{n}" for n in range(3)]
    large = [f"l.{n}" for n in range(12)]
    huge = [f"h.{n}" for n in range(12)]
    for n, name in enumerate(small):
        await die(c, name, tenant="small", at=NOW + n)
    await die(c, *large, tenant="large", at=NOW + 5)
    await die(c, *huge, tenant="huge:ü", at=NOW + 6)
    for limit in (1, 5, 50):
        assert sorted(ids_of(await pages(broker, limit))) == sorted([*small, *large, *huge])


async def test_a_listing_goes_on_behind_a_task_that_is_gone(broker: Store, c: Client) -> None:
    for n in range(6):
        await die(c, f"d.{n}", at=NOW + n)
    first = await broker.page(state=State.DEAD, limit=2, now=NOW + 99)
    for record in first.tasks:
        await c.delete(record.message.id, now=NOW + 99)
    rest = await broker.page(state=State.DEAD, cursor=first.cursor, limit=50, now=NOW + 99)
    listed = {record.message.id for record in (*first.tasks, *rest.tasks)}
    assert listed == {f"d.{n}" for n in range(6)}


@pytest.mark.parametrize("cursor", ["nonsense!", "e30", "WyJhIiwiIiwiaWQiLCJ4Il0"])
async def test_a_cursor_that_is_none_is_refused(broker: Store, c: Client, cursor: str) -> None:
    await die(c, "d", at=NOW)
    with pytest.raises(InvalidOption):
        await broker.page(state=State.DEAD, cursor=cursor, now=NOW)
