"""What a worker works out before it starts: its queues, and what it tells of its tasks."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from fairlead.broker.requests import MAX_EXCHANGE
from fairlead.model.errors import BrokerError, InvalidInput, InvalidOption
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.model.queue_order import QueueOrder, StrictOrder, WeightedOrder
from fairlead.model.registry import Registry
from fairlead.runtime.component import Outage
from fairlead.worker.process.ipc import SlotPlan

_MAX_SLOTS = 10_000
_PAUSE = 1.0  # seconds between two tries to reach a broker that is away


async def prepared(prepare: Callable[[], Awaitable[None]], *, waits: bool) -> None:
    """Prepare a worker; with ``waits`` again and again, until the broker is there.

    Raises what does not pass by itself.
    """
    outage = Outage("worker", repeats=True)
    while True:
        try:
            await prepare()
        except BrokerError as error:
            if not (waits and error.passes):
                raise
            outage.failed(error)
            await asyncio.sleep(_PAUSE)
        else:
            outage.over()
            return


def queue_order(
    queues: Sequence[str] | Mapping[str, float] | None,
    registry: Registry,
    *,
    strict: bool,
    largest_fetch: int,
) -> QueueOrder:
    """In which order to look into the queues; without any, all that the tasks name."""
    if queues is None:
        queues = {DEFAULT_QUEUE: 1.0}
        for spec in registry:
            if spec.options.queue is not UNSET:
                queues[spec.options.queue] = 1.0
    elif isinstance(queues, str):
        raise InvalidOption("queues", queues, "a list of names, or weights by name")
    if strict:
        if isinstance(queues, Mapping):
            return StrictOrder(sorted(queues, key=queues.__getitem__, reverse=True))
        return StrictOrder(queues)
    if not isinstance(queues, Mapping):
        queues = dict.fromkeys(StrictOrder(queues).order(), 1.0)  # which checks the list
    if len(queues) == 1:
        WeightedOrder(queues)
        return StrictOrder(queues)  # there is nothing to share
    return WeightedOrder(queues, largest_fetch=min(largest_fetch, MAX_EXCHANGE))


def versions(registry: Registry) -> dict[str, int]:
    """The versions of the tasks that are not in their first."""
    return {spec.name: spec.version for spec in registry if spec.version != 1}


def place(handler: Callable[..., Any]) -> tuple[str, str]:
    """File and name of a function, as a stack shows it."""
    function = inspect.unwrap(handler)
    function = getattr(function, "func", function)  # of a partial
    code = getattr(function, "__code__", None)
    return ("", "") if code is None else (code.co_filename, code.co_name)


def check_limits(
    *,
    concurrency: int,
    threads: int,
    slots: int,
    grace: float,
    patience: float,
    lease: float | None,
) -> None:
    """Refuse what a worker cannot keep to."""
    check_count("concurrency", concurrency, 1, _MAX_SLOTS)
    check_count("threads", threads, 1, _MAX_SLOTS)
    check_seconds("grace", grace)
    check_seconds("patience", patience)
    check_count("slots", slots, 0, _MAX_SLOTS)
    if lease is not None:
        check_seconds("lease", lease, least=0.01)


def check_count(option: str, value: object, least: int, most: int) -> None:
    """Refuse what is not a whole number in this range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOption(option, value, f"a whole number from {least} to {most}")


def check_seconds(option: str, value: object, least: float = 0.0) -> None:
    """Refuse what is not a number of seconds."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (math.isfinite(value) and value >= least)
    ):
        raise InvalidOption(option, value, f"a number of seconds, {least:g} or more")


def slot_plan_of(app: object) -> SlotPlan:
    """How other processes find an app: by the module that it stands in."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return SlotPlan(app=f"{name}:{attribute}", path=sys.path)
    raise InvalidInput(
        'other processes cannot find this app: for isolation="process" it has to stand at '
        "the top of a module that they can import, which __main__ is not"
    )
