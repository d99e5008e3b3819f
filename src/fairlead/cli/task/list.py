"""``fairlead task list``: the tasks of a broker that match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_client
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.output import moment_text, print_columns, print_json
from fairlead.cli.common.task_filter import (
    TaskQuery,
    each_once,
    filter_options,
    hint_of,
    query_of,
    state_option,
)
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.client import Client, TaskInfo

_AT_ONCE = 200  # tasks of one read, so that it never takes long
_WIDEST = 40  # characters of a name or a queue
_LONGEST_ERROR = 100


@click.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead task list", "some of all tasks"),
        ("fairlead task list --state dead --since 1h", "what failed in the last hour"),
        ("fairlead task list --queue mail --tenant acme", "what a tenant has in a queue"),
        ("fairlead task list --name 'shop.*' --error Timeout", "by name and error"),
        ("fairlead task list --state running --json", "for programs"),
    ),
)
@state_option
@filter_options
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many."
)
@url_option
@json_option
def list_(limit: int, url: str | None, as_json: bool, **said: Any) -> int:
    """List tasks that match, without their arguments and results.

    They come in an order of the broker's own. What the broker has forgotten is in `fairlead
    history`, if there is a ledger. Exit codes: 0 fine, also if nothing matches; 3 the broker
    cannot be reached.
    """
    query = query_of(said)
    tasks, more, hint = with_client(url, lambda client: read_tasks(client, query, limit))
    if as_json:
        print_json({"tasks": [task_fields(each) for each in tasks], "more": more})
        return OK
    print_tasks(tasks, more, hint, limit)
    return OK


async def read_tasks(
    client: Client, query: TaskQuery, limit: int
) -> tuple[list[TaskInfo], bool, str]:
    """Return the tasks that match, whether there may be more, and a hint if there are none."""
    from fairlead.client.task_info import info_of
    from fairlead.client.task_pages import found_tasks

    found: list[TaskInfo] = []
    selection, matches = query.selection, each_once(query.matches)
    while len(found) < limit:
        some = min(limit - len(found), _AT_ONCE)
        page = await found_tasks(client, selection, matches, limit=some, calls=10)
        found += map(info_of, page.records)
        selection["cursor"] = page.cursor
        if page.cursor is None:
            break
    hint = "" if found else await hint_of(client, query)
    return found, selection.get("cursor") is not None, hint


def print_tasks(tasks: list[TaskInfo], more: bool, hint: str, limit: int) -> None:
    """Print tasks for people, one on each line."""
    rows = [("ENQUEUED", "STATE", "TASK", "QUEUE", "TENANT", "ATTEMPTS", "ID", "WHY")]
    for each in tasks:
        why = f"{each.error.type}: {each.error.message}" if each.error else each.reason
        rows.append(
            (
                moment_text(each.enqueued_at),
                each.state,
                one_line(each.task or "?", _WIDEST),
                one_line(each.queue, _WIDEST),
                one_line(each.tenant, _WIDEST),
                str(each.attempts),
                each.id,
                one_line(why, _LONGEST_ERROR),
            )
        )
    if tasks:
        print_columns(rows)
    else:
        talk(hint)
    if more:
        talk(f"there are more than {limit:,}: give --limit or narrower conditions")


def task_fields(info: TaskInfo) -> dict[str, Any]:
    """A task for programs; the traceback of its error is for ``task show``."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(info)
    if info.error is not None:
        found["error"] = {"type": info.error.type, "message": info.error.message}
    return found
