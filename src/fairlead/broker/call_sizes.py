"""How many tasks one call takes in, so that it never takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from fairlead.broker.requests import MAX_ENQUEUE, MAX_TENANTS, Submission
from fairlead.broker.submissions import Row, Submissions, row_of

_MAX_BYTES = 8 * 1024 * 1024  # of bodies in one call
_MAX_EXTRAS = 100  # dependencies, and tasks with a delay, a deadline or a unique key


class Room:
    """Whether one call can take one more: a running total over the batch that grows."""

    def __init__(self) -> None:
        self._tenants: set[str] = set()
        self._like: Submission | None = None  # what the item before is like, and its extras
        self._more = self._bytes = self._extras = 0

    def takes(self, batch: list[Submission], item: Submission) -> bool:
        """Return whether the item may follow; to be asked for all of a batch but the first."""
        return self.takes_row([row_of(each) for each in batch[:2]], row_of(item))

    def takes_row(self, batch: list[Row], row: Row) -> bool:
        """Return the same for a row."""
        like, _, body = row
        if like is self._like and not self._more and len(batch) > 1:  # as a rule
            self._bytes += len(body)
            return self._bytes <= _MAX_BYTES
        if len(batch) == 1:
            self._tenants, self._like = set(), None
            self._more = self._bytes = self._extras = 0
            self.takes_row([], batch[0])
        if like is not self._like:
            self._like, self._more = like, _extras(like)
            self._tenants.add(like.message.tenant)
        self._bytes += len(body)
        self._extras += self._more
        return (
            self._bytes <= _MAX_BYTES
            and len(self._tenants) <= MAX_TENANTS
            and self._extras <= _MAX_EXTRAS
        )


def chunks(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Return parts that one call each can take, in order."""
    if isinstance(submissions, Submissions) and _is_light(submissions):
        for start in range(0, len(submissions), MAX_ENQUEUE):
            yield submissions[start : start + MAX_ENQUEUE]
        return
    room, chunk = Room(), list[Submission]()
    for submission in submissions:
        if chunk and not (room.takes(chunk, submission) and len(chunk) < MAX_ENQUEUE):
            yield chunk
            chunk = []
        chunk.append(submission)
    if chunk:
        yield chunk


def _is_light(submissions: Submissions) -> bool:
    """Whether any of them may go together: a few kinds that want nothing special, and not much."""
    kinds = submissions.kinds
    return (
        len(kinds) <= MAX_TENANTS
        and not any(map(_extras, kinds))
        and sum(map(len, submissions.bodies)) <= _MAX_BYTES
    )


def _extras(item: Submission) -> int:
    is_late = item.delay or item.at is not None or item.deadline is not None
    return len(item.depends_on) + bool(is_late or item.unique is not None)


def packed_for(store: object, submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Return what ``enqueue`` of this store takes with less work than these, if there is such."""
    # Of its type: a store that only passes calls on must see them as they are.
    pack = getattr(type(store), "packed", None)
    return submissions if pack is None else cast(Sequence[Submission], pack(store, submissions))
