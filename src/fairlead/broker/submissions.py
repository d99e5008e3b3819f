"""Submissions by columns: those of one call differ in little else than ids and bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from msgspec.structs import replace

from fairlead.broker.requests import Submission

#: What a submission is like, its id and its body.
Row = tuple[Submission, str, bytes]

#: What those of a run are like, the place of its first, and that behind its last.
Run = tuple[Submission, int, int]


class Submissions(Sequence[Submission]):
    """What each is like, its id and its body. One without an id is a pattern for many.

    Whoever looks at them one by one gets submissions, which are made then.
    """

    __slots__ = ("_runs", "bodies", "ids", "likes")

    def __init__(self, likes: list[Submission], ids: list[str], bodies: list[bytes]) -> None:
        self.likes, self.ids, self.bodies = likes, ids, bodies
        self._runs: list[Run] | None = None

    @property
    def runs(self) -> list[Run]:
        """Those that are alike and stand together; as a rule few for many.

        Those of patterns in one run are calls of one task, with the same options.
        """
        if self._runs is None:
            self._runs = _runs(self.likes)
        return self._runs

    @property
    def kinds(self) -> list[Submission]:
        """What they are like, once for each run."""
        return [like for like, _, _ in self.runs]

    @classmethod
    def of(cls, submissions: Iterable[Submission | Row]) -> Submissions:
        """Return the columns of these."""
        likes: list[Submission] = []
        ids: list[str] = []
        bodies: list[bytes] = []
        for each in submissions:
            like, id, body = each if isinstance(each, tuple) else row_of(each)
            likes.append(like)
            ids.append(id)
            bodies.append(body)
        return Submissions(likes, ids, bodies)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Submission]:
        return map(filled, zip(self.likes, self.ids, self.bodies, strict=True))

    @overload
    def __getitem__(self, place: int) -> Submission: ...
    @overload
    def __getitem__(self, place: slice) -> Submissions: ...
    def __getitem__(self, place: int | slice) -> Submission | Submissions:
        if isinstance(place, slice):
            part = Submissions(self.likes[place], self.ids[place], self.bodies[place])
            if self._runs is not None and len(self._runs) == 1 and part.likes:
                part._runs = [(part.likes[0], 0, len(part.likes))]
            return part
        return filled((self.likes[place], self.ids[place], self.bodies[place]))


def _runs(likes: Sequence[Submission]) -> list[Run]:
    if len(likes) == 1:
        return [(likes[0], 0, 1)]
    found: list[Run] = []
    last: Submission | None = None
    start = 0
    for place, like in enumerate(likes):
        if like is not last:
            if last is not None:
                found.append((last, start, place))
            last, start = like, place
    if last is not None:
        found.append((last, start, len(likes)))
    return found


def row_of(submission: Submission) -> Row:
    """Return a submission as what is like itself."""
    return submission, submission.message.id, submission.message.body


def filled(row: Row) -> Submission:
    """Return the submission of a row; one that is no pattern is it already."""
    like, id, body = row
    if like.message.id:
        return like
    return replace(like, message=replace(like.message, id=id, body=body))


def likes_of(submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Return what submissions are like, and do not make those of patterns."""
    return submissions.likes if isinstance(submissions, Submissions) else submissions


def kinds_of(submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Return what submissions are like, once for all that are alike and stand together."""
    return submissions.kinds if isinstance(submissions, Submissions) else submissions
