"""Middleware as programs write it: an async generator function, or what makes a context manager."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

from fairlead.client import Enqueuing
from fairlead.model.errors import InvalidInput
from fairlead.worker.run.context import Context

A = TypeVar("A")
RunMiddleware = TypeVar(
    "RunMiddleware",
    bound=Callable[[Context], AsyncIterator[None] | AbstractAsyncContextManager[Any]],
)
EnqueueMiddleware = TypeVar(
    "EnqueueMiddleware",
    bound=Callable[[Enqueuing], AsyncIterator[None] | AbstractAsyncContextManager[Any]],
)


def context_manager_of(
    function: Callable[[A], AsyncIterator[None] | AbstractAsyncContextManager[Any]], where: str
) -> Callable[[A], AbstractAsyncContextManager[Any]]:
    """Return what makes an async context manager for each use; refuse what never could."""
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    name = getattr(function, "__qualname__", repr(type(function)))
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidInput(f"{where} takes an async function that yields once; {name} is none")
    if not callable(function):
        raise InvalidInput(f"{where} takes a function, not {type(function).__name__}")
    return cast("Callable[[A], AbstractAsyncContextManager[Any]]", function)
