"""``fairlead manager``: a process that sends what the ledger has, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import click

from fairlead.app import Fairlead
from fairlead.app.manager import manager_of
from fairlead.cli.codes import FAILURE, OK
from fairlead.cli.commands import Command, Group, Number, talk
from fairlead.cli.loading import load_app
from fairlead.cli.target import named, url_option
from fairlead.ledger.ledger import Ledger
from fairlead.model.ledger_errors import LedgerUnreachable
from fairlead.runtime.loops import new_runner
from fairlead.telemetry.log import configure

__all__ = ("manager",)

_RUN = "run"


class _Runs(Group):
    """A group whose commands may be left out: then the first argument is that of ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, once it is said which command it is."""
        asks = ("--help", "-h")
        if not args or (args[0] not in self.commands and args[0] not in asks):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


_ledger = click.option(
    "--ledger", "ledger_url", metavar="URL",
    help="The ledger; without it, as the app, FAIRLEAD_LEDGER or fairlead.toml says.",
)  # fmt: skip


@click.group(
    cls=_Runs,
    section="Run it",
    examples=(
        ("fairlead manager shop.tasks:app", "send what transactions have enqueued"),
        ("fairlead manager status", "who leads, and what it has done"),
    ),
)
def manager() -> None:
    """The queue manager: moves tasks from the ledger to the broker, and records what becomes of them.

    `fairlead manager [APP]` is short for `fairlead manager run [APP]`.
    """


@manager.command(
    name=_RUN,
    cls=Command,
    examples=(
        ("fairlead manager shop.tasks:app", "broker and ledger as the app says"),
        (
            "fairlead manager --url redis://localhost --ledger postgresql://localhost/shop",
            "without an app",
        ),
        ("fairlead manager shop.tasks:app --keep 604800", "ended tasks are kept for a week"),
    ),
)
@click.argument("app", metavar="[APP]", required=False)
@url_option
@_ledger
@click.option(
    "--keep", type=Number(60, 10 * 365 * 86_400), default=30 * 86_400.0, show_default=True,
    metavar="SECONDS", help="How long rows are kept whose task has ended.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["auto", "json", "console"]), default="auto",
    show_default=True, help="auto: console on a terminal, otherwise json.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
    show_default=True, help="The least that is logged.",
)  # fmt: skip
def run(
    app: str | None,
    url: str | None,
    ledger_url: str | None,
    keep: float,
    log_format: str,
    log_level: str,
) -> int:
    """Run a manager until TERM or INT. Run two or more: one leads, the others stand by.

    If the one that leads dies, another takes over within 12 seconds; if it is stopped, at once. A
    broker or ledger that is away is waited for. Exit codes: 0 stopped, 1 the ledger cannot be used
    as it is, 2 wrong usage.
    """
    target = _target(app, url, ledger_url)
    configure(log_format, log_level)
    with new_runner() as runner:
        runner.run(_serve(target, keep))
    return OK


@manager.command(
    cls=Command,
    examples=(
        ("fairlead manager status", "of the ledger that FAIRLEAD_LEDGER names"),
        ("fairlead manager status --ledger postgresql://localhost/shop --json", "for programs"),
    ),
)
@click.argument("app", metavar="[APP]", required=False)
@_ledger
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(app: str | None, ledger_url: str | None, as_json: bool) -> int:
    """Show who leads, how much waits to be sent, and what the roles have done.

    Exit codes: 0 a manager leads, 1 none was heard of in the last 15 seconds, 3 the ledger cannot
    be reached.
    """
    found = asyncio.run(_look(_ledger_of(app, ledger_url)))
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found)
    return OK if found["leads"] else FAILURE
