"""Submissions as the end of the command that enqueues them: the short way into the server.

The bytes equal those of ``wire.pack`` for the arguments that ``encode.submission_args`` makes;
tests compare them. Tasks that want nothing special are written out at once, others by these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fairlead.broker.redis.encode import head_of, submission_args, wants_more
from fairlead.broker.redis.layout import SIZES
from fairlead.broker.redis.wire import Value, pack
from fairlead.broker.requests import Submission
from fairlead.broker.submissions import Submissions
from fairlead.model.message import shares_head

_MOST_SIZES = 4_096  # remembered


class _Sizes(dict[int, bytes]):
    """What goes in front of an argument of so many bytes; it ends the argument before."""

    def __missing__(self, size: int) -> bytes:
        found = b"\r\n$%d\r\n" % size
        if size < _MOST_SIZES:
            self[size] = found
        return found


class _Fronts(dict[int, bytes]):
    """What goes in front of a body of so many bytes that has no trace behind it."""

    def __missing__(self, size: int) -> bytes:
        found = _sizes[size + SIZES.size] + SIZES.pack(size, 0)
        if size < _MOST_SIZES:
            self[size] = found
        return found


_sizes, _fronts = _Sizes(), _Fronts()
_last: tuple[Submission | None, bytes] = None, b""  # the last pattern of all calls, and its head


class PackedSubmissions(Submissions):
    """Submissions that were checked and packed, for a call that is to be made soon.

    Raises UnicodeEncodeError for a text that is none.
    """

    __slots__ = ("length", "tail")

    def __init__(self, submissions: Sequence[Submission]) -> None:
        found = submissions
        if not isinstance(found, Submissions):
            found = Submissions.of(found)
        self.likes, self.ids, self.bodies = found.likes, found.ids, found.bodies
        self._runs = found._runs
        parts: list[bytes] = []
        self.length = _add_plain(parts, found)
        if self.length:
            parts.append(b"\r\n")
            self.tail = b"".join(parts)
        else:
            args = self.args
            self.length = len(args)
            self.tail = b"\r\n" + pack(tuple(args)).partition(b"\r\n")[2]

    @property
    def args(self) -> list[Value]:
        """The arguments one by one, for calls that go the long way."""
        return submission_args(self)


def beginning(count: int, function: str, key: str, head: tuple[str, str, int]) -> bytes:
    """Return how the command begins that calls a function with this head, and so much more.

    ``PackedSubmissions`` have ``length`` and ``tail``, which is the rest.
    """
    clock, incarnation, call = head
    number = str(call).encode()
    return _beginning(count, function, key, clock, incarnation) + _sizes[len(number)] + number


@lru_cache(maxsize=256)
def _beginning(count: int, function: str, key: str, clock: str, incarnation: str) -> bytes:
    """Return what calls of one incarnation have in common that have so many more arguments."""
    _, _, packed = pack(("FCALL", function, 1, key, clock, incarnation)).partition(b"\r\n")
    return b"*%d\r\n%b" % (count + 7, packed.removesuffix(b"\r\n"))


def _add_plain(parts: list[bytes], submissions: Submissions) -> int:
    """Add the arguments of tasks that want nothing special; how many there are, 0: some do."""
    global _last  # noqa: PLW0603 - calls of one task come again and again
    ids, bodies = submissions.ids, submissions.bodies
    last, head = _last
    run: bytes | None = None  # the head of the run that is being written
    count = place = in_run = 0
    for like, start, end in submissions.runs:
        if like is not last:
            if wants_more(like):
                return 0
            if last is None or not shares_head(like.message, last.message):
                head = head_of(like.message)
            last = like
        if head is not run:
            if run is not None:
                parts[place] = _run_count(in_run)
            parts += (b"\r\n$1\r\nP", _sizes[len(head)], head, b"")
            run, place, count, in_run = head, len(parts) - 1, count + 3, 0
        in_run += end - start
        trace = like.message.trace
        if not trace and end - start > 1:
            _add_alike(parts, ids[start:end], bodies[start:end])
            continue
        for at in range(start, end):
            id, body = ids[at], bodies[at]
            if trace:
                size, more = len(body), len(trace)
                front = _sizes[size + more + SIZES.size] + SIZES.pack(size, more)
                parts += (_sizes[len(id)], id.encode(), front, body, trace)
            else:
                parts += (_sizes[len(id)], id.encode(), _fronts[len(body)], body)
    if run is not None:
        parts[place] = _run_count(in_run)
        if last is not None and not last.message.id:
            _last = last, head
    return count + 2 * len(ids)


def _add_alike(parts: list[bytes], ids: Sequence[str], bodies: Sequence[bytes]) -> None:
    """Add tasks that differ in nothing else, column by column: a loop takes half as long again."""
    made = [b""] * (4 * len(ids))
    made[::4] = map(_sizes.__getitem__, map(len, ids))
    made[1::4] = map(str.encode, ids)
    made[2::4] = map(_fronts.__getitem__, map(len, bodies))
    made[3::4] = bodies
    parts += made


@lru_cache(maxsize=512)
def _run_count(count: int) -> bytes:
    number = b"%d" % count
    return _sizes[len(number)] + number
