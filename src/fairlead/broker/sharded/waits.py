"""wait, collect, events: whatever comes first from any shard."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from fairlead.broker import checks
from fairlead.broker.records import EventPage
from fairlead.broker.requests import LEASE, Call, Mail, Taken
from fairlead.broker.sharded.session import HURRY, Session
from fairlead.broker.waits import Woken
from fairlead.model.errors import BrokerError, Unreachable
from fairlead.model.event_places import joined, places_of
from fairlead.model.events import EVENT_KINDS, Event, EventId

T = TypeVar("T")

_GRACE = 1.0  # seconds that shards have to say at once what they hold, after the first has
_LOOK = 1.0  # seconds that a wait for events may take while a shard is away: it may be back

_OF_WORKERS = frozenset(kind for kind in EVENT_KINDS if kind.startswith("worker_"))


async def take(
    session: Session,
    call: Call,
    queues: Sequence[str],
    timeout: float,
    _: Woken,
    *,
    lease: float = LEASE,
    mail_for: str = "",
) -> Taken:
    """Wait as ``wait`` does: what waits for one shard must not keep the others' tasks."""
    return await session.takes.take(call, lease, wait(session, queues, timeout, mail_for=mail_for))


async def wait(
    session: Session, queues: Sequence[str], timeout: float, *, mail_for: str = ""
) -> bool:
    """Return when there may be something to fetch from one of the shards."""
    waits = {
        shard: partial(session.stores[shard].wait, names, mail_for=mail_for)
        for shard, names in session.places.split(queues).items()
    }
    there, seconds = _there(session, waits, timeout)
    found = await _race(
        session, {shard: partial(waits[shard], seconds) for shard in there}, bool, limit=seconds
    )
    session.woken |= found.keys()
    return bool(found)


def _there(session: Session, shards: Iterable[str], timeout: float) -> tuple[list[str], float]:
    """Return the shards that are not away, or all if all are, and how long to wait for them.

    It is not for long while one is away: it may be back.
    """
    names = list(shards)
    there = [shard for shard in names if len(names) == 1 or session.away.why(shard) is None]
    return there or names, timeout if len(there) == len(names) else min(timeout, _LOOK)


async def collect(session: Session, incarnation: str, after: int, timeout: float) -> list[Mail]:
    """The incarnation's mail; its numbers are this broker's own, and begin with it."""
    box = session.mailboxes.of(incarnation)
    box.confirm(after)

    def calls(seconds: float) -> dict[str, Callable[[], Coroutine[Any, Any, list[Mail]]]]:
        return {
            shard: partial(store.collect, incarnation, box.after(shard), seconds)
            for shard, store in session.stores.items()
            if shard in there
        }

    there, seconds = _there(session, session.stores, timeout)
    # First what there is: a shard with much mail must not keep that of another from coming.
    found = await _race(session, calls(0.0), bool, grace=_GRACE, limit=0.0)
    if not found and seconds > 0.0:
        found = await _race(session, calls(seconds), bool, limit=seconds)
    return [mail for shard, letters in found.items() for mail in box.number(shard, letters)]


async def events(
    session: Session,
    *,
    after: EventId | None = None,
    reader: str | None = None,
    limit: int = 500,
    timeout: float = 0.0,
    latest: bool = False,
) -> EventPage:
    """Events of all shards by their times; each shard's own are in order.

    ``last`` stands for a place in every shard. An event's own id stands for one in its shard
    only: the others go on at the reader's place, or begin with the oldest that they keep.
    A shard that is away keeps its place, and the others go on without it.
    """
    checks.check_reader(reader, limit)
    clock = asyncio.get_running_loop().time
    ends = clock() + timeout
    while True:
        places = _places(after, session.stores)
        left = 0.0 if latest else max(ends - clock(), 0.0)
        pages, found = await _read(session, places, reader, limit, left, latest=latest)
        page = _merged(_told(session, pages), places, limit)
        if page.events or page.gap or not found or clock() >= ends:
            return page
        after = page.last  # nothing but what other shards tell, too


