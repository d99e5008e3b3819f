"""What workers tell of their tasks: names, versions, options and parameters, in a small document.

Two workers of the same code make the same document, which is known by its digest.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from fairlead.model.errors import InvalidInput
from fairlead.model.message import LEVEL_NAMES, MAX_CRASHES
from fairlead.model.names import DEFAULT_QUEUE, DEFAULT_TENANT
from fairlead.model.options import (
    MAX_COST,
    MAX_RETRIES,
    MIN_COST,
    resolved,
)
from fairlead.model.parameters import Parameter, parameters_of
from fairlead.model.priorities import Priorities
from fairlead.model.registry import MAX_VERSION, Registry, TaskSpec
from fairlead.model.safe_repr import one_line

KIND = "catalog"  # of the documents, which are named by their digests
MAX_SCHEMA = 16 * 1024  # bytes that the parameters of one task may take
MAX_CATALOG = 64 * 1024  # bytes of one document

_LONGEST_SUMMARY = 200  # characters


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One task as a worker registered it: how to call it, and what holds for calls of it.

    ``is_cut``: there was no room for the schemas of its parameters. ``parameters`` is None where
    there was none for the parameters at all. Durations are in seconds. The bounds hold for what is
    read: others share the call in which a task goes to the broker.
    """

    name: str
    """The name of the task."""
    version: Annotated[int, Meta(ge=1, le=MAX_VERSION)] = 1
    """The version of its arguments."""
    summary: str = ""
    """The first line of its docstring."""
    queue: str = DEFAULT_QUEUE
    """The queue of its calls."""
    tenant: str = DEFAULT_TENANT
    """The tenant of its calls."""
    priority: str = "normal"
    """The level that it stands for; empty: each call's arguments decide."""
    priority_label: str = ""
    """What its app calls that level, if it has a name of its own for it."""
    max_retries: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] = 0
    """How many attempts may follow the first."""
    max_crashes: Annotated[int, Meta(ge=0, le=MAX_CRASHES)] | None = None
    """How many crashes in a row a call survives; None: as attempts do."""
    timeout: float | None = None
    """How long one attempt may take, in seconds; None: no limit."""
    retention: float | None = None
    """How long a completed call is kept, in seconds; None: as its queue says."""
    cost: Annotated[float, Meta(ge=MIN_COST, le=MAX_COST)] = 1.0
    """What one dispatch takes from the tenant's share."""
    limiters: tuple[str, ...] = ()
    """The names of the limiters that calls pass."""
    unique: str = ""
    """The unique key of calls that name none."""
    unique_until: Literal["", "started", "done"] = ""
    """Until when a call holds its unique key."""
    unique_for: float | None = None
    """How many seconds a call holds its unique key; None: see ``unique_until``."""
    isolation: str = ""
    """Where its attempts run: "process", or empty."""
    takes_context: bool = False
    """True: its first parameter is the context, which callers leave out."""
    parameters: tuple[Parameter, ...] | None = None
    """What it takes; None: there was no room for that."""
    definitions: dict[str, Any] = {}
    """Schemas that those of its parameters refer to."""
    is_cut: bool = False
    """True: there was no room for the schemas of its parameters."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a worker, by name. ``more``: there was no room for some."""

    tasks: tuple[TaskEntry, ...] = ()
    more: bool = False


_to_json = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Catalog).decode


def catalog_of(registry: Registry, priorities: Priorities, timeout: float | None = None) -> Catalog:
    """What is told of all registered tasks.

    ``timeout``, in seconds, is that of tasks that say nothing of theirs.
    """
    entries = [entry_of(spec, priorities, timeout) for spec in registry]
    return Catalog(tasks=tuple(sorted(entries, key=lambda entry: entry.name)))


