"""What a test enqueued, and how it is compared with what the test expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

import msgspec

from fairlead.broker.requests import Submission
from fairlead.model.argument_packing import pack, unpack, unpack_arguments
from fairlead.model.codecs import Codecs
from fairlead.model.errors import UnknownTask
from fairlead.model.message import Body, Trace
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_SHOWN = 20  # calls in the text of a failed assertion
_LONGEST = 200  # characters of one of them


class EnqueuedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that the broker accepted during a test, as it was enqueued."""

    id: str
    task: str
    arguments: dict[str, Any]  # by the names of the parameters, as plain data
    queue: str
    tenant: str
    priority: str
    delay: float  # seconds
    headers: dict[str, str]
    schedule: str  # the schedule that fired it, or empty

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        text = f"{self.task}({given})"
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def enqueued_task(
    submission: Submission,
    registry: Registry,
    priorities: Priorities,
    schedule: str = "",
    codecs: Codecs | None = None,
) -> EnqueuedTask:
    """Return a submission in the words of its caller."""
    message = submission.message
    body = Body.decode(message.body)
    return EnqueuedTask(
        id=message.id,
        task=body.task,
        arguments=_named(body, registry, codecs),
        queue=message.queue,
        tenant=message.tenant,
        priority=priorities.name(message.level),
        delay=submission.delay,
        headers=dict(Trace.of(message).headers),
        schedule=schedule,
    )


def matches(task: EnqueuedTask, name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a task has this name, in full or behind its last dot, and these arguments too."""
    if name not in (task.task, task.task.rpartition(".")[2]):
        return False
    return all(
        key in task.arguments and task.arguments[key] == unpack(pack(value, key))
        for key, value in arguments.items()
    )


def shown_calls(tasks: Iterable[EnqueuedTask]) -> str:
    """Return calls as lines, for the text of a failed assertion."""
    lines = [f"  {task}" for task in tasks]
    if not lines:
        return "nothing was enqueued"
    more = [f"  and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return "\n".join(["enqueued were:", *lines[:_SHOWN], *more])


def _named(body: Body, registry: Registry, codecs: Codecs | None) -> dict[str, Any]:
    args, kwargs = unpack_arguments(body.arguments, codecs)
    try:
        parameters = registry.get(body.task).parameters
    except UnknownTask:  # sent by name: its code is elsewhere
        parameters = []
    known = [each.name for each, _ in parameters if each.kind in _POSITIONAL]
    names = [known[place] if place < len(known) else str(place) for place in range(len(args))]
    return {**dict(zip(names, args, strict=True)), **kwargs}
