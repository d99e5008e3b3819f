"""``fairlead up``: everything at once, for the first look and for the day's work.

Start with ``session``: ``servers`` are the embedded ones, ``stack`` the processes beside them.
"""

from __future__ import annotations

import sys
import time

import click

from fairlead.cli.common.broker_option import url_option
from fairlead.cli.common.commands import Command


@click.command(
    cls=Command,
    examples=(
        ("fairlead up --demo", "everything, with tenants that make work"),
        ("fairlead up shop.tasks:app", "everything for your own app"),
        ("fairlead up shop.tasks:app --reload", "and new code as soon as it is saved"),
        ("fairlead up --demo --ledger", "with PostgreSQL as the record"),
        ("fairlead up --url redis://localhost", "a page for a server that is there already"),
    ),
)
@click.argument("app", metavar="[APP]", required=False)
@click.option("--demo", is_flag=True, help="Add tenants that produce all kinds of work.")
@url_option
@click.option(
    "--ledger", is_flag=True,
    help="Start a PostgreSQL as the record as well, and a manager, unless a ledger is named.",
)  # fmt: skip
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), default=None,
    help="Tasks at a time.  [default: that of fairlead worker, 10]",
)  # fmt: skip
@click.option("--reload", is_flag=True, help="Replace the worker when a file of APP changes.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of the page.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=None,
    help="The port of the page.  [default: 8787, or one that is free]",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
    default="info", show_default=True, help="The least that is logged.",
)  # fmt: skip
def up(
    app: str | None,
    demo: bool,
    url: str | None,
    ledger: bool,
    concurrency: int | None,
    reload: bool,
    host: str,
    port: int | None,
    log_level: str,
) -> int:
    """Run everything: a broker, a worker of APP, the API and its page.

    Without a broker that is named, it starts a Valkey in ./.fairlead and finds its data there the
    next time. Prints a link that signs in once. Lines of the processes go to stderr, each behind
    the name of its process; one that dies is started again. Ctrl-C ends everything within three
    seconds, a second one at once. Exit codes: 0 ended, 1 or 2 something did not start, 3 the broker
    cannot be reached.
    """
    from fairlead.cli.up.output import Output
    from fairlead.cli.up.session import Session
    from fairlead.cli.up.target import find_target
    from fairlead.runtime.event_loop import new_runner

    began = time.monotonic()
    if reload and app is None:
        raise click.UsageError("--reload looks at the files of APP; name one")
    target = find_target(app, url)
    session = Session(target, Output(sys.stderr), began, demo=demo, ledger=ledger, reload=reload)
    with new_runner() as runner:
        return runner.run(session.run(host, port, concurrency, log_level))
