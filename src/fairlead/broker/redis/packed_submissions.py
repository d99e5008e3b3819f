"""Submissions as the end of the command that enqueues them: the short way into the server.

The bytes equal those of ``wire.pack`` for the arguments that ``encode.submission_args`` makes;
tests compare them. Tasks that want nothing special are written out at once, others by these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fairlead.broker.redis.encode import head_of, submission_args
from fairlead.broker.redis.layout import SIZES
from fairlead.broker.redis.wire import Value, pack
from fairlead.broker.requests import Submission
from fairlead.model.message import Message, head_fields, shares_head

_MOST_SIZES = 4_096  # remembered


class _Sizes(dict[int, bytes]):
    """What goes in front of an argument of so many bytes; it ends the argument before."""

    def __missing__(self, size: int) -> bytes:
        found = b"\r\n$%d\r\n" % size
        if size < _MOST_SIZES:
            self[size] = found
        return found


_sizes = _Sizes()
_last: tuple[tuple[object, ...], bytes] = (), b""  # the head of the last message of all calls


class PackedSubmissions(list[Submission]):
    """Submissions that were checked and packed, for a call that is to be made soon.

    Raises UnicodeEncodeError for a text that is none.
    """

    __slots__ = ("length", "tail")

    def __init__(self, submissions: Sequence[Submission]) -> None:
        super().__init__(submissions)
        parts: list[bytes] = []
        self.length = _add_plain(parts, submissions)
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


def _add_plain(parts: list[bytes], submissions: Sequence[Submission]) -> int:
    """Add the arguments of tasks that want nothing special; how many there are, 0: some do."""
    global _last  # noqa: PLW0603 - calls of one task come again and again
    pack_sizes, sizes = SIZES.pack, _sizes
    count = in_run = place = 0
    run = b""  # the head of the run that is being written
    head = b""
    like: Message | None = None  # the message before
    for item in submissions:
        message = item.message
        if (
            message.extra
            or item.delay
            or item.at is not None
            or item.depends_on
            or item.deadline is not None
            or item.unique is not None
            or item.fence is not None
            or item.ended is not None
        ):
            return 0
        if like is None:
            # Equal will do, unlike where they are checked: what passed and is equal is sent alike.
            fields, last = head_fields(message), _last  # read once: other threads write it
            head = last[1] if fields == last[0] else head_of(message)
            _last = fields, head
        elif not shares_head(message, like):
            head = head_of(message)
        like = message
        if head is not run:
            if in_run:
                parts[place] = _run_count(in_run)
            parts += (b"\r\n$1\r\nP", sizes[len(head)], head, b"")
            run, place, count, in_run = head, len(parts) - 1, count + 3, 0
        id, body, trace = message.id.encode(), message.body, message.trace
        size, more = len(body), len(trace)
        parts += (sizes[len(id)], id, sizes[size + more + 8], pack_sizes(size, more), body, trace)
        in_run += 1
        count += 2
    if in_run:
        parts[place] = _run_count(in_run)
    return count


@lru_cache(maxsize=512)
def _run_count(count: int) -> bytes:
    number = b"%d" % count
    return _sizes[len(number)] + number
