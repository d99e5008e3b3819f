"""What an adapter offers. A file in `adapters` has one of these, by the name of `ADAPTER`.

The same contract as a command line, for adapters that are not in Python (see `driver`):

    version                     print the versions of what is measured
    work SLOTS PROCESSES        run a worker until SIGTERM
    fill TASKS                  enqueue so many tasks that do nothing but leave a mark
    pace TASKS GAP              enqueue so many tasks that mark their latency, GAP seconds apart
    sync|async|callers|bulk SECONDS
                                enqueue for so long, and print {"tasks": ..., "seconds": ...}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

__all__ = ("CALLERS", "IN_A_CALL", "PAYLOAD", "TENANTS", "URL", "Adapter", "Awaited", "Called")

URL = "PEERS_URL"  # the variable that says where the server is: redis://127.0.0.1:PORT/0
TENANTS = "PEERS_TENANTS"  # among how many tenants `fill` divides its tasks

PAYLOAD = "x" * 100
CALLERS = 50  # that enqueue at once
IN_A_CALL = 1_000  # tasks of one bulk call


@dataclass(frozen=True, kw_only=True)
class Called:
    """Functions that return when the server has the task."""

    one: Callable[[str], object]  # enqueue a task with this payload
    timed: Callable[[int], object]  # enqueue a task that marks its latency since then
    many: Callable[[list[str]], object] | None = None  # the same as `one`, in one call


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """The same for callers that await."""

    one: Callable[[str], Awaitable[object]]
    timed: Callable[[int], Awaitable[object]]
    many: Callable[[list[str]], Awaitable[object]] | None = None
    opened: Callable[[], AbstractAsyncContextManager[object]] = nullcontext


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A peer: who enqueues in which way, and how its worker is run."""

    packages: tuple[str, ...]  # whose versions are shown
    work: Callable[[int, int], None]  # slots of each process, processes
    called: Called | None = None
    awaited: Awaited | None = None
