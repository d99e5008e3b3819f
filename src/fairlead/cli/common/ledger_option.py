"""Which ledger a command asks, beside the broker or instead of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead.cli.common.broker_option import broker_url, quiet
from fairlead.model.setting_names import FILE, LEDGER

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.ledger.ledger import Ledger

T = TypeVar("T")

#: The option that every command has which talks to a ledger.
ledger_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--ledger", metavar="URL", help=f"The ledger; without it, {LEDGER} or {FILE} says which."
)


def with_ledger(url: str | None, question: Callable[[Ledger], Awaitable[T]]) -> T:
    """Return what the ledger answers; it is the command's, the environment's or the file's."""
    import asyncio

    from fairlead.settings import configured_ledger

    found = url or configured_ledger()
    if not found:
        raise click.UsageError(
            f"which ledger? Give --ledger postgresql://HOST/DATABASE, or set {LEDGER}"
        )
    return asyncio.run(_ask(found, question))


async def _ask(url: str, question: Callable[[Ledger], Awaitable[T]]) -> T:
    from fairlead.ledger.ledger import Ledger

    ledger = Ledger(url)
    try:
        return await question(ledger)
    finally:
        await ledger.close()


def with_history(
    url: str | None, ledger: str | None, question: Callable[[Fairlead], Awaitable[T]]
) -> T:
    """What an app with this broker and this ledger answers.

    A broker need not be named if there is a ledger.
    """
    import asyncio

    from fairlead.settings import configured, configured_ledger

    kept = ledger or configured_ledger()
    # A broker in memory stands for one that was not named: it knows no task.
    is_named = url or configured().url or not kept
    with quiet():
        return asyncio.run(_asked(broker_url(url)[0] if is_named else "memory://", kept, question))


async def _asked(url: str, ledger: str | None, question: Callable[[Fairlead], Awaitable[T]]) -> T:
    from fairlead.app import Fairlead
    from fairlead.broker import connect

    app = Fairlead(store=connect(url), ledger=ledger)
    try:
        return await question(app)
    finally:
        await app.aclose()
