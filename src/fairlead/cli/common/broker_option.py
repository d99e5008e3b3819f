"""Which broker a command is about, and calls to it that open and close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead.model.setting_names import FILE, VARIABLE

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.broker import Store
    from fairlead.client import Client

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

    return connect(broker_url(url)[0])


def broker_url(url: str | None) -> tuple[str, str]:
    """Return the URL of a command's broker, and who says so.

    Where nobody says, apps use a server of their own in the working directory, so it is that one if
    there is one; a command starts none.
    """
    from fairlead.broker import with_namespace, with_routes, with_shards
    from fairlead.settings import Configured, configured, configured_namespace

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
    from pathlib import Path

    from fairlead.embedded.options import DEFAULT_PATH, SCHEME
    from fairlead.settings import requires_url

    folder = Path(DEFAULT_PATH).absolute()
    if (folder / "valkey").is_dir() and not requires_url():
        return f"{SCHEME}://"
    raise click.UsageError(
        f"which broker? Give --url redis://HOST, set {VARIABLE}, or run this where an app has its "
        f"own server (there is none in {str(folder)!r})"
    )


def with_store(url: str | None, read: Callable[[Store], Awaitable[T]]) -> T:
    """Return what a call of the broker returns, without warnings: these are for the doctor."""
    import asyncio

    return asyncio.run(_quietly(store_of(url), read))


def with_app(url: str | None, question: Callable[[Fairlead], Awaitable[T]]) -> T:
    """Return what a call of an app without tasks returns."""
    from fairlead.app import Fairlead

    return with_store(url, lambda store: question(Fairlead(store=store)))


def with_client(url: str | None, question: Callable[[Client], Awaitable[T]]) -> T:
    """Return what a call of a client returns."""
    from fairlead.client import Client

    async def ask(store: Store) -> T:
        client = Client(store)
        try:
            return await question(client)
        finally:
            await client.close()

    return with_store(url, ask)


async def _quietly(store: Store, read: Callable[[Store], Awaitable[T]]) -> T:
    with quiet():
        try:
            return await read(store)
        finally:
            await store.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings about the broker to ``fairlead doctor``: a command says what it was asked."""
    import logging

    log = logging.getLogger("fairlead")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
