"""Calls of tasks by name, where their code is not installed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from msgspec import UNSET

from fairlead.broker.repeats import late
from fairlead.broker.requests import LeaseRef, Submission
from fairlead.client.call import BoundTask, CallOptions, TaskCall, call_of
from fairlead.client.catalog import (
    DOUBTED,
    KnownTask,
    check_arguments,
    closest_names,
    known_task,
)
from fairlead.client.clients import Clients
from fairlead.model.argument_packing import pack_arguments, unpack_arguments
from fairlead.model.backoff import RetryPolicy
from fairlead.model.catalog import TaskEntry
from fairlead.model.codecs import MAX_PLAIN
from fairlead.model.errors import (
    BrokerError,
    InvalidArgument,
    InvalidInput,
    InvalidOption,
    UnknownTask,
    Unreachable,
)
from fairlead.model.message import LEVEL_NAMES
from fairlead.model.names import DEFAULT_TENANT
from fairlead.model.options import Options
from fairlead.model.priorities import LEVEL_LABELS
from fairlead.model.registry import Registry, TaskSpec

if TYPE_CHECKING:
    from fairlead.client.client import Client

T = TypeVar("T")

_PLAIN = frozenset((str, int, float, bool, type(None), bytes, list, dict))
_MOST_WARNED = 10_000  # names; of more, no warning is logged

log = logging.getLogger("fairlead.client")


class NamedCall(TaskCall[Any]):
    """A call of a task by its name. What workers tell of the task is asked once, before it goes."""

    __slots__ = ("_found", "_strict")

    _strict: bool | None
    _found: BoundTask | None  # with what workers tell

    def using(self, **options: Unpack[CallOptions]) -> NamedCall:
        """Return another call, with an id of its own, to which these options apply as well."""
        bound = self._bound.using(options).for_call()
        return named_call(bound, self.args, self.kwargs, self._strict)

    def check_registered(self, registry: Registry) -> None:
        """Nothing to check: workers have it, not this app."""

    def submission(
        self, fence: LeaseRef | None = None, after: Sequence[TaskCall[Any]] = ()
    ) -> Submission:
        """What the broker gets; it must have been looked up."""
        if self._found is None:
            raise InvalidInput(
                f"task {self.spec.name!r} is not registered here, and workers cannot be asked for "
                "it at this place; register it, or enqueue or create it while the program runs"
            )
        return self._made(self._found, fence, after)

    async def find(self, client: Client) -> None:
        """Ask what workers tell of the task, and check the arguments by it."""
        if self._found is not None:
            return
        args, kwargs = _plain(self.args, self.kwargs)
        known = client.catalogs.fresh().get(self.spec.name)
        if known is not None:  # mostly: no need to wait for anything
            with contextlib.suppress(InvalidArgument):
                self._found = self._bound_to(client, check_arguments(known, args, kwargs))
                return
        known, names = await self._asked(client)
        if known is None:
            self._unknown(client, names)
            self._found = self._bound
        else:
            self._found = self._bound_to(client, check_arguments(known, args, kwargs))

    async def _asked(self, client: Client) -> tuple[KnownTask | None, Sequence[str]]:
        """What workers tell of the task, and all names that they have.

        With a fallback, what they told last will do while the broker is away: the queue and the
        tenant of a task that was never told of cannot be known.
        """
        last = client.catalogs.last.get(self.spec.name) if client.spools else None
        if client.is_away:
            if last is None:
                raise Unreachable(
                    f"the broker is away, and what workers tell of task {self.spec.name!r} was "
                    "never read: its queue and its tenant cannot be known"
                )
            return last, ()
        limit = self._bound.enqueue_timeout
        try:
            async with asyncio.timeout(client.read_limit(limit)):
                return await known_task(client, self.spec.name, within=DOUBTED)
        except TimeoutError:
            if last is None:
                raise late(in_flight=False) from None
        except BrokerError as error:
            if last is None or not error.passes:
                raise
        return last, ()

    def _unknown(self, client: Client, names: Sequence[str]) -> None:
        """Refuse a name that no worker has, or warn of it."""
        name = self.spec.name
        if self._strict or (self._strict is None and names):
            raise UnknownTask(
                name,
                closest_names(name, names),
                missing="is not known to any worker",
                advice="start a worker that has it first, or pass strict=False to app.named",
            )
        warned = client.catalogs.warned
        if name not in warned and len(warned) < _MOST_WARNED:
            warned.add(name)
            log.warning(
                "task %s is not known to any worker: it waits until one comes that has it",
                name,
                extra={"task": name},
            )

    def _bound_to(self, client: Client, entry: TaskEntry) -> BoundTask:
        said = self._bound.said
        if said.id is not UNSET and said.tenant is UNSET and entry.tenant != DEFAULT_TENANT:
            raise InvalidOption(
                "id", said.id, f"given with tenant=: calls of {entry.name!r} have one of their own"
            )
        self.spec = client.catalogs.spec_of(entry, spec_of)
        return self._bound.on(self.spec)


def named_call(
    bound: BoundTask, args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool | None
) -> NamedCall:
    """Return a call with these arguments, of which nothing was asked yet."""
    made = cast(NamedCall, call_of(bound, args, kwargs, NamedCall))
    made._strict, made._found = strict, None
    return made


async def look_up(client: Client, calls: Iterable[T]) -> list[T]:
    """The calls, once workers were asked about those that are by name only."""
    made = _listed(calls)
    if _some_are_named(made):
        for call in made:
            if isinstance(call, NamedCall):
                await call.find(client)
    return made


def look_up_now(clients: Clients, calls: Iterable[T]) -> list[T]:
    """``look_up`` from sync code, without a trip if there is nothing to ask."""
    made = _listed(calls)
    if _some_are_named(made):
        clients.sync(lambda client: look_up(client, made))
    return made


def _some_are_named(calls: Iterable[object]) -> bool:
    return any(issubclass(kind, NamedCall) for kind in set(map(type, calls)))


def _listed(calls: Iterable[T]) -> list[T]:
    if not isinstance(calls, Iterable):
        raise InvalidInput(f"{type(calls).__name__} is not a list of calls")
    return list(calls)


def _plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments as the worker will find them stored, as far as it is plain to see."""
    if all(type(each) in _PLAIN for each in (*args, *kwargs.values())):
        return args, kwargs
    return unpack_arguments(pack_arguments(args, kwargs, {}, limit=MAX_PLAIN))


