"""From a lease to the handler that can run it, or the reason why none here can."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from fairlead.model.argument_packing import read_arguments, reader_of, unpack_arguments
from fairlead.model.backoff import RetryPolicy
from fairlead.model.codecs import CodecError, Codecs
from fairlead.model.errors import UnknownTask
from fairlead.model.message import UNREADABLE, VERSION, Body, ErrorInfo, Leased, read_body
from fairlead.model.options import seconds
from fairlead.model.registry import Registry, TaskSpec
from fairlead.model.result_refs import outputs_in
from fairlead.model.retries import Unroutable


class Assignment:
    """All that is needed to run one attempt: the lease, the handler, and how to treat it."""

    __slots__ = (
        "args", "depends_on", "keep", "kwargs", "lease", "outputs", "policy", "spec",
        "takes_context", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        lease: Leased,
        spec: TaskSpec,
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        policy: RetryPolicy,
        timeout: float | None = None,
        keep: float | None = None,
        takes_context: bool = False,
        depends_on: tuple[tuple[str, ...], ...] = (),
    ) -> None:
        self.lease = lease
        self.spec = spec
        self.args = args  # plain data still, not yet converted
        self.kwargs = kwargs
        self.policy = policy
        self.timeout = timeout  # seconds
        self.keep = keep  # seconds, after it has finished
        self.takes_context = takes_context
        self.depends_on = depends_on  # whose results it reads: see Body
        self.outputs = outputs_in([args, kwargs]) if depends_on else {}  # among the arguments

    @property
    def moved(self) -> dict[str, str]:
        """Ids that outputs have for others, where the arguments could not be rewritten."""
        return {each[2]: each[0] for each in self.depends_on if len(each) > 2}

    @property
    def reads(self) -> bool:
        """Whether results have to be there before the handler starts."""
        return bool(self.depends_on) and (self.takes_context or bool(self.outputs))


#: What it takes to run an attempt of a plain task: the plan, positional and keyword arguments
#: (plain data still), the time limit, and how long it is kept.
Plain = tuple["Plan", Sequence[Any], dict[str, Any], float | None, float | None]


class Router:
    """Finds the handler of a message. What was said at the call goes before what was registered."""

    def __init__(
        self, registry: Registry, *, timeout: float | None = None, codecs: Codecs | None = None
    ) -> None:
        self._registry = registry
        self._codecs = codecs
        self._specs = registry.specs
        self._timeout = timeout  # seconds, of tasks that say nothing of theirs
        self._plans: dict[str, Plan] = {}

    def plain(self, lease: Leased, quick: Collection[object]) -> Plain | None:
        """What an async handler needs that is among these and reads no results; else ask ``route``.

        Encoded arguments are left to that as well.
        """
        message = lease.message
        if message.version > VERSION:
            return None
        try:
            body = read_body(message.body)
            plan = self._plans.get(body.task)
            if plan is None or not plan.is_plain or body.depends_on:
                return None
            spec = plan.spec
            if spec not in quick or body.task_version > plan.version:
                return None
            if self._specs.get(plan.name) is not spec:
                return None
            try:
                args, kwargs = plan.read(body.arguments)
            except msgspec.ValidationError:
                plan.read = read_arguments  # its callers name them, or give others
                args, kwargs = read_arguments(body.arguments)
        except UNREADABLE:
            return None
        timeout = plan.timeout if body.timeout is None else body.timeout
        return plan, args, kwargs, timeout, plan.keep if body.retention is None else body.retention

    def assignment(self, lease: Leased) -> Assignment:
        """The assignment for a lease of which it is known that it has one."""
        found = self.route(lease)
        if isinstance(found, Unroutable):
            raise LookupError(f"task {lease.message.id!r} had a handler a moment ago")
        return found

    def route(self, lease: Leased) -> Assignment | Unroutable:
        """The assignment for a lease; Unroutable if another worker, or a later one, must run it."""
        message = lease.message
        if message.version > VERSION:
            return _unroutable(
                "NewerMessage",
                f"the message has version {message.version}, this worker reads up to {VERSION}",
            )
        try:
            body = Body.decode(message.body)
            try:
                args, kwargs = unpack_arguments(body.arguments, self._codecs)
            except CodecError as error:
                # Not for another worker that knows the task: it may be without the codec as well.
                return _unroutable("CodecError", f"task {body.task!r}: {error}")
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            # Only the kind of the error: its text may repeat what it could not read.
            return _unroutable("UnreadableBody", f"the body cannot be read: {type(error).__name__}")
        try:
            spec = self._registry.get(body.task)
        except UnknownTask as error:
            return _unroutable("UnknownTask", str(error), body)
        if body.task_version > spec.version:
            return _unroutable(
                "NewerTask",
                f"the call is for version {body.task_version} of task {spec.name!r}, "
                f"version {spec.version} is registered here",
                body,
            )
        plan = self._plans.get(body.task)
        if plan is None or plan.spec is not spec:
            plan = self._plans[body.task] = Plan(spec, self._timeout)
        return Assignment(
            lease,
            spec,
            args,
            kwargs,
            policy=plan.policy(body.max_retries),
            timeout=plan.timeout if body.timeout is None else body.timeout,
            keep=plan.keep if body.retention is None else body.retention,
            takes_context=plan.takes_context,
            depends_on=body.depends_on,
        )


class Plan:
    """What follows from a task's registration, worked out once."""

    def __init__(self, spec: TaskSpec, timeout: float | None) -> None:
        options = spec.options
        self.spec = spec
        self.name, self.version, self.handler = spec.name, spec.version, spec.handler
        self.takes_context, self.scalars = spec.takes_context, spec.scalars
        # How its arguments are read: a tuple of those by position is as it should be, a list is
        # not looked at.
        self.read: Callable[[bytes], tuple[Sequence[Any], dict[str, Any]]] = (
            reader_of(spec.scalars) if spec.takes_only_scalars else read_arguments
        )
        self.is_plain = spec.is_async and spec.breaker is None and not spec.isolation
        said = options.timeout is not UNSET  # perhaps that there is none
        self.timeout = _seconds("timeout", options.timeout) if said else timeout
        self.keep = _seconds("retention", options.retention)
        policy = spec.policy
        if options.max_retries is not UNSET:
            policy = dataclasses.replace(policy, max_retries=options.max_retries)
        self._policy = policy

    def policy(self, max_retries: int | None) -> RetryPolicy:
        """The registered policy, with the call's own number of retries if it gave one."""
        if max_retries is None or max_retries == self._policy.max_retries:
            return self._policy
        return dataclasses.replace(self._policy, max_retries=max_retries)


def _seconds(option: str, value: object) -> float | None:
    return None if value is UNSET or value is None else seconds(option, value)


def _unroutable(kind: str, message: str, body: Body | None = None) -> Unroutable:
    info = ErrorInfo(kind, message)
    return Unroutable(info) if body is None else Unroutable(info, body.task, body.task_version)
