"""Pages of dead tasks: from the orders in which they are forgotten, however much else is stored.

A listing of all tasks would look at everything that waits before it comes to the few that are dead.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from fairlead.broker.records import Page, TaskRecord
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import MAX_PAGE
from fairlead.model.errors import InvalidOption

_STEP = 250  # ids that one call asks for

Read = Callable[[list[Value]], Awaitable[Any]]
Find = Callable[[Sequence[str]], Awaitable[list[TaskRecord | None]]]


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a listing goes on: the queue, whose order, and the last task that was listed."""

    queue: str = ""
    whose: str = ""
    id: str = ""
    at: str = ""

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, cursor: str | None) -> _Place:
        if cursor is None:
            return cls()
        try:
            data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            place = msgspec.json.decode(data, type=cls)
            if place.id:
                float(place.at)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise InvalidOption("cursor", cursor, "one that an earlier page returned") from None
        return place


async def dead_page(
    read: Read,
    find: Find,
    queues: Sequence[str],
    *,
    matches: Callable[[TaskRecord], bool],
    cursor: str | None,
    limit: int,
) -> Page:
    """Dead tasks of these queues that match, of at most 1,000 that were looked at."""
    place = _Place.parse(cursor)
    left = sorted(queue for queue in queues if queue >= place.queue)
    if left and left[0] != place.queue:
        place = _Place(queue=left[0])
    tasks: list[TaskRecord] = []
    examined = 0
    while left:
        most = min(limit - len(tasks), MAX_PAGE - examined, _STEP)
        row, *following = await read([left[0], place.whose, place.id, place.at, most])
        ids = [id.decode() for id in row[::2]]
        for record in await find(ids):
            examined += 1
            if record is not None and matches(record):
                tasks.append(record)
        if not following:
            place = _Place(left[0], place.whose, ids[-1], row[-1].decode())
        elif following[0]:
            place = _Place(left[0], following[0].decode())
        else:
            left = left[1:]
            place = _Place(left[0]) if left else place
        if left and (len(tasks) >= limit or examined >= MAX_PAGE):
            return Page(tasks=tasks, cursor=str(place))
    return Page(tasks=tasks)
