"""Programs that this process starts and waits for, told to whoever else looks at its children."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_waiting: set[object] = set()  # adding and taking out are one step each, in whatever thread


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Start and wait for a program inside of this: its exit status is taken by nobody else."""
    token = object()
    _waiting.add(token)
    try:
        yield
    finally:
        _waiting.discard(token)


def is_waited_for() -> bool:
    """Whether somebody in this process may be waiting for a program."""
    return bool(_waiting)
