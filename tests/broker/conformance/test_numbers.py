"""Numbers that readers remember are moments as well: no broker gives one out again."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.events import EventId
from tests.support.store import NOW, Client, completed, submit

LATER = NOW + 7.5
MICROSECONDS = int(LATER * 1e6)


async def test_letters_are_numbered_by_the_time_in_microseconds_or_more(
    broker: Store, c: Client
) -> None:
    leases = await c.run(submit("t1"), submit("t2"))
    await broker.watch("me", ["t1", "t2"], now=NOW)
    await c.settle(*map(completed, leases), now=LATER)

    numbers = [mail.number for mail in await broker.collect("me", 0, 0.0)]
    assert numbers == [MICROSECONDS, MICROSECONDS + 1]


async def test_entries_of_events_are_numbered_by_the_time_in_microseconds_or_more(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"), now=LATER)
    await c.enqueue(submit("t2"), now=LATER)

    entries = [event.id.entry for event in (await broker.events()).events]
    assert entries == [MICROSECONDS, MICROSECONDS + 1]


async def test_revisions_of_schedules_are_at_least_the_time_in_microseconds(
    broker: Store, c: Client
) -> None:
    def put(spec: bytes) -> ScheduleOrder:
        return ScheduleOrder(name="s", action="put", queue="mail", spec=spec, next_at=NOW + 60)

    orders = [put(b"one"), put(b"two")]
    revisions = [done.revision for done in await broker.plan(c.call(), orders, now=LATER)]
    assert revisions == [MICROSECONDS, MICROSECONDS + 1]


async def test_gap_tells_a_reader_that_the_event_it_read_last_was_lost(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t1"), now=NOW)
    (first,) = (await broker.events()).events
    await c.enqueue(submit("t2"), now=LATER)
    lost = EventId(first.id.generation, first.id.shard, first.id.entry + 1, 0)

    page = await broker.events(after=lost)

    assert (page.gap, [event.task for event in page.events]) == (True, ["t1", "t2"])
    assert (await broker.events(after=first.id)).gap is False
