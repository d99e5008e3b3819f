"""Orders about all tasks that match, in steps: in memory, without HTTP or commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fairlead import Fairlead, State
from fairlead.broker.requests import Alter
from fairlead.client.bulk_actions import BulkAction, BulkPlace, Changes, begin, bulk_step
from fairlead.client.client import Client
from fairlead.client.task_pages import found_tasks, has_error, has_name


@pytest.fixture
async def app() -> AsyncIterator[Fairlead]:
    made = Fairlead("memory://")

    @made.task(name="shop.mail", max_retries=0)
    async def mail(to: str) -> None:
        if to.startswith("bad"):
            raise ValueError(f"no mailbox {to}")

    yield made
    await made.aclose()


async def carried_out(app: Fairlead, act: BulkAction, place: BulkPlace | None = None) -> BulkPlace:
    client, changes = app._clients.current(), Changes()
    place = await begin(client, None) if place is None else place
    while True:
        done = await bulk_step(client, act, place, changes)
        place = done.after
        if done.is_last:
            assert changes.count == place.changed
            return place


async def test_an_act_goes_through_all_that_match_in_steps(app: Fairlead) -> None:
    mail = app.registered("shop.mail")
    await app.aenqueue_many(mail.using(tenant=f"t{n % 2}").call(f"{n}") for n in range(500))
    act = BulkAction(action="cancel", selection={"tenant": "t0"}, matches=lambda _: True)
    dry = BulkAction(action="cancel", selection={}, matches=lambda _: True, dry_run=True)
    assert (await carried_out(app, dry)).matched == 500
    place = await carried_out(app, act)
    assert (place.matched, place.changed) == (250, 250)
    assert (await app.asnapshot()).depth == 250


async def test_no_call_of_an_act_is_about_many_tasks(
    app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the server as long as a call takes: ten orders are milliseconds."""
    mail = app.registered("shop.mail")
    await app.aenqueue_many(mail.call(f"{n}") for n in range(95))
    sizes: list[int] = []
    alter = Client.alter

    async def counted(client: Client, orders: Sequence[Alter]) -> Any:
        sizes.append(len(orders))
        return await alter(client, orders)

    monkeypatch.setattr(Client, "alter", counted)
    act = BulkAction(action="cancel", selection={}, matches=lambda _: True)
    assert (await carried_out(app, act)).changed == 95
    assert (max(sizes), sum(sizes)) == (10, 95)


async def test_what_came_after_the_beginning_is_left_alone(app: Fairlead) -> None:
    mail = app.registered("shop.mail")
    await mail.aenqueue("before")
    place = await begin(app._clients.current(), None)
    later = await mail.aenqueue("later")
    act = BulkAction(action="cancel", selection={}, matches=lambda _: True)
    assert (await carried_out(app, act, place)).changed == 1
    assert await later.astate() is State.QUEUED


async def test_names_and_errors_match_as_a_whole_or_in_part(app: Fairlead) -> None:
    mail = app.registered("shop.mail")
    for to in ("bad-1", "ann"):
        await mail.aenqueue(to)
    await app.drain()
    found = await found_tasks(
        app._clients.current(), {"state": "dead"}, lambda _: True, limit=10, calls=5
    )
    (record,) = found.records
    assert [has_name(record, name) for name in ("shop.mail", "shop.*", "shop", "mail*")] == [
        *(True, True, False, False)
    ]
    errors = ("ValueError", "ValueError: no mailbox bad", "exhausted", "exhaust", "KeyError")
    assert [has_error(record, error) for error in errors] == [True, True, True, False, False]
