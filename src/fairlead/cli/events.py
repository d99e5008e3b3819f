"""``fairlead events``: what happens, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import url_option, with_app
from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.output import moment_text, print_json
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client import EventInfo

_WIDEST = 60  # characters of a name or a reason


@click.group(
    cls=Group,
    examples=(
        ("fairlead events tail", "all that happens from now on"),
        ("fairlead events tail dead failed", "only what goes wrong"),
    ),
)
def events() -> None:
    """Events: what happens, as it happens."""


@events.command(
    cls=Command,
    examples=(
        ("fairlead events tail", "all that happens from now on, until Ctrl-C"),
        ("fairlead events tail dead failed --queue mail", "what goes wrong in a queue"),
        ("fairlead events tail --after oldest --count 100", "what the broker still keeps"),
        ("fairlead events tail 'worker.*' --json", "a line of JSON for each"),
    ),
)
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@click.option("--queue", help="Of this queue.")
@click.option("--tenant", help="Of this tenant.")
@click.option("--name", help="Of tasks of this name.")
@click.option("--task", metavar="ID", help="Of this task.")
@click.option("--after", metavar="EVENT", help="Behind this event; oldest: all that are kept.")
@click.option("--count", type=click.IntRange(1), help="End after so many.")
@url_option
@json_option
def tail(
    types: tuple[str, ...],
    queue: str | None,
    tenant: str | None,
    name: str | None,
    task: str | None,
    after: str | None,
    count: int | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Show events as they come: TYPE is such as dead, task.completed or worker.*.

    With --json each line is an object. While the broker is away it waits. Exit codes: 0 after
    --count events, 2 wrong usage, 130 interrupted.
    """

    async def follow(app: Fairlead) -> int:
        seen = 0
        stream = app.events(
            types or None, queue=queue, tenant=tenant, task=task, name=name, after=after
        )
        async with stream:
            async for event in stream:
                _tell(event, as_json)
                seen += 1
                if seen == count:
                    break
        return OK

    return with_app(url, follow)


def _tell(event: EventInfo, as_json: bool) -> None:
    if as_json:
        print_json(event)
        return
    if event.type == "stream.gap":
        talk("some events are missing here: they came faster than they could be kept")
        return
    took = "" if event.duration_ms is None else f"{event.duration_ms:,.0f} ms"
    about = event.task_id or event.flow or event.worker
    words = (event.task, about, event.queue, event.tenant, took, event.reason)
    told = "  ".join(one_line(word, _WIDEST) for word in words if word)
    click.echo(f"{moment_text(event.at)}  {event.type:16}  {told}".rstrip())
