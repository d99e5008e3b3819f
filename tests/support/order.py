"""In which order each process imports tests and starts them: those that take long come first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

import pytest

__all__ = ("dealt", "seconds_of", "shares", "turned")

T = TypeVar("T")


def seconds_of(item: pytest.Item) -> float:
    """How long a test takes, as its marker says."""
    return max((marker.args[0] for marker in item.iter_markers("long")), default=0.0)


def shares(count: int, processes: int) -> list[int]:
    """How many items each process begins with: into such pieces xdist's "worksteal" cuts them."""
    sizes: list[int] = []
    for place in range(processes):
        sizes.append((count - sum(sizes)) // (processes - place))
    return sizes


def dealt(items: Sequence[T], seconds: Callable[[T], float], processes: int) -> list[T]:
    """Return the items so that the pieces of half the processes begin with those that take long.

    Most of these wait. The other processes have something to do meanwhile.
    """
    long = sorted((each for each in items if seconds(each)), key=seconds, reverse=True)
    waiting = (processes + 1) // 2 if 2 * len(long) <= len(items) else processes
    rest = iter([each for each in items if not seconds(each)])
    found: list[T] = []
    for place, size in enumerate(shares(len(items), processes)):
        first = long[place::waiting] if place < waiting else []
        found += first
        found += islice(rest, max(size - len(first), 0))
    return [*found, *rest]


def turned(items: Sequence[T], place: int, processes: int) -> list[T]:
    """Return the items so that each process begins with others and goes on with the next one's."""
    first = len(items) * place // processes
    return [*items[first:], *items[:first]]