def entry_of(spec: TaskSpec, priorities: Priorities, timeout: float | None = None) -> TaskEntry:
    """What is told of one task; its parameters in full only if they take at most 16 KiB."""
    said = spec.options
    by_arguments = callable(said.priority)
    fixed = msgspec.structs.replace(said, priority=UNSET) if by_arguments else said
    found = resolved(fixed, priorities)
    parameters, definitions = parameters_of(spec)
    unique = found.unique
    level, label = LEVEL_NAMES[found.level], priorities.name(found.level)
    entry = TaskEntry(
        name=spec.name,
        version=spec.version,
        summary=_summary(spec.handler),
        queue=found.queue,
        tenant=found.tenant,
        priority="" if by_arguments else level,
        priority_label="" if by_arguments or label == level else label,
        max_retries=spec.policy.max_retries if found.max_retries is None else found.max_retries,
        max_crashes=spec.max_crashes,
        timeout=timeout if said.timeout is UNSET else found.timeout,
        retention=found.retention,
        cost=found.cost,
        limiters=found.limiters,
        unique="" if unique is None else unique.key,
        unique_until="" if unique is None or unique.until == "window" else unique.until,
        unique_for=unique.window if unique is not None and unique.until == "window" else None,
        isolation=spec.isolation,
        takes_context=spec.takes_context,
        parameters=parameters,
        definitions=definitions,
    )
    return entry if len(_encode((parameters, definitions))) <= MAX_SCHEMA else _cut(entry)


def encode_catalog(catalog: Catalog, limit: int = MAX_CATALOG) -> bytes:
    """The document, of at most ``limit`` bytes.

    Where there is no room for all of it, the largest schemas go first, then all parameters and
    summaries, then tasks from the end of the alphabet.
    """
    tasks = list(catalog.tasks)
    for cut in (_cut, _bare):
        _shorten(tasks, cut, limit)
    kept = len(tasks)
    while True:
        more = catalog.more or kept < len(tasks)
        data = _encode(Catalog(tasks=tuple(tasks[:kept]), more=more))
        if len(data) <= limit or not kept:
            return data
        kept = kept * limit // len(data) if len(data) > 2 * limit else kept - 1 - kept // 50


def published(registry: Registry, priorities: Priorities, timeout: float | None = None) -> bytes:
    """The document that a worker publishes of its tasks."""
    return encode_catalog(catalog_of(registry, priorities, timeout))


def decode_catalog(data: bytes) -> Catalog:
    """The catalog in a document, of this release or another."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a catalog: {type(error).__name__}") from None


def digest_of(data: bytes) -> str:
    """By what name a document is known."""
    return hashlib.sha256(data).hexdigest()[:32]


def _encode(value: Any) -> bytes:
    """As it is stored: what has its default is left out."""
    return _to_json(_stored(value))


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_stored(each) for each in value]
    if not isinstance(value, msgspec.Struct):
        return value
    return {
        name: _stored(item)
        for name, default in _defaults(type(value)).items()
        if (item := getattr(value, name)) != default
    }


@functools.cache  # msgspec compiles all annotations of a class each time that it is asked
def _defaults(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {
        each.name: each.default_factory() if callable(each.default_factory) else each.default
        for each in msgspec.structs.fields(kind)
    }


def _shorten(tasks: list[TaskEntry], cut: Callable[[TaskEntry], TaskEntry], limit: int) -> None:
    """Cut tasks, those first that take most, until all fit or all are cut."""
    sizes = [len(_encode(task)) for task in tasks]
    total = len(_encode(Catalog())) + len('"tasks":[],"more":true') + sum(sizes) + len(tasks)
    for place in sorted(range(len(tasks)), key=lambda place: (-sizes[place], place)):
        if total <= limit:
            return
        tasks[place] = cut(tasks[place])
        total += len(_encode(tasks[place])) - sizes[place]


def _cut(entry: TaskEntry) -> TaskEntry:
    """The entry without schemas; its parameters stay if they alone are small enough."""
    bare = tuple(
        Parameter(name=each.name, kind=each.kind, required=each.required)
        for each in entry.parameters or ()
    )
    fits = entry.parameters is not None and len(_encode(bare)) <= MAX_SCHEMA
    return msgspec.structs.replace(
        entry, parameters=bare if fits else None, definitions={}, is_cut=True
    )


def _bare(entry: TaskEntry) -> TaskEntry:
    return msgspec.structs.replace(entry, parameters=None, definitions={}, summary="", is_cut=True)


def _summary(handler: Callable[..., Any]) -> str:
    while isinstance(handler, functools.partial):  # whose own docstring is of no use
        handler = handler.func
    text: Any = getattr(handler, "__doc__", None)
    lines: Sequence[str] = text.strip().splitlines() if isinstance(text, str) else ()
    line = lines[0].encode(errors="replace").decode() if lines else ""
    return one_line(line.strip(), _LONGEST_SUMMARY)
