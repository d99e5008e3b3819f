"""What a function may be that runs around attempts or enqueues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fairlead.client import Enqueuing
from fairlead.worker.context import Context

__all__ = ("EnqueueMiddleware", "RunMiddleware")

RunMiddleware = TypeVar(
    "RunMiddleware",
    bound=Callable[[Context], AsyncIterator[None] | AbstractAsyncContextManager[Any]],
)
EnqueueMiddleware = TypeVar(
    "EnqueueMiddleware",
    bound=Callable[[Enqueuing], AsyncIterator[None] | AbstractAsyncContextManager[Any]],
)
