"""Which broker a command talks to, and how it ends the talk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead.settings import (
    FILE,
    VARIABLE,
    Configured,
    configured,
    configured_namespace,
    requires_url,
)

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.broker import Store
    from fairlead.client import Client

__all__ = ("asked", "asked_client", "look", "named", "store_of", "url_option")

T = TypeVar("T")

#: The option that every command has which talks to a broker.
url_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--url",
    allow_from_autoenv=False,
    help=f"The broker; without it, {VARIABLE}, {FILE} or ./.fairlead is.",
)


def store_of(url: str | None) -> Store:
    """The broker of a command: named there, in the environment, in the file, or found here."""
    from fairlead.broker import connect

    return connect(named(url)[0])


def named(url: str | None) -> tuple[str, str]:
    """The URL of a command's broker, and who says so.

    Where nobody says, apps use a server of their own in the working directory, so it is that one if
    there is one; a command starts none.
    """
    from fairlead.broker import with_namespace, with_routes, with_shards

    said = Configured(url, "--url") if url else configured()
    if not said.url:
        said = said._replace(url=_own_server(), source="the working directory")
    found = said.url or ""
    if found.lower().startswith("memory:"):
        text = "memory:// lives inside the process that uses it, where no command can look"
        raise click.UsageError(f"{text}; give the --url of a server")
    found = with_namespace(found, configured_namespace())
    return with_routes(with_shards(found, said.shards or {}), said.routes or {}), said.source


def _own_server() -> str:
    """The URL of the embedded server whose data is in the working directory."""
    from fairlead.embedded.options import DEFAULT_PATH, SCHEME

    folder = Path(DEFAULT_PATH).absolute()
    if (folder / "valkey").is_dir() and not requires_url():
        return f"{SCHEME}://"
    raise click.UsageError(
        f"which broker? Give --url redis://HOST, set {VARIABLE}, or run this where an app has its "
        f"own server (there is none in {str(folder)!r})"
    )


def look(url: str | None, read: Callable[[Store], Awaitable[T]]) -> T:
    """What a read of the broker says; warnings about the broker are for ``fairlead doctor``."""
    import asyncio

    return asyncio.run(_quietly(store_of(url), read))


def asked(url: str | None, question: Callable[[Fairlead], Awaitable[T]]) -> T:
    """The same through an app without tasks."""
    from fairlead.app import Fairlead

    return look(url, lambda store: question(Fairlead(store=store)))


def asked_client(url: str | None, question: Callable[[Client], Awaitable[T]]) -> T:
    """The same through a client."""
    from fairlead.client import Client

    async def ask(store: Store) -> T:
        client = Client(store)
        try:
            return await question(client)
        finally:
            await client.close()

    return look(url, ask)


async def _quietly(store: Store, read: Callable[[Store], Awaitable[T]]) -> T:
    import logging

    log = logging.getLogger("fairlead")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return await read(store)
    finally:
        await store.close()
        log.setLevel(level)
