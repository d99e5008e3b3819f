"""How many tasks one call takes in, so that it never takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from fairlead.broker.requests import MAX_ENQUEUE, MAX_TENANTS, Submission

_MAX_BYTES = 8 * 1024 * 1024  # of bodies in one call
_MAX_EXTRAS = 100  # dependencies, and tasks with a delay, a deadline or a unique key


class Room:
    """Whether one call can take one more: a running total over the batch that grows."""

    def __init__(self) -> None:
        self._tenants: set[str] = set()
        self._tenant = ""  # of the item before
        self._bytes = self._extras = 0

    def takes(self, batch: list[Submission], item: Submission) -> bool:
        """Return whether the item may follow; to be asked for all of a batch but the first."""
        message = item.message
        if len(batch) == 1:
            self._tenants = set()
            self._tenant = ""
            self._bytes = self._extras = 0
            self.takes([], batch[0])
        if message.tenant is not self._tenant:
            self._tenant = message.tenant
            self._tenants.add(message.tenant)
        self._bytes += len(message.body)
        is_late = item.delay or item.at is not None or item.deadline is not None
        if is_late or item.unique is not None:
            self._extras += 1
        if item.depends_on:
            self._extras += len(item.depends_on)
        return (
            self._bytes <= _MAX_BYTES
            and len(self._tenants) <= MAX_TENANTS
            and self._extras <= _MAX_EXTRAS
        )


def chunks(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
    """Return parts that one call each can take, in order."""
    room, chunk = Room(), list[Submission]()
    for submission in submissions:
        if chunk and not (room.takes(chunk, submission) and len(chunk) < MAX_ENQUEUE):
            yield chunk
            chunk = []
        chunk.append(submission)
    if chunk:
        yield chunk


def packed_for(store: object, submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Return what ``enqueue`` of this store takes with less work than these, if there is such."""
    # Of its type: a store that only passes calls on must see them as they are.
    pack = getattr(type(store), "packed", None)
    return submissions if pack is None else cast(Sequence[Submission], pack(store, submissions))
