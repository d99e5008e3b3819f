"""``fairlead top``: how a broker stands and how fast it goes, live in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fairlead.cli.codes import OK
from fairlead.cli.commands import Command, Number, json_option
from fairlead.cli.listing import print_json
from fairlead.cli.target import asked_client, named, url_option

if TYPE_CHECKING:
    from fairlead.client import Client

__all__ = ("top",)


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

        from fairlead.cli.top_figures import compared, read

        before = await read(client, queue)
        if live:
            from fairlead.cli.top_view import run_screen

            await run_screen(client, before, queue, interval, where=named(url)[0])
            return OK
        await asyncio.sleep(interval)
        figures = compared(before, await read(client, queue))
        if as_json:
            print_json(figures)
        else:
            from fairlead.cli.top_view import print_once

            print_once(figures)
        return OK

    return asked_client(url, watch)
