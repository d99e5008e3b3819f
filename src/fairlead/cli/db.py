"""``fairlead db``: the schema of the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
import msgspec

from fairlead.cli.codes import FAILURE, OK
from fairlead.cli.commands import Command, Group, talk
from fairlead.ledger.ledger import Ledger
from fairlead.settings import FILE, LEDGER, configured_ledger

__all__ = ("asked_ledger", "db", "ledger_option")

T = TypeVar("T")

#: The option that every command has which talks to a ledger.
ledger_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--ledger", metavar="URL", help=f"The ledger; without it, {LEDGER} or {FILE} says which."
)


def asked_ledger(url: str | None, question: Callable[[Ledger], Awaitable[T]]) -> T:
    """Return what the ledger answers; it is the command's, the environment's or the file's."""
    found = url or configured_ledger()
    if not found:
        raise click.UsageError(
            f"which ledger? Give --ledger postgresql://HOST/DATABASE, or set {LEDGER}"
        )
    return asyncio.run(_ask(found, question))


async def _ask(url: str, question: Callable[[Ledger], Awaitable[T]]) -> T:
    ledger = Ledger(url)
    try:
        return await question(ledger)
    finally:
        await ledger.close()


@click.group(
    cls=Group,
    section="Look after it",
    examples=(
        ("fairlead db migrate", "bring the schema of the ledger up to date"),
        ("fairlead db status", "which migrations it has"),
    ),
)
def db() -> None:
    """The ledger in PostgreSQL: bring its schema up to date, look at it."""


@db.command(
    cls=Command,
    examples=(
        ("fairlead db migrate", "the ledger of FAIRLEAD_LEDGER or fairlead.toml"),
        ("fairlead db migrate --ledger postgresql://db/shop", "another one"),
    ),
)
@ledger_option
def migrate(ledger: str | None) -> int:
    """Bring the schema of the ledger up to date.

    May run while processes of the release before use the ledger, and in several places at once.
    """
    done = asked_ledger(ledger, lambda each: each.migrate())
    for name in done:
        click.echo(f"applied {name}")
    if not done:
        talk("nothing to do: the schema is up to date")
    return OK


@db.command(
    cls=Command,
    examples=(
        ("fairlead db status", "which migrations the ledger has"),
        ("fairlead db status --json", "for programs"),
    ),
)
@ledger_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(ledger: str | None, as_json: bool) -> int:
    """Show which migrations the ledger has.

    Exit code 1 if some are pending. Unknown ones are a later release's, and do no harm.
    """
    found = asked_ledger(ledger, lambda each: each.schema_status())
    if as_json:
        click.echo(json.dumps({**msgspec.structs.asdict(found), "usable": found.is_usable}))
    else:
        for kind in ("applied", "pending", "unknown"):
            for name in getattr(found, kind):
                click.echo(f"{name}  {kind}")
        if found.pending:
            talk("run fairlead db migrate")
    return OK if found.is_usable else FAILURE
