"""Gaps in the stream of events: told to whoever missed something, once, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.records import EventPage
from fairlead.broker.requests import MAX_READERS, MAX_STEP, READER_SEEN, READER_SILENCE
from fairlead.model.errors import InvalidInput, Refused
from fairlead.model.events import Event, EventId
from tests.support.store import NOW, Client, events, submit

READERS = pytest.mark.parametrize("reader", [None, "r"], ids=["unnamed", "named"])


async def flood(broker: Store, prefix: str = "flood.", count: int = 200) -> None:
    """More events than the 4 kB of the terse broker can keep."""
    c = Client(broker, prefix)
    for i in range(0, count, 10):
        await c.enqueue(*(submit(f"{prefix}{i + k:03}") for k in range(10)))


def place_of(page: EventPage) -> EventId:
    assert page.last is not None
    return page.last


async def reads_on_quietly(broker: Store, place: EventId | None, reader: str | None) -> None:
    """From this place on there is no gap, and with a timeout the reader waits for the next."""
    page = await broker.events(after=place, reader=reader)
    while page.events:
        assert page.gap is False
        page = await broker.events(after=page.last, reader=reader)
    assert (page.gap, page.events) == (False, [])

    waiting = asyncio.ensure_future(broker.events(after=page.last, reader=reader, timeout=60.0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    await Client(broker, "quiet").enqueue(submit("next"))
    page = await asyncio.wait_for(waiting, 5.0)
    assert (page.gap, [event.task for event in page.events]) == (False, ["next"])


# -- where to read on -------------------------------------------------------------------------


async def from_the_beginning(broker: Store, last: EventId) -> EventPage:
    return await broker.events()


async def from_the_end(broker: Store, last: EventId) -> EventPage:
    return await broker.events(after=last)


async def by_name(broker: Store, last: EventId) -> EventPage:
    return await broker.events(reader="new")


async def after_another_generation(broker: Store, last: EventId) -> EventPage:
    return await broker.events(after=EventId("another", last.shard, 3, 0))


async def after_another_shard(broker: Store, last: EventId) -> EventPage:
    return await broker.events(after=EventId(last.generation, "other", 3, 0))


async def after_the_future(broker: Store, last: EventId) -> EventPage:
    return await broker.events(after=EventId(last.generation, last.shard, last.entry + 1, 0))


async def by_a_name_of_another_generation(broker: Store, last: EventId) -> EventPage:
    return await broker.events(after=EventId("another", last.shard, 3, 0), reader="r")


async def out_of_time(broker: Store, last: EventId) -> EventPage:
    return await broker.events(after=last, timeout=0.01)


Read = Callable[[Store, EventId], Awaitable[EventPage]]
READS: list[Read] = [
    from_the_beginning,
    from_the_end,
    by_name,
    after_another_generation,
    after_another_shard,
    after_the_future,
    by_a_name_of_another_generation,
    out_of_time,
]
FOREIGN: list[Read] = [
    after_another_generation,
    after_another_shard,
    after_the_future,
    by_a_name_of_another_generation,
]


@pytest.mark.parametrize("count", [0, 10, 200], ids=["empty", "few events", "some dropped"])
@pytest.mark.parametrize("read", READS)
async def test_the_last_of_every_page_is_an_id_of_this_generation(
    terse_broker: Store, read: Read, count: int
) -> None:
    hello = await terse_broker.hello()
    last = place_of(await terse_broker.events())
    assert (last.generation, last.shard) == (hello.generation, hello.shard)
    if count:
        await flood(terse_broker, count=count)
        last = (await events(terse_broker))[-1].id

    page = await read(terse_broker, last)

    assert page.last is not None
    assert (page.last.generation, page.last.shard) == (hello.generation, hello.shard)
    assert page.last == last  # whoever reads on from here misses nothing and sees nothing twice


# -- ids that are not of this stream ----------------------------------------------------------


@pytest.mark.parametrize("count", [0, 10, 200], ids=["empty", "few events", "some dropped"])
@pytest.mark.parametrize("read", FOREIGN)
async def test_an_id_that_is_not_of_this_stream_is_a_gap_once(
    terse_broker: Store, read: Read, count: int
) -> None:
    last = place_of(await terse_broker.events())
    if count:
        await flood(terse_broker, count=count)
        last = (await events(terse_broker))[-1].id

    page = await read(terse_broker, last)

    assert page.gap is True
    assert page.events == await events(terse_broker)
    reader = "r" if read is by_a_name_of_another_generation else None
    await reads_on_quietly(terse_broker, page.last, reader)


async def test_a_gap_is_told_at_once_and_then_a_reader_with_time_waits(
    terse_broker: Store,
) -> None:
    last = place_of(await terse_broker.events())
    page = await asyncio.wait_for(
        terse_broker.events(after=EventId("another", last.shard, 1, 0), timeout=60.0), 5.0
    )
    assert (page.gap, page.events, page.last) == (True, [], last)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(terse_broker.events(after=page.last, timeout=60.0), 0.1)


async def test_a_page_with_a_gap_can_be_read_in_parts(terse_broker: Store) -> None:
    await flood(terse_broker)
    kept = await events(terse_broker)
    page = await terse_broker.events(after=EventId("another", "0", 9, 9), limit=3)
    assert (page.gap, page.events) == (True, kept[:3])

    read: list[Event] = list(page.events)
    while page.events:
        page = await terse_broker.events(after=page.last, limit=3)
        assert page.gap is False
        read += page.events
    assert read == kept


# -- readers that missed something ------------------------------------------------------------


@READERS
async def test_a_reader_that_began_before_the_first_event_is_told_of_a_gap(
    terse_broker: Store, reader: str | None
) -> None:
    page = await terse_broker.events(reader=reader)
    assert (page.gap, page.events) == (False, [])
    await flood(terse_broker)

    page = await terse_broker.events(after=page.last, reader=reader)

    assert page.gap is True
    assert page.events == await events(terse_broker)
    await reads_on_quietly(terse_broker, page.last, reader)


@READERS
async def test_a_reader_that_began_before_the_first_event_misses_nothing_that_is_kept(
    terse_broker: Store, reader: str | None
) -> None:
    place = (await terse_broker.events(reader=reader)).last
    await flood(terse_broker, count=10)

    page = await terse_broker.events(after=place, reader=reader)

    assert page.gap is False
    assert [event.task for event in page.events] == [f"flood.{i:03}" for i in range(10)]


async def test_a_named_reader_that_only_began_is_told_of_a_gap(terse_broker: Store) -> None:
    assert (await terse_broker.events(reader="r")).events == []
    await flood(terse_broker)

    page = await terse_broker.events(reader="r")
    assert page.gap is True
    assert page.events == await events(terse_broker)
    assert await terse_broker.events(reader="r") == page  # nothing was confirmed: it is still so
    await reads_on_quietly(terse_broker, page.last, "r")


async def test_a_named_reader_that_read_but_did_not_confirm_is_told_of_a_gap(
    terse_broker: Store,
) -> None:
    await flood(terse_broker, "first.", 10)
    page = await terse_broker.events(reader="r", limit=2)
    assert [event.task for event in page.events] == ["first.000", "first.001"]
    await flood(terse_broker)

    page = await terse_broker.events(reader="r")

    assert page.gap is True
    assert page.events == await events(terse_broker)
    await reads_on_quietly(terse_broker, page.last, "r")


async def test_a_named_reader_that_waited_in_vain_is_told_of_a_gap(terse_broker: Store) -> None:
    page = await terse_broker.events(reader="r", timeout=0.01)
    assert (page.gap, page.events) == (False, [])
    await flood(terse_broker)
    assert (await terse_broker.events(reader="r")).gap is True


async def test_a_reader_is_told_of_a_gap_exactly_if_the_next_event_was_dropped(
    terse_broker: Store,
) -> None:
    c = Client(terse_broker)
    page = await terse_broker.events()
    places = [place_of(page)]
    for i in range(40):  # entries of one to four events each
        await c.enqueue(*(submit(f"t.{i}.{k}") for k in range(1 + i % 4)))
        page = await terse_broker.events(after=page.last)
        assert page.gap is False
        places += [event.id for event in page.events]

    first = places.index((await events(terse_broker))[0].id)
    assert 1 < first < len(places) - 1
    gaps = [(await terse_broker.events(after=place)).gap for place in places]
    assert gaps == [True] * (first - 1) + [False] * (len(places) - first + 1)


# -- readers that missed nothing --------------------------------------------------------------


@READERS
async def test_a_new_reader_after_drops_starts_at_the_oldest_kept_without_a_gap(
    terse_broker: Store, reader: str | None
) -> None:
    await flood(terse_broker)
    kept = await events(terse_broker)
    assert kept[0].task != "flood.000"

    page = await terse_broker.events(reader=reader)

    assert (page.gap, page.events) == (False, kept)
    await reads_on_quietly(terse_broker, page.last, reader)


async def test_a_new_named_reader_that_does_not_confirm_is_told_of_later_drops(
    terse_broker: Store,
) -> None:
    await flood(terse_broker)
    assert (await terse_broker.events(reader="r")).gap is False
    assert (await terse_broker.events(reader="r")).gap is False
    await flood(terse_broker, "second.")
    assert (await terse_broker.events(reader="r")).gap is True
    assert (await terse_broker.events(reader="other")).gap is False


@READERS
async def test_a_reader_that_keeps_up_never_has_a_gap(
    terse_broker: Store, reader: str | None
) -> None:
    place: EventId | None = None
    seen: list[str] = []
    for turn in range(100):
        await flood(terse_broker, f"{turn}.", 10)
        page = await terse_broker.events(after=place, reader=reader)
        assert page.gap is False
        seen += [event.task for event in page.events]
        place = page.last
    assert seen == [f"{turn}.{i:03}" for turn in range(100) for i in range(10)]


async def test_a_thousand_readers_may_have_a_name(broker: Store) -> None:
    for number in range(MAX_READERS):
        await broker.events(reader=f"r{number}")

    with pytest.raises(Refused) as refused:
        await broker.events(reader="one too many")
    assert refused.value.cause == "readers"
    assert (await broker.events(reader="r7")).gap is False
    assert (await broker.events()).gap is False

    assert await broker.forget_reader("r7") is True
    assert (await broker.events(reader="one more")).gap is False
    with pytest.raises(Refused):
        await broker.events(reader="r7")


async def test_a_reader_that_is_silent_for_long_makes_room_for_another(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t"))
    place = (await broker.events()).last
    for number in range(MAX_READERS):
        await broker.events(after=place, reader=f"r{number:03}")
    await broker.tidy(now=NOW + READER_SEEN)
    for number in range(2, MAX_READERS):  # nothing happened: they read, and stay where they are
        assert (await broker.events(reader=f"r{number:03}")).events == []

    await broker.tidy(now=NOW + READER_SILENCE)
    with pytest.raises(Refused):
        await broker.events(reader="early")
    await broker.tidy(now=NOW + READER_SILENCE + 1)
    await broker.events(reader="new")  # in the place of r000
    await broker.events(reader="next")  # of r001
    with pytest.raises(Refused):
        await broker.events(reader="late")
    assert (await broker.events(reader="r002")).events == []  # its place is kept

    assert not await broker.forget_reader("r000")
    assert not await broker.forget_reader("r001")
    assert await broker.forget_reader("r002")
    await broker.events(reader="late")


async def test_a_reader_that_was_forgotten_begins_anew(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2"))
    first = await broker.events(reader="r")
    await broker.events(after=first.last, reader="r")
    await broker.events(after=first.last, reader="other")

    assert await broker.forget_reader("r") is True
    assert await broker.forget_reader("r") is False

    assert await broker.events(reader="r") == first
    assert (await broker.events(reader="other")).events == []


@pytest.mark.parametrize("name", ["", "a\x00b"])
async def test_only_a_name_can_be_forgotten(broker: Store, name: str) -> None:
    with pytest.raises(InvalidInput):
        await broker.forget_reader(name)


async def test_promote_counts_a_task_that_is_due_and_too_late_once(
    broker: Store, c: Client
) -> None:
    many = MAX_STEP - 1  # nearly two steps of times, fewer than a step of tasks
    await c.enqueue(
        *(submit(f"t{i}", delay=1 + i * 0.01, deadline=1.005 + i * 0.01) for i in range(many))
    )

    moved = await broker.promote(now=NOW + 10)

    assert (moved.count, moved.more) == (many, False)
    assert (await broker.snapshot(now=NOW + 10)).dead == many
