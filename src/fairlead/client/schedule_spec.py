"""Schedules as callers see them: what they declare, what is stored, and what comes of a change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.broker.requests import Submission
from fairlead.broker.schedules import ScheduleRecord
from fairlead.client.call import TaskCall
from fairlead.client.errors import check_options
from fairlead.client.task import Sender
from fairlead.model.argument_packing import MAX_BODY, pack_arguments, unpack_arguments
from fairlead.model.codecs import CodecError, Codecs
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.message import Body
from fairlead.model.names import check_queue, check_schedule, check_tenant
from fairlead.model.priorities import Priorities
from fairlead.model.schedule import (
    ScheduleSpec,
    Template,
    Timing,
    TimingOptions,
    clock_defaults,
    decode,
    timing,
)

_MOMENTS = ("cron", "every", "at")


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a schedule. Times are unix seconds, the broker's."""

    name: str
    """The name of the schedule."""
    task: str
    """The name that its task is registered under."""
    queue: str
    """The queue of its tasks."""
    tenant: str
    """The tenant of its tasks."""
    timing: Timing | None
    """When it fires; None: see ``problem``."""
    args: tuple[Any, ...]
    """What its tasks are called with by position."""
    kwargs: dict[str, Any]
    """What its tasks are called with by name."""
    paused: bool
    """True: it fires no slots until it is resumed."""
    next_at: float | None
    """Unix seconds of the next slot; None: there is none any more."""
    last_slot: float | None
    """Unix seconds of the last slot that was fired; None: none yet."""
    changed_at: float
    """Unix seconds when it was changed last."""
    declared: bool
    """True: by a program, rather than created at run time."""
    revision: int
    """A number that grows with each change."""
    problem: str = ""
    """Why it cannot be read here: a later release wrote it, for example."""


class Declared(msgspec.Struct, frozen=True):
    """A schedule that a program declares."""

    name: str
    spec: ScheduleSpec


def info_of(record: ScheduleRecord, codecs: Codecs | None = None) -> ScheduleInfo:
    """The view of a stored schedule."""
    task = tenant = problem = ""
    rule: Timing | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    declared = False
    try:
        spec = decode(record.spec)
        task, tenant, rule = spec.template.task, spec.template.tenant, spec.timing
        declared = bool(spec.declared)
        positional, kwargs = unpack_arguments(Body.decode(spec.template.body).arguments, codecs)
        args = tuple(positional)
    except (InvalidInput, CodecError) as error:
        problem = str(error)
    return ScheduleInfo(
        name=record.name,
        task=task,
        queue=record.queue,
        tenant=tenant,
        timing=rule,
        args=args,
        kwargs=kwargs,
        paused=record.paused,
        next_at=record.next_at,
        last_slot=record.last_slot,
        changed_at=record.changed_at,
        declared=declared,
        revision=record.revision,
        problem=problem,
    )


def spec_of(record: ScheduleRecord) -> ScheduleSpec:
    """What is stored; the error names the schedule."""
    try:
        return decode(record.spec)
    except InvalidInput as error:
        raise InvalidInput(f"schedule {record.name!r} cannot be read here: {error}") from None


def rule_of(cron: str | None, options: TimingOptions) -> Timing:
    """When a schedule is due, checked."""
    check_options(options, TimingOptions, "a schedule")
    return timing(cron, **options)


def altered(old: Timing, cron: str | None, options: TimingOptions) -> Timing:
    """The same with what was said laid over it."""
    check_options(options, TimingOptions, "a schedule")
    said: dict[str, Any] = {**options} if cron is None else {"cron": cron, **options}
    if not said:
        return old
    kept = msgspec.structs.asdict(old)
    kind, expression = kept.pop("kind"), kept.pop("expression")
    every, at = kept.pop("every"), kept.pop("at")
    if not any(name in said for name in _MOMENTS):
        kept |= {"cron": expression} if kind == "cron" else {}
        kept |= {"every": every} if kind == "interval" else {}
        kept |= {"at": at} if kind == "once" else {}
    else:  # the defaults depend on the expression; what somebody said stays
        for option, usual in zip(("gap", "fold"), clock_defaults(expression), strict=True):
            if kept[option] == usual:
                del kept[option]
    return timing(**{**kept, **said})


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about a task by who does not know its function; None stays as it is."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    tenant: str | None = None
    priority: str | None = None


def amended(
    old: Template, said: Amendment, priorities: Priorities, codecs: Codecs | None = None
) -> Template:
    """What is to be enqueued, with what was said laid over it.

    Raises ``CodecError`` if arguments are kept that cannot be decoded here.
    """
    changes: dict[str, Any] = {}
    if said.queue is not None:
        changes["queue"] = check_queue(said.queue)
    if said.tenant is not None:
        changes["tenant"] = check_tenant(said.tenant)
    if said.priority is not None:
        changes["level"] = priorities.level(said.priority)
    if said.args is not None or said.kwargs is not None:
        body = Body.decode(old.body)
        args, kwargs = said.args, said.kwargs
        if args is None or kwargs is None:
            kept = unpack_arguments(body.arguments, codecs)
            args = kept[0] if args is None else args
            kwargs = kept[1] if kwargs is None else kwargs
        packed = pack_arguments(tuple(args), dict(kwargs))
        if codecs is not None:
            packed = codecs.encode(packed, "the arguments", MAX_BODY)
        changes["body"] = msgspec.structs.replace(body, arguments=packed).encode()
    return msgspec.structs.replace(old, **changes)


def template_of(call: TaskCall[Any] | Sender[..., Any]) -> Template:
    """What is to be enqueued for each slot; arguments and options are checked now."""
    if isinstance(call, Sender):
        call = call.call()
    if not isinstance(call, TaskCall):
        raise InvalidInput(
            f"{type(call).__name__} cannot be scheduled; use a task, or task.call(...)"
        )
    if call.is_dated:
        raise InvalidOption("at", "given", "left out: the schedule says when")
    return template_for(call.spec.name, call.submission())


def template_for(task: str, submission: Submission) -> Template:
    """What is to be enqueued for each slot, of a call of this task that was checked."""
    message = submission.message
    if submission.delay:
        raise InvalidOption("delay", submission.delay, "left out: the schedule says when")
    if submission.depends_on:
        raise InvalidOption("depends_on", submission.depends_on, "left out of a schedule")
    if ":" in message.id:
        raise InvalidOption("id", message.id, "left out: each slot has an id of its own")
    return Template(
        task=task,
        body=message.body,
        queue=message.queue,
        tenant=message.tenant,
        level=message.level,
        cost=message.cost,
        limiters=message.limiters,
        deadline=submission.deadline,
        unique=submission.unique,
    )


def declaration(name: str | None, call: TaskCall[Any], rule: Timing) -> Declared:
    """What a program declares, with a digest by which a change of it is noticed."""
    template = template_of(call)
    if name is None:
        name = "".join("-" if letter in ":<>" else letter for letter in template.task)
    plain = template
    if call.codecs is not None:  # the digest is that of the content, whatever encodes it
        body = call.codecs.readable_body(template.body)
        plain = msgspec.structs.replace(template, body=body)
    content = msgspec.msgpack.encode((rule, plain))
    digest = hashlib.sha256(content).hexdigest()[:32]
    return Declared(
        check_schedule(name), ScheduleSpec(timing=rule, template=template, declared=digest)
    )
