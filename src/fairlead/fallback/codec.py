"""What the spool keeps of a task: bytes with a version, and when it was enqueued.

Arrays that only grow at the end. A record of a later release is not guessed at: it stays.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from fairlead.broker.requests import LeaseRef, Submission
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import DependencyPolicy, Settlement
from fairlead.model.message import Message
from fairlead.model.options import Dependency, Unique, UniqueUntil
from fairlead.model.outage import Moment, elapsed, remaining

_VERSION = 1
_ENDED = 2  # with an end: a release that does not know it must not run it
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_encode = msgspec.msgpack.Encoder().encode


class _Submission(msgspec.Struct, frozen=True, array_like=True):
    """A submission in the order of its stored fields."""

    version: int
    moment: Moment
    message: bytes
    delay: float
    deadline: float | None
    depends_on: tuple[tuple[str, bool], ...]
    on_dependency_failure: DependencyPolicy
    uses_results: bool
    unique: tuple[str, UniqueUntil, float] | None
    fence: tuple[str, str, int] | None
    doubt: tuple[str, int, int] | None = None
    ended: Settlement | None = None


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What every version begins with."""

    version: int


class LaterVersion(InvalidInput):
    """A record that a later release has written. It is left in the spool for one that reads it."""


class Doubted(NamedTuple):
    """A call with which the broker may have got the task, and its place among those of the call."""

    incarnation: str
    number: int
    place: int


class SpooledTask(msgspec.Struct, frozen=True):
    """A submission as it was made, and when."""

    submission: Submission
    moment: Moment
    doubt: Doubted | None = None

    def due(self, now: Moment) -> Submission:
        """Return it with what is left of its delay and of its deadline."""
        made = self.submission
        if made.delay == 0.0 and made.deadline is None:
            return made
        delay, deadline = remaining(made.delay, made.deadline, elapsed(self.moment, now))
        return msgspec.structs.replace(made, delay=delay, deadline=deadline)


_head = msgspec.msgpack.Decoder(_Head)
_submission = msgspec.msgpack.Decoder(_Submission)


def moment_now() -> Moment:
    """Return the time by both clocks."""
    return Moment(time.time(), time.clock_gettime(_CLOCK), _boot_id())


def encode_submission(task: SpooledTask) -> bytes:
    """Return the stored form of a task."""
    submission = task.submission
    unique, fence = submission.unique, submission.fence
    return _encode(
        _Submission(
            version=_VERSION if submission.ended is None else _ENDED,
            moment=task.moment,
            message=submission.message.encode(),
            delay=submission.delay,
            deadline=submission.deadline,
            depends_on=tuple((each.id, each.known) for each in submission.depends_on),
            on_dependency_failure=submission.on_dependency_failure,
            uses_results=submission.uses_results,
            unique=None if unique is None else (unique.key, unique.until, unique.window),
            fence=None if fence is None else (fence.id, fence.incarnation, fence.token),
            doubt=task.doubt,
            ended=submission.ended,
        )
    )


def decode_submission(data: bytes) -> SpooledTask:
    """Return the task that was stored; raises ``InvalidInput``, or ``LaterVersion``."""
    stored = _read(data)
    unique, fence = stored.unique, stored.fence
    submission = Submission(
        message=Message.decode(stored.message),
        delay=stored.delay,
        deadline=stored.deadline,
        depends_on=tuple(Dependency(id, known) for id, known in stored.depends_on),
        on_dependency_failure=stored.on_dependency_failure,
        uses_results=stored.uses_results,
        unique=None if unique is None else Unique(key=unique[0], until=unique[1], window=unique[2]),
        fence=None if fence is None else LeaseRef(*fence),
        ended=stored.ended,
    )
    doubt = None if stored.doubt is None else Doubted(*stored.doubt)
    return SpooledTask(submission, stored.moment, doubt)


def _read(data: bytes) -> _Submission:
    try:
        version = _head.decode(data).version
        if version in (_VERSION, _ENDED):
            return _submission.decode(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"not a spooled task: {type(error).__name__}") from None
    text = f"a spooled task of version {version}; this release reads {_ENDED}"
    raise LaterVersion(text) if version > _ENDED else InvalidInput(text)


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
