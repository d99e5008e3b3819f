"""Which broker a command talks to, and how it ends the talk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from fairlead.app import Fairlead
from fairlead.broker import Store, connect, with_routes, with_shards
from fairlead.settings import FILE, VARIABLE, Configured, configured

__all__ = ("asked", "look", "named", "store_of", "url_option")

T = TypeVar("T")

#: The option that every command has which talks to a broker.
url_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--url", help=f"The broker; without it, {VARIABLE} or {FILE} says which."
)


def store_of(url: str | None) -> Store:
    """The broker of a command: named there, in the environment, or in the file."""
    return connect(named(url)[0])


def named(url: str | None) -> tuple[str, str]:
    """The URL of a command's broker, and who says so."""
    said = Configured(url, "--url") if url else configured()
    if not said.url:
        raise click.UsageError(f"which broker? Give --url redis://HOST, or set {VARIABLE}")
    if said.url.lower().startswith("memory:"):
        text = "memory:// lives inside the process that uses it, where no command can look"
        raise click.UsageError(f"{text}; give the --url of a server")
    return with_routes(with_shards(said.url, said.shards or {}), said.routes or {}), said.source


def look(url: str | None, read: Callable[[Store], Awaitable[T]]) -> T:
    """What a read of the broker says; warnings about the broker are for ``fairlead doctor``."""
    return asyncio.run(_quietly(store_of(url), read))


def asked(url: str | None, question: Callable[[Fairlead], Awaitable[T]]) -> T:
    """The same through an app without tasks."""
    return look(url, lambda store: question(Fairlead(store=store)))


async def _quietly(store: Store, read: Callable[[Store], Awaitable[T]]) -> T:
    log = logging.getLogger("fairlead")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return await read(store)
    finally:
        await store.close()
        log.setLevel(level)
