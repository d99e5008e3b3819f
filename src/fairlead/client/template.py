"""What all submissions of one kind share, worked out once; calls fill in what differs.

A submission of a template equals one that is put together field by field: a body as ``Body.encode``
makes it, a trace as ``Trace.encode`` does.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from fairlead.broker.requests import LeaseRef, Submission
from fairlead.model.argument_packing import MAX_BODY, pack_simple
from fairlead.model.codecs import Codecs
from fairlead.model.message import Body, BodyFrame, Message, Trace, encode, run_flags
from fairlead.model.moments import delay_until
from fairlead.model.names import check_key
from fairlead.model.options import Dependency, Options, Resolved
from fairlead.model.registry import TaskSpec
from fairlead.runtime.correlation import correlation_id

__all__ = ("Template",)

_MOST_TYPES = 256  # combinations that are remembered; others go the long way


class Template:
    """Makes the submissions of calls that have the same options."""

    __slots__ = (
        "_after", "_before", "_body", "_codecs", "_flags", "_is_free", "_least", "_most",
        "_plain_types", "found",
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
        self._before, self._after = frame.before, frame.after
        self._least, self._most = spec.positions
        # The types of arguments by position that are known to fit; None: the handler does not say.
        self._plain_types: set[tuple[type, ...]] | None = None
        if any(kinds is not None for kinds in spec.plain_kinds):
            self._plain_types = set()
        # Nothing but the arguments tells its submissions apart, and where they come from.
        self._is_free = not found.depends_on and found.correlation_id is None and found.at is None
        retries = spec.policy.max_retries if found.max_retries is None else found.max_retries
        self._flags = run_flags(retries, spec.max_crashes)

    def plain(self, id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission | None:
        """Return what the broker gets of a call that is plainly right; None: look closer.

        The short way of ``TaskCall.submission``.
        """
        if kwargs or not self._is_free:
            return None
        if self._plain_types is None:
            if not self._least <= len(args) <= self._most:
                return None
        elif tuple(map(type, args)) not in self._plain_types:
            return None
        arguments = pack_simple(args)
        if arguments is None or correlation_id.get():
            return None
        if self._codecs is not None:
            arguments = self._codecs.encode(arguments, "the arguments", MAX_BODY)
        body = self._before + encode(arguments) + self._after
        return self._filled(id, body)

    def note_types(self, args: tuple[Any, ...]) -> None:
        """Remember that arguments of these types, by position only, fit as they are."""
        known = self._plain_types
        if known is not None and len(known) < _MOST_TYPES:
            known.add(tuple(map(type, args)))

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
