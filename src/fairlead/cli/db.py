"""``fairlead db``: the schema of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.ledger_option import ledger_option, with_ledger
from fairlead.cli.common.output import plain, print_json

if TYPE_CHECKING:
    pass


@click.group(
    cls=Group,
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
    done = with_ledger(ledger, lambda each: each.migrate())
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
@json_option
def status(ledger: str | None, as_json: bool) -> int:
    """Show which migrations the ledger has.

    Exit code 1 if some are pending. Unknown ones are a later release's, and do no harm.
    """
    found = with_ledger(ledger, lambda each: each.schema_status())
    if as_json:
        print_json({**plain(found), "usable": found.is_usable})
    else:
        for kind in ("applied", "pending", "unknown"):
            for name in getattr(found, kind):
                click.echo(f"{name}  {kind}")
        if found.pending:
            talk("run fairlead db migrate")
    return OK if found.is_usable else FAILURE
