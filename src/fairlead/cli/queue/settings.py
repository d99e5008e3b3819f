"""``fairlead queue pause``, ``resume`` and ``limit``: what is set for queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.commands import Command, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.known_names import check_settable, every_setting, new_option
from fairlead.cli.common.limit_options import limit_options, said_limits, setting

if TYPE_CHECKING:
    from fairlead.client import Client

_NAMES = click.argument("names", metavar="NAME...", nargs=-1, required=True)


@click.command(
    cls=Command,
    examples=(
        ("fairlead queue pause mail", "let nothing of it start; what runs goes on"),
        ("fairlead queue pause mail reports", "several"),
    ),
)
@_NAMES
@new_option
@url_option
def pause(names: tuple[str, ...], new: bool, url: str | None) -> int:
    """Let no task of a queue start until it is resumed. Tasks are accepted, and what runs goes on.

    Exit codes: 0 paused, 2 a name is wrong, 3 the broker cannot be reached.
    """
    return _set(url, names, {"paused": True}, "paused", new=new)


@click.command(
    cls=Command, examples=(("fairlead queue resume mail", "let tasks of it start again"),)
)
@_NAMES
@new_option
@url_option
def resume(names: tuple[str, ...], new: bool, url: str | None) -> int:
    """Let tasks of a queue start again.

    Exit codes: 0 resumed, 2 a name is wrong, 3 the broker cannot be reached.
    """
    return _set(url, names, {"paused": False}, "resumed", new=new)


@click.command(
    cls=Command,
    examples=(
        ("fairlead queue limit mail --rate 300/m", "five a second, over all workers"),
        ("fairlead queue limit mail --concurrency 20 --max-waiting 100000", "two limits"),
        ("fairlead queue limit mail --rate none", "lift a limit"),
        ("fairlead queue limit mail --keep-dead 30d", "keep dead letters for a month"),
        ("fairlead queue limit mail --strict-priorities", "nothing low while something high waits"),
    ),
)
@click.argument("name")
@limit_options
@setting("--max-waiting", "How many tasks may wait; none lifts it.")
@setting("--max-tenant-waiting", "How many tasks of one tenant may wait; none lifts it.")
@setting("--warn-depth", "How many tasks may wait until an event warns; none lifts it.")
@click.option(
    "--strict-priorities/--no-strict-priorities",
    default=None,
    help="Whether the highest priority that waits always goes first; lower ones get no turns.",
)
@click.option("--keep-completed", help="How long completed tasks are kept: 1h, 7d.")
@setting("--keep-completed-count", "How many completed tasks are kept.")
@click.option("--keep-dead", help="How long dead tasks are kept: 7d.")
@new_option
@url_option
def limit(name: str, new: bool, url: str | None, **said: Any) -> int:
    """Set limits, priorities and retention of a queue; what is not named stays as it is.

    They hold for all workers together, at once. Workers write what a program declares again when
    its declaration changes. Exit codes: 0 set, 2 a name or a value is wrong, 3 the broker cannot be
    reached.
    """
    return _set(url, (name,), said_limits(said), "set", new=new)


def _set(
    url: str | None, names: tuple[str, ...], said: dict[str, Any], done: str, *, new: bool
) -> int:
    from fairlead.client import queue_change

    changes = [queue_change(name, **said) for name in names]

    async def change(client: Client) -> None:
        known = {*(await client.store.snapshot(tenants=False)).queues}
        if not known.issuperset(names):
            known |= {each.queue for page in await every_setting(client) for each in page.queues}
        for name in names:
            check_settable("queue", name, known, new=new)
        await client.configure(changes)
        for name in names:
            await note(client, "queue.configure", name, **said)

    with_client(url, change)
    for name in names:
        talk(f"queue {name} is {done}")
    return OK