@lru_cache(maxsize=1024)
def placeholder(name: str) -> TaskSpec:
    """A task of which nothing but the name is known."""
    return TaskSpec(name, _elsewhere)


class _Context:
    """Stands for the context that the worker puts in front."""


def _elsewhere(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("the code of this task is elsewhere")


def _elsewhere_with_context(ctx: _Context, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("the code of this task is elsewhere")


def spec_of(entry: TaskEntry) -> TaskSpec:
    """The task as a program would have registered it, without its code."""
    said: dict[str, Any] = {"queue": entry.queue, "tenant": entry.tenant, "cost": entry.cost}
    if entry.priority:
        said["priority"] = LEVEL_LABELS[LEVEL_NAMES.index(entry.priority)]
    if entry.limiters:
        said["limiters"] = entry.limiters
    if entry.unique:
        said["unique"] = entry.unique
        if entry.unique_for is not None:
            said["unique_for"] = entry.unique_for
        elif entry.unique_until:
            said["unique_until"] = entry.unique_until
    return TaskSpec(
        entry.name,
        _elsewhere_with_context if entry.takes_context else _elsewhere,
        options=Options(**said),
        policy=RetryPolicy(max_retries=entry.max_retries),
        version=entry.version,
        context_type=_Context,
        max_crashes=entry.max_crashes,
    )
