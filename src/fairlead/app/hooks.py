"""The hooks of an app: functions that are called for events, by its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

from fairlead.client import Clients, EventInfo, EventStream
from fairlead.client.declaration import name_of
from fairlead.client.event_info import EventDetails, EventFilter, event_filter
from fairlead.client.event_stream import NOW
from fairlead.model.durations import Duration
from fairlead.model.errors import InvalidInput
from fairlead.model.names import check_key
from fairlead.model.options import seconds
from fairlead.worker.hooks import Hook

F = TypeVar("F", bound=Callable[[EventInfo], Any])

_TIMEOUT = 60.0
_MOST = 100  # each of them reads the stream by itself


class HookOptions(TypedDict, total=False):
    """For which events a hook is called, and how."""

    queue: str
    """Only events of this queue. Default: of all."""
    tenant: str
    """Only events of this tenant. Default: of all."""
    task: str
    """Only events of the task with this id. Default: of all."""
    name: str
    """Only events of tasks with this name. Default: of all."""
    reader: str
    """The name under which its place in the events is kept. Default: the name of the function."""
    timeout: Duration
    """How long one call may take, in seconds or as a duration such as "30s". Default: a minute."""


class Hooks:
    """All hooks of one app."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._hooks: dict[str, tuple[Callable[[Any], Any], EventFilter, float]] = {}

    def on(self, types: tuple[str, ...], options: HookOptions) -> Callable[[F], F]:
        """The decorator of a hook."""
        wanted = event_filter(
            types or None,
            queue=options.get("queue"),
            tenant=options.get("tenant"),
            task=options.get("task"),
            name=options.get("name"),
        )
        limit = seconds("timeout", options.get("timeout", _TIMEOUT), least=0.001)
        if unknown := options.keys() - HookOptions.__annotations__.keys():
            raise InvalidInput(f"a hook has no option {sorted(unknown)[0]!r}")

        def register(function: F) -> F:
            if not callable(function):
                raise InvalidInput("a hook is a function that takes an event")
            name = check_key("reader", options.get("reader") or name_of(function))
            if name in self._hooks:
                raise InvalidInput(
                    f"there is a hook {name!r} already; give this one another name with reader="
                )
            if len(self._hooks) >= _MOST:
                raise InvalidInput(f"an app has at most {_MOST} hooks")
            self._hooks[name] = function, wanted, limit
            return function

        return register

    def made(self) -> list[Hook]:
        """All of them, for one worker."""
        shared: list[EventDetails] = []  # made on the loop of the worker

        def opened(wanted: EventFilter) -> Callable[[str | None], EventStream]:
            def open(place: str | None) -> EventStream:
                client = self._clients.current()
                if not shared:
                    shared.append(EventDetails(client))
                return EventStream(lambda: client, wanted, after=place or NOW, details=shared[0])

            return open

        return [
            Hook(name=name, function=function, open=opened(wanted), timeout=limit)
            for name, (function, wanted, limit) in self._hooks.items()
        ]
