"""``fairlead history``: what became of tasks, of those too that the broker has forgotten."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from fairlead.cli.common.broker_option import url_option
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import OK
from fairlead.cli.common.ledger_option import ledger_option, with_history
from fairlead.cli.common.output import moment_text, print_columns, print_json, read_moment
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client.history import HistoryPage, HistoryTask

_WIDEST = 40  # characters of a name, an id or a queue
_LONGEST_ERROR = 100


@click.command(
    cls=Command,
    examples=(
        ("fairlead history --state dead --since 1d", "what died since yesterday"),
        ("fairlead history --name shop.mail --error TimeoutError", "by name and error"),
        ("fairlead history --tenant acme --json", "for programs"),
    ),
)
@click.option("--state", help="Only tasks in this state: dead, queued, pending, ...")
@click.option("--queue", help="Only tasks of this queue.")
@click.option("--tenant", help="Only tasks of this tenant.")
@click.option("--name", help="Only tasks of this name.")
@click.option("--error", help="Words in the type or the text of the last error.")
@click.option("--since", help="Enqueued since then: 2026-11-17T08:00:00Z, or 2h for two hours ago.")
@click.option("--until", help="Enqueued before then.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many."
)
@url_option
@ledger_option
@json_option
def history(
    url: str | None,
    ledger: str | None,
    limit: int,
    as_json: bool,
    since: str | None,
    until: str | None,
    **filters: str | None,
) -> int:
    """List what became of tasks, the newest first.

    With a ledger, of all that it keeps. Without one the broker answers with what it has not
    forgotten yet, in an order of its own, and it is said so. Exit codes: 0 fine, 3 the broker or
    the ledger cannot be reached.
    """
    selection: dict[str, Any] = {key: value for key, value in filters.items() if value is not None}
    for name, text in (("since", since), ("until", until)):
        if text is not None:
            selection[name] = read_moment(name, text)
    page = with_history(url, ledger, partial(_pages, selection=selection, limit=limit))
    if as_json:
        print_json(page)
        return OK
    _list(page.tasks)
    if page.source == "broker":
        talk("this is what the broker still keeps; there is no ledger")
    if page.cursor is not None:
        talk(f"there are more than {limit}: give --limit or narrower conditions")
    return OK


async def _pages(app: Fairlead, selection: dict[str, Any], limit: int) -> HistoryPage:
    """As many pages as it takes: those of the broker may be empty."""
    from fairlead.client.history import HistoryPage, HistorySelection

    tasks: list[HistoryTask] = []
    cursor: str | None = None
    while True:
        some = {**selection, "limit": min(limit - len(tasks), 500), "cursor": cursor}
        page = await app.ahistory(**cast(HistorySelection, some))
        tasks += page.tasks
        cursor = page.cursor
        if cursor is None or len(tasks) >= limit:
            return HistoryPage(tasks=tasks, source=page.source, cursor=cursor)


def _list(tasks: list[HistoryTask]) -> None:
    rows: list[tuple[str, ...]] = [
        ("ENQUEUED", "STATE", "TASK", "QUEUE", "TENANT", "ATTEMPTS", "ID", "WHY")
    ]
    for task in tasks:
        why = f"{task.error_type}: {task.error}" if task.error_type else task.reason
        texts = (task.task or "?", task.queue, task.tenant, str(task.attempts), task.id)
        rows.append(
            (
                moment_text(task.created_at),
                task.state,
                *(one_line(text, _WIDEST) for text in texts),
                one_line(why, _LONGEST_ERROR),
            )
        )
    print_columns(rows)
