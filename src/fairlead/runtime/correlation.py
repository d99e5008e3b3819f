"""The correlation id of whatever runs right now: one id follows work from task to task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: None outside of any correlation. Tasks enqueued meanwhile inherit what is set here.
correlation_id: ContextVar[str | None] = ContextVar("fairlead_correlation_id", default=None)


@contextmanager
def correlation(id: str | None) -> Iterator[None]:
    """Let everything in the block, and all that it enqueues, carry this correlation id."""
    token = correlation_id.set(id)
    try:
        yield
    finally:
        correlation_id.reset(token)
