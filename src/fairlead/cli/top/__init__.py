"""``fairlead top``: how a broker stands and how fast it goes, live in the terminal.

``rates`` compares two looks at a broker, ``screen`` shows what fits the window.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import broker_url, url_option, with_client
from fairlead.cli.common.commands import Command, Number, json_option
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.output import print_json

if TYPE_CHECKING:
    from fairlead.client import Client


@click.command(
    cls=Command,
    examples=(
        ("fairlead top", "until q is pressed, or Ctrl-C"),
        ("fairlead top --interval 5 --queue mail", "one queue, every five seconds"),
        ("fairlead top --json", "one look of an interval's length, for programs"),
    ),
)
@click.option("--queue", help="Only this queue.")
@click.option(
    "--interval", type=Number(0.2, 60), default=2.0, show_default=True,
    help="Seconds between two looks; rates are those of the last interval.",
)  # fmt: skip
@url_option
@json_option
def top(queue: str | None, interval: float, url: str | None, as_json: bool) -> int:
    """Watch rates, waits, tenants with their shares, workers and dead letters, live.

    WAIT is what 95 % of the attempts of the last interval had waited at most, up to twice the true
    figure. Without a terminal it looks twice and prints what it saw. Exit codes: 0 fine, 2 there is
    no such queue, 3 the broker cannot be reached.
    """
    live = sys.stdout.isatty() and not as_json

    async def watch(client: Client) -> int:
        import asyncio

        from fairlead.cli.top.rates import compared, read

        before = await read(client, queue)
        if live:
            from fairlead.cli.top.screen import run_screen

            await run_screen(client, before, queue, interval, where=broker_url(url)[0])
            return OK
        await asyncio.sleep(interval)
        figures = compared(before, await read(client, queue))
        if as_json:
            print_json(figures)
        else:
            from fairlead.cli.top.screen import print_once

            print_once(figures)
        return OK

    return with_client(url, watch)
