"""Two brokers under one contract: whatever is asked of one is asked of both, and must be answered
the same by both. ``Twins`` is a Store; its answers are those of the first.

Also servers for properties: one of each kind for the whole process, and a new broker on an empty
database of it in a few milliseconds.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import cache
from typing import Any, cast

import msgspec
import redis

from fairlead.broker import Store
from fairlead.broker.records import EventPage, Hello, Page, Snapshot, TaskRecord, WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import BeatReply, Moved
from fairlead.broker.standing import Standing
from fairlead.model.events import Event, EventId
from tests.support import servers
from tests.support.long_way import chosen_lua

_databases = itertools.cycle(range(16))  # as many as a server has: more than a test opens
_servers = ExitStack()
atexit.register(_servers.close)


def twins(first: Store, second: Store) -> Store:
    """A Store that asserts that both answer the same."""
    return cast(Store, Twins(first, second))


def on_server(kind: servers.Kind) -> Store:
    """A broker with a test clock on an empty database of the server of this process."""
    return RedisBroker(emptied(kind), test_clock=True, lua=chosen_lua())


def emptied(kind: servers.Kind) -> str:
    """The address of an empty database: as good as a new server, and much sooner there."""
    running, database = _server(kind), next(_databases)
    _flusher(kind, database).flushdb()
    return f"{running.url}?db={database}"


@cache
def _server(kind: servers.Kind) -> servers.Running:
    return _servers.enter_context(servers.server(kind))


@cache
def _flusher(kind: servers.Kind, database: int) -> redis.Redis:
    client = _server(kind).client(database)
    _servers.callback(client.close)
    return client


class Twins:
    """All verbs by name: most need nothing but to be asked twice.

    An error is an answer too: both must raise the same. The exceptions are what a store calls by
    names of its own, generations and cursors, which are translated for the second.
    """

    def __init__(self, first: Store, second: Store) -> None:
        self._first, self._second = first, second
        self._generations: tuple[str, str] | None = None

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if verb.startswith("_"):
            raise AttributeError(verb)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return await self._both(verb, args, kwargs, kwargs)

        return ask

    async def events(self, *, after: EventId | None = None, **kwargs: Any) -> EventPage:
        """Read on from the same event, whatever generation the second calls its own."""
        if self._generations is None:
            one, other = await self._first.hello(), await self._second.hello()
            self._generations = (one.generation, other.generation)
        mine, theirs = self._generations
        place = after
        if after is not None and after.generation == mine:
            place = msgspec.structs.replace(after, generation=theirs)
        first, second = {"after": after, **kwargs}, {"after": place, **kwargs}
        return cast(EventPage, await self._both("events", (), first, second))

    async def page(self, *, cursor: str | None = None, **kwargs: Any) -> Page:
        """The first page compares the whole listings; further ones are read from the first only."""
        if cursor is not None:
            return await self._first.page(cursor=cursor, **kwargs)
        begin = await self._first.page(**kwargs)
        one, other = await listed(self._first, **kwargs), await listed(self._second, **kwargs)
        _compare("page", one, other)
        return begin

    async def tidy(self, *, now: float | None = None) -> Moved:
        """All steps at once: one store may have more to forget than the other, see ``plain``."""
        one, other = await tidied(self._first, now), await tidied(self._second, now)
        _compare("tidy", one, other)
        return one

    async def audit(self, *, now: float | None = None) -> list[str]:
        """What is wrong with either."""
        one, other = await self._first.audit(now=now), await self._second.audit(now=now)
        return [*(f"first: {each}" for each in one), *(f"second: {each}" for each in other)]

    async def _both(
        self, verb: str, args: tuple[Any, ...], first: dict[str, Any], second: dict[str, Any]
    ) -> Any:
        one = await _outcome(getattr(self._first, verb)(*args, **first))
        other = await _outcome(getattr(self._second, verb)(*args, **second))
        _compare(verb, one, other)
        if isinstance(one, Exception):
            raise one
        return one


async def listed(store: Store, **kwargs: Any) -> dict[str, TaskRecord]:
    """All pages of a listing, by id: a store's order is its own, and it may repeat a task."""
    found: dict[str, TaskRecord] = {}
    cursor: str | None = None
    while True:
        page = await store.page(cursor=cursor, **kwargs)
        found.update((record.message.id, plain(record)) for record in page.tasks)
        if (cursor := page.cursor) is None:
            return found


async def tidied(store: Store, now: float | None) -> Moved:
    """Tidy until there is no more; the last step."""
    while (moved := await store.tidy(now=now)).more:
        pass
    return moved


async def _outcome(answer: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await answer
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other one must say the same
        return error


def _compare(verb: str, one: Any, other: Any) -> None:
    first, second = plain(one, verb), plain(other, verb)
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]
        first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert first == second, f"{verb}\nfirst:  {first!r}\nsecond: {second!r}"


def plain(answer: Any, verb: str = "") -> Any:
    """What must be equal of an answer. Left out is what a store may decide by itself:

    * its generation, where it would read on behind a page without events, and what it calls the
      time in ``hello``, the only verb that a test clock cannot be set for;
    * the order of what is a set: workers, cancelled leases, parents that a task waits for;
    * the order of the events of one purge: all that waits ends at one moment;
    * how many things tidy forgot: a store may number calls of its own;
    * how many tasks are ahead of one: a store may count those that were cancelled;
    * whether it is a server.
    """
    if verb == "tidy" and isinstance(answer, Moved):
        return msgspec.structs.replace(answer, count=0)
    if isinstance(answer, Exception):
        return type(answer), str(answer)
    if isinstance(answer, Hello):
        return msgspec.structs.replace(answer, now=0.0, generation="", replication="")
    if isinstance(answer, EventPage):
        return answer.now, answer.gap, _in_order(answer.events)
    if isinstance(answer, BeatReply):
        return msgspec.structs.replace(answer, cancelled=sorted(answer.cancelled, key=str))
    if isinstance(answer, TaskRecord):
        return msgspec.structs.replace(answer, waiting_for=tuple(sorted(answer.waiting_for)))
    if isinstance(answer, Snapshot):
        return msgspec.structs.replace(answer, redis_active=False)
    if isinstance(answer, Standing):
        waits = tuple(sorted(answer.waits_for, key=str))
        record = plain(answer.record)
        return msgspec.structs.replace(answer, waits_for=waits, record=record, tasks_ahead=0)
    if isinstance(answer, list):
        if answer and isinstance(answer[0], WorkerRecord):
            return sorted(answer, key=lambda worker: str(worker.incarnation))
        return [plain(each) for each in answer]
    return answer


def _in_order(events: list[Event]) -> list[Event]:
    purges = {event.id.entry for event in events if event.reason == "purged"}

    def place(event: Event) -> tuple[int, int, str]:
        entry, index = event.id.entry, event.id.index
        return (entry, 0, event.task) if entry in purges else (entry, index, "")

    found = []
    for event in sorted(events, key=place):
        index = 0 if event.id.entry in purges else event.id.index
        id = msgspec.structs.replace(event.id, generation="", index=index)
        found.append(msgspec.structs.replace(event, id=id))
    return found
