"""Commands that look into a broker: which one, and reading from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from fairlead.broker import Store, connect
from fairlead.settings import FILE, VARIABLE, configured_url

__all__ = ("URL_HELP", "look", "opened")

T = TypeVar("T")

URL_HELP = f"The broker; without it, {VARIABLE} or {FILE} says which."


def look(url: str | None, read: Callable[[Store], Awaitable[T]]) -> T:
    """What a read of the broker says; warnings about the broker are for ``fairlead doctor``."""
    return asyncio.run(_look(opened(url), read))


def opened(url: str | None) -> Store:
    """The broker that was named, or is configured."""
    url = url or configured_url()
    if not url:
        raise click.UsageError(f"which broker? Give --url redis://HOST, or set {VARIABLE}")
    if url.lower().startswith("memory:"):
        text = "memory:// lives inside the process that uses it, where no command can look"
        raise click.UsageError(f"{text}; give the --url of a server")
    return connect(url)


async def _look(store: Store, read: Callable[[Store], Awaitable[T]]) -> T:
    log = logging.getLogger("fairlead")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return await read(store)
    finally:
        await store.close()
        log.setLevel(level)
