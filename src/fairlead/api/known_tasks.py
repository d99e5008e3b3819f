"""Finds out what is known of a task by its name: registered here, or announced by a worker."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fairlead.broker.repeats import late
from fairlead.client import BoundTask, CallOptions, Client
from fairlead.client.catalog import (
    KnownTask,
    check_arguments,
    closest_names,
    known_task,
    known_tasks,
)
from fairlead.client.named_call import spec_of
from fairlead.model.catalog import TaskEntry
from fairlead.model.codecs import Codecs
from fairlead.model.errors import BrokerError, InvalidArgument, UnknownTask
from fairlead.model.priorities import Priorities
from fairlead.model.registry import Registry, TaskSpec

_MOST = 2_000  # combinations of a task and plain options that are remembered
_PLAIN = frozenset({"tenant", "queue", "priority"})  # options that many calls share
_FRESH = 5.0  # seconds that what is known is good for
_DOUBTED = 1.0  # seconds: what is known may be so old if it would mean a refusal


class KnownTasks:
    """The tasks that callers may enqueue, by name."""

    def __init__(
        self,
        registry: Registry | None = None,
        priorities: Priorities | None = None,
        codecs: Codecs | None = None,
    ) -> None:
        """``registry`` are the tasks of an app, which may still grow."""
        self._codecs = codecs
        self._registry = Registry() if registry is None else registry
        self._priorities = Priorities() if priorities is None else priorities
        self._fresh_until = self._alone_until = 0.0  # by the loop's clock
        self._lately: OrderedDict[tuple[object, ...], tuple[object, BoundTask]] = OrderedDict()

    async def find(
        self,
        client: Client,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        *,
        strict: bool | None = None,
        patience: float | None = None,
    ) -> BoundTask:
        """The task of this name with these options.

        Raises ``UnknownTask`` for a name that neither this app nor a worker has, unless no worker
        is known at all or ``strict`` is False; and ``InvalidArgument``. If the broker does not say
        within ``patience`` what workers have, what it said last counts.
        """
        source: TaskSpec | TaskEntry | None
        if name in self._registry:
            source = self._registry.get(name)
        else:
            source = await self._found(client, name, args, kwargs, strict, patience)
        if not _PLAIN.issuperset(options):
            return self._kind(name, source).using(options)
        key = (name, options.get("tenant"), options.get("queue"), options.get("priority"))
        found = self._lately.get(key)
        if found is not None and found[0] is source:
            return found[1]
        kind = self._kind(name, source).using(options)
        self._lately[key] = source, kind
        if len(self._lately) > _MOST:
            self._lately.popitem(last=False)
        return kind

    async def _found(
        self,
        client: Client,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        strict: bool | None,
        patience: float | None,
    ) -> TaskEntry | None:
        if patience is None:
            return await self._announced(client, name, args, kwargs, strict)
        if patience > 0.0:
            try:  # who wants to be sure waits longer
                async with asyncio.timeout(client.limit if strict else patience):
                    return await self._announced(client, name, args, kwargs, strict)
            except (BrokerError, TimeoutError):
                pass
        known = client.catalogs.last
        if name in known:
            return check_arguments(known[name], args, kwargs)
        if known and strict is not False:
            raise _unknown(name, list(known))
        if strict:
            raise late(in_flight=False)
        return None

    async def _announced(
        self,
        client: Client,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        strict: bool | None,
    ) -> TaskEntry | None:
        now = asyncio.get_running_loop().time()
        if now < self._alone_until and not strict:
            return None
        if now < self._fresh_until:  # then this is no trip
            known = (await client.catalogs.known(_FRESH)).get(name)
            if known is not None:
                with suppress(InvalidArgument):  # it is asked again, a worker may have come
                    return check_arguments(known, args, kwargs)
        try:
            async with asyncio.timeout(client.limit):
                known, names = await known_task(client, name)
                self._fresh_until = now + _FRESH - _DOUBTED
                if names:  # workers have come since nobody was there
                    self._alone_until = 0.0
                if known is not None:
                    return await _fitting(client, known, args, kwargs)
        except TimeoutError:
            raise late(in_flight=False) from None
        if not names:
            self._alone_until = now + _DOUBTED
        if strict or (strict is None and names):
            raise _unknown(name, names)
        return None

    def _kind(self, name: str, source: TaskSpec | TaskEntry | None) -> BoundTask:
        if source is None:
            return BoundTask(_Elsewhere(name, _anything), self._priorities, codecs=self._codecs)
        spec = spec_of(source) if isinstance(source, TaskEntry) else source
        return BoundTask(spec, self._priorities, codecs=self._codecs)


async def _fitting(
    client: Client, known: KnownTask, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TaskEntry:
    try:
        return check_arguments(known, args, kwargs)
    except InvalidArgument:
        await known_tasks(client, within=_DOUBTED)
        again, _ = await known_task(client, known.name)
        if again is None or again is known:
            raise
        return check_arguments(again, args, kwargs)


def _unknown(name: str, names: Sequence[str]) -> UnknownTask:
    return UnknownTask(
        name,
        closest_names(name, names),
        missing="is not known to any worker",
        advice='start a worker that has it, or say "strict": false',
    )


class _Elsewhere(TaskSpec):
    """A task of which nothing but the name is known."""

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Its worker will see."""


def _anything(*args: Any, **kwargs: Any) -> None:
    """Stands for a handler whose code is elsewhere."""