async def _read(
    session: Session,
    places: dict[str, EventId],
    reader: str | None,
    limit: int,
    timeout: float,
    *,
    latest: bool,
) -> tuple[dict[str, EventPage], bool]:
    """A page of each shard, and whether there is anything in them."""

    def read(shard: str, seconds: float) -> Coroutine[Any, Any, EventPage]:
        return session.stores[shard].events(
            after=places.get(shard), reader=reader, limit=limit, timeout=seconds, latest=latest
        )

    pages, away = await session.reachable(
        {shard: partial(read, shard, 0.0) for shard in session.stores}
    )
    if timeout > 0.0 and not any(map(_has_news, pages.values())):
        seconds = min(timeout, _LOOK) if away else timeout
        waits = {shard: partial(read, shard, seconds) for shard in pages}
        pages |= await _race(session, waits, _has_news, limit=seconds)
    return pages, any(map(_has_news, pages.values()))


def _told(session: Session, pages: Mapping[str, EventPage]) -> dict[str, EventPage]:
    """The pages without what the first shard tells for all: workers are known in each."""
    return {
        shard: page
        if shard == session.default
        else msgspec.structs.replace(
            page, events=[each for each in page.events if each.kind not in _OF_WORKERS]
        )
        for shard, page in pages.items()
    }


async def _race(
    session: Session,
    calls: Mapping[str, Callable[[], Coroutine[Any, Any, T]]],
    found: Callable[[T], bool],
    *,
    limit: float,
    grace: float = 0.0,
) -> dict[str, T]:
    """What the first shards that have something answer; others have ``grace`` seconds left.

    A shard that fails does not keep the others from answering. One that is silent a moment
    after the ``limit`` that all were given is away.
    """
    if len(calls) == 1:
        ((shard, call),) = calls.items()
        answer = await call()
        return {shard: answer} if found(answer) else {}
    tasks = {asyncio.ensure_future(call()): shard for shard, call in calls.items()}
    pending = set(tasks)
    try:
        pending = await _first_found(session, tasks, found, limit)
        if pending and grace:
            _, pending = await asyncio.wait(pending, timeout=grace)
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
    answers: dict[str, T] = {}
    errors: list[BaseException] = []
    for task, shard in tasks.items():  # some may have come while they were being cancelled
        error = None if task.cancelled() else task.exception()
        if error is not None:
            errors.append(error)
            if isinstance(error, BrokerError) and error.passes:
                session.away.failed(shard, error)
        elif not task.cancelled() and found(task.result()):
            answers[shard] = task.result()
    if not answers and len(errors) == len(tasks):
        raise errors[0]
    return answers


async def _first_found(
    session: Session, tasks: Mapping[asyncio.Task[T], str], found: Callable[[T], bool], limit: float
) -> set[asyncio.Task[T]]:
    """Wait until one has something, and return those that are still under way."""
    clock = asyncio.get_running_loop().time
    ends = clock() + limit + HURRY
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(
            pending, timeout=ends - clock(), return_when=asyncio.FIRST_COMPLETED
        )
        if any(task.exception() is None and found(task.result()) for task in done):
            break
        if not done:
            for shard in map(tasks.__getitem__, pending):
                silent = Unreachable(f"shard {shard} did not answer in time")
                session.away.failed(shard, silent)
            break
    return pending


def _has_news(page: EventPage) -> bool:
    return bool(page.events or page.gap)


def _places(after: EventId | None, shards: Iterable[str]) -> dict[str, EventId]:
    """By shard, where to read on. What is no place in any of them is a gap in all."""
    if after is None:
        return {}
    names = list(shards)
    known = {shard: place for shard, place in places_of(after).items() if shard in names}
    return known or {shard: EventId("?", shard, 0, 0) for shard in names}


def _merged(pages: Mapping[str, EventPage], places: dict[str, EventId], limit: int) -> EventPage:
    def keyed(page: EventPage) -> list[tuple[float, str, int, int, Event]]:
        return [(e.at, e.id.shard, e.id.entry, e.id.index, e) for e in page.events]

    events = [row[-1] for row in heapq.merge(*map(keyed, pages.values()))][:limit]
    taken: dict[str, list[Event]] = {shard: [] for shard in pages}
    for event in events:
        taken[event.id.shard].append(event)
    reached = dict(places)
    for shard, page in pages.items():
        if len(taken[shard]) == len(page.events) and page.last is not None:
            reached[shard] = page.last
        elif taken[shard]:
            reached[shard] = taken[shard][-1].id
    return EventPage(
        now=max(page.now for page in pages.values()),
        events=events,
        gap=any(page.gap for page in pages.values()),
        last=joined(reached),
    )
