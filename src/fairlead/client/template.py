"""What all submissions of one kind share, worked out once; calls fill in what differs.

A submission of a template equals one that is put together field by field: a body as ``Body.encode``
makes it, a trace as ``Trace.encode`` does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from fairlead.broker.requests import LeaseRef, Submission
from fairlead.broker.submissions import Row
from fairlead.model.argument_packing import MAX_BODY
from fairlead.model.codecs import Codecs
from fairlead.model.message import Body, BodyFrame, Message, Trace, encode, run_flags
from fairlead.model.moments import delay_until
from fairlead.model.names import check_key
from fairlead.model.options import Dependency, Options, Resolved
from fairlead.model.registry import TaskSpec
from fairlead.runtime.correlation import correlation_id

__all__ = ("Template",)

_MOST_TYPES = 512  # remembered in all combinations; others go the long way
_STORED_AS_THEY_ARE = frozenset((str, int, bool, type(None)))
_MOST_FRONTS = 4_096

_FIELDS = b"\x92"  # arguments by position, and by keyword

# No text, or too much of it or of a number, or another type.
_NOT_PLAIN = (KeyError, ValueError, OverflowError)

_join = b"".join  # of three it takes half as long as two additions

_Types = dict[type | None, "_Types"]  # None: this may be all


class _Fronts(dict[int, bytes]):
    """What goes in front of so many bytes of positional arguments; behind them are no keywords."""

    def __init__(self, before: bytes) -> None:
        self._before = before

    def __missing__(self, given: int) -> bytes:
        size = len(_FIELDS) + given + 1
        if size > MAX_BODY:
            raise KeyError(given)
        width = 1 if size < 1 << 8 else 2 if size < 1 << 16 else 4  # of the length, in MessagePack
        found = b"%b%c%b%b" % (self._before, 0xC4 + width // 2, size.to_bytes(width), _FIELDS)
        if size < _MOST_FRONTS:
            self[given] = found
        return found


class Template:
    """Makes the submissions of calls that have the same options."""

    __slots__ = (
        "_after", "_body", "_codecs", "_flags", "_fronts", "_is_free", "_known", "_room", "found",
        "like",
    )  # fmt: skip

    def __init__(
        self, spec: TaskSpec, said: Options, found: Resolved, codecs: Codecs | None = None
    ) -> None:
        """``said`` are the options of the calls, ``found`` those with what was registered."""
        self.found = found
        self._codecs = codecs
        self._body = Body(
            task=spec.name,
            arguments=b"",
            task_version=spec.version,
            # What the call did not say stays with the registered task, which may change meanwhile.
            max_retries=None if said.max_retries is UNSET else found.max_retries,
            timeout=None if said.timeout is UNSET else found.timeout,
            retention=None if said.retention is UNSET else found.retention,
        )
        frame = BodyFrame(self._body)
        self._fronts, self._after = _Fronts(frame.before), b"\x80" + frame.after
        # The types of arguments by position that are known to fit, and to be stored as they are:
        # those of the first, with those of the second that may follow each, and so on.
        self._known: _Types = {}
        self._room = _MOST_TYPES
        # Nothing but the arguments tells its submissions apart, and where they come from.
        self._is_free = not found.depends_on and found.correlation_id is None and found.at is None
        retries = spec.policy.max_retries if found.max_retries is None else found.max_retries
        self._flags = run_flags(retries, spec.max_crashes)
        #: What those are like that are made of a body only: a pattern for ``Submissions``.
        self.like = self._filled("", b"")

    def is_usual(self) -> bool:
        """Whether calls that are made here and now are like it, and differ in their bodies only."""
        return self._is_free and not correlation_id.get()

    def body(self, args: tuple[Any, ...]) -> bytes | None:
        """Return the body of a call with plainly right arguments; None: look closer.

        The short way of ``TaskCall.submission``, for what is usual.
        """
        known = self._known
        try:
            for value in args:
                known = known[type(value)]
            known[None]
            packed = encode(args)
            if self._codecs is None:
                return _join((self._fronts[len(packed)], packed, self._after))
        except _NOT_PLAIN:
            return None
        arguments = self._codecs.encode(b"%b%b\x80" % (_FIELDS, packed), "the arguments", MAX_BODY)
        return BodyFrame(self._body).around(arguments)

    def bodies(self, calls: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Return the bodies of calls with these arguments, up to one to look closer at.

        The same as by ``body``, which takes half as long again; with a codec that is no matter.
        """
        made: list[bytes] = []
        if self._codecs is not None:
            for args in calls:
                body = self.body(args)
                if body is None:
                    break
                made.append(body)
            return made
        add, fronts, after, known = made.append, self._fronts, self._after, self._known
        try:
            for args in calls:
                types = known
                for value in args:
                    types = types[type(value)]
                types[None]
                packed = encode(args)
                add(_join((fronts[len(packed)], packed, after)))
        except _NOT_PLAIN:
            pass
        return made

    def plain(self, id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row | None:
        """Return what the broker gets of a call that is plainly right; None: look closer."""
        body = None if kwargs or not self.is_usual() else self.body(args)
        return None if body is None else (self.like, id, body)

    def note_types(self, args: tuple[Any, ...]) -> None:
        """Remember that arguments of these types, by position only, fit as they are."""
        if not _STORED_AS_THEY_ARE.issuperset(map(type, args)):
            return
        known = self._known
        for kind in (*map(type, args), None):
            if kind not in known:
                if not self._room:
                    return
                self._room -= 1
                known[kind] = {}
            known = known[kind]

    def submission(
        self,
        id: str,
        arguments: bytes,
        fence: LeaseRef | None,
        depends_on: tuple[Dependency, ...],
        results_of: tuple[tuple[str, str], ...] | None,
    ) -> Submission:
        """Return what the broker gets; ``arguments`` are as they are stored.

        ``results_of``: whose results it reads; None: nobody's.
        """
        found = self.found
        inherited = found.correlation_id or correlation_id.get()
        trace = b""
        if inherited:
            trace = Trace(correlation_id=check_key("correlation id", inherited)).encode()
        body = BodyFrame(self._body, results_of or ()).around(arguments)
        made = self._filled(id, body, trace, depends_on, results_of is not None, fence)
        if found.at is None:
            return made
        return replace(made, delay=delay_until("at", found.at, time.time()), at=found.at)

    def _filled(
        self,
        id: str,
        body: bytes,
        trace: bytes = b"",
        depends_on: tuple[Dependency, ...] = (),
        uses_results: bool = False,
        fence: LeaseRef | None = None,
    ) -> Submission:
        found = self.found
        return Submission(
            message=Message(
                id=id,
                queue=found.queue,
                tenant=found.tenant,
                level=found.level,
                cost=found.cost,
                limiters=found.limiters,
                flags=self._flags,
                body=body,
                trace=trace,
            ),
            delay=found.delay,
            deadline=found.deadline,
            depends_on=depends_on,
            on_dependency_failure=found.on_dependency_failure,
            uses_results=uses_results,
            unique=found.unique,
            fence=fence,
        )
