"""``fairlead manager``: a process that sends what the ledger has, and what it says of itself."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import broker_url, url_option
from fairlead.cli.common.commands import Command, Group, Number, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.ledger_option import ledger_option, with_ledger
from fairlead.cli.common.output import print_json
from fairlead.model.ledger_errors import LedgerUnreachable

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.ledger.ledger import Ledger

_RUN = "run"
_SILENT = 15.0  # seconds after which a leader that publishes nothing is not one
_COUNTED = 10_000  # rows that are due are counted up to here


class _Runs(Group):
    """A group whose command may be left out: then it is ``run``, and all arguments are its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, once it is said which command it is."""
        asks_for_help = args[:1] in (["--help"], ["-h"])
        return super().parse_args(ctx, args if asks_for_help else self._said(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The same, where somebody asks for the command only."""
        return super().resolve_command(ctx, self._said(args))

    def _said(self, args: list[str]) -> list[str]:
        return args if args and args[0] in self.commands else [_RUN, *args]


@click.group(
    cls=_Runs,
    examples=(
        ("fairlead manager shop.tasks:app", "send what transactions have enqueued"),
        ("fairlead manager status", "who leads, and what it has done"),
    ),
)
def manager() -> None:
    """The queue manager: sends tasks from the ledger to the broker, and records what they become.

    `fairlead manager [APP]` is short for `fairlead manager run [APP]`.
    """


@manager.command(
    name=_RUN,
    cls=Command,
    examples=(
        ("fairlead manager run shop.tasks:app", "broker and ledger as the app says"),
        (
            "fairlead manager run --url redis://localhost --ledger postgresql://localhost/shop",
            "without an app",
        ),
        ("fairlead manager run shop.tasks:app --keep 604800", "keep ended tasks for a week"),
    ),
)
@click.argument("app", metavar="[APP]", required=False)
@url_option
@ledger_option
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
    ledger: str | None,
    keep: float,
    log_format: str,
    log_level: str,
) -> int:
    """Run a manager until TERM or INT. Run two or more: one leads, the others stand by.

    If the one that leads dies, another takes over within 12 seconds; if it is stopped, at once. A
    broker or ledger that is away is waited for. Exit codes: 0 stopped, 1 the ledger cannot be used
    as it is, 2 wrong usage.
    """
    from fairlead.runtime.event_loop import new_runner
    from fairlead.runtime.garbage import collect_less
    from fairlead.telemetry.log import configure

    target = _target(app, url, ledger)
    configure(log_format, log_level)
    collect_less()
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
@ledger_option
@json_option
def status(ledger: str | None, as_json: bool) -> int:
    """Show who leads, how much waits to be sent, and what the roles have done.

    Exit codes: 0 a manager leads, 1 none was heard of in the last 15 seconds, 3 the ledger cannot
    be reached.
    """
    found = with_ledger(ledger, _look)
    if as_json:
        print_json(found)
    else:
        _show(found)
    return OK if found["leads"] else FAILURE


def _target(app: str | None, url: str | None, ledger: str | None) -> Fairlead:
    from fairlead.app import Fairlead
    from fairlead.cli.common.app_loader import load_app

    if app is None:
        target = Fairlead(broker_url(url)[0], ledger=ledger)
    elif url is not None or ledger is not None:
        raise click.UsageError("APP says which broker and ledger; leave --url and --ledger out")
    else:
        target = load_app(app)
    return target


async def _serve(app: Fairlead, keep: float) -> None:
    """Run a manager until a signal; a ledger that cannot be used as it is ends it at once."""
    import asyncio
    import signal

    from fairlead.app.services import ledger_of
    from fairlead.runtime.systemd import notifying

    loop = asyncio.get_running_loop()
    made = app.manager(keep=keep)
    task = asyncio.current_task()
    asked = 0

    def stop() -> None:
        nonlocal asked
        asked += 1
        made.stop()
        if asked > 1 and task is not None:
            task.cancel()

    try:
        with contextlib.suppress(LedgerUnreachable):  # it is waited for
            await ledger_of(app).open()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        async with notifying():
            await made.run()
    except asyncio.CancelledError:
        if asked < 2:
            raise
    finally:
        await app.aclose()


async def _look(ledger: Ledger) -> dict[str, Any]:
    leadership = await ledger.leadership()
    lag = await ledger.lag()
    roles = await ledger.status()
    current = {role: row for role, row in roles.items() if row.term == leadership.term}
    ages = [row.age for row in current.values()]
    return {
        "leads": leadership.holder if ages and min(ages) < _SILENT else None,
        "term": leadership.term,
        "since": leadership.since if leadership.term else None,
        "due": lag.due,
        "claimed": lag.claimed,
        "lag": round(lag.oldest_seconds or 0.0, 3),
        "roles": {
            role: {"age": round(row.age, 3), **row.counts} for role, row in sorted(current.items())
        },
    }


def _show(found: dict[str, Any]) -> None:
    from fairlead.cli.common.tables import console, table

    if found["leads"]:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"]))
        click.echo(f"{found['leads']} leads, since {since}, term {found['term']}")
    else:
        talk("no manager leads; start one: fairlead manager")
    due = f"{found['due']:,}" + (" or more" if found["due"] >= _COUNTED else "")
    click.echo(f"due and not sent: {due}; being sent: {found['claimed']:,}; lag {found['lag']:g} s")
    made = table("What this leader has done", "role", "what", "count")
    for role, counts in found["roles"].items():
        for name, value in counts.items():
            if isinstance(value, int) and not isinstance(value, bool):
                made.add_row(role, name.replace("_", " "), f"{value:,}")
    if found["roles"]:
        console().print(made)
