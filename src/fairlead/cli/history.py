"""``fairlead history``: what became of tasks, of those too that the broker has forgotten."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, cast

import click
import msgspec

from fairlead.app import Fairlead
from fairlead.broker import connect
from fairlead.cli.codes import OK
from fairlead.cli.commands import Command, talk
from fairlead.cli.db import ledger_option
from fairlead.cli.target import named, url_option
from fairlead.client.history import HISTORY_STATES, HistoryPage, HistorySelection, HistoryTask
from fairlead.model.durations import in_seconds
from fairlead.model.shown import one_line
from fairlead.settings import configured, configured_ledger

__all__ = ("asked_history", "history", "moment_text")

T = TypeVar("T")

_WIDEST = 40  # characters of a name, an id or a queue
_LONGEST_ERROR = 100


@click.command(
    cls=Command,
    section="Look after it",
    examples=(
        ("fairlead history --state dead --since 1d", "what died since yesterday"),
        ("fairlead history --name shop.mail --error TimeoutError", "by name and error"),
        ("fairlead history --tenant acme --json", "for programs"),
    ),
)
@click.option("--state", type=click.Choice(HISTORY_STATES), help="Only tasks in this state.")
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
            selection[name] = _moment(name, text)
    page = asked_history(url, ledger, partial(_pages, selection=selection, limit=limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(page)))
        return OK
    _list(page.tasks)
    if page.source == "broker":
        talk("this is what the broker still keeps; there is no ledger")
    if page.cursor is not None:
        talk(f"there are more than {limit}: give --limit or narrower conditions")
    return OK


def asked_history(
    url: str | None, ledger: str | None, question: Callable[[Fairlead], Awaitable[T]]
) -> T:
    """What an app with this broker and this ledger answers.

    A broker need not be named if there is a ledger.
    """
    kept = ledger or configured_ledger()
    # A broker in memory stands for one that was not named: it knows no task.
    is_named = url or configured().url or not kept
    return asyncio.run(_asked(named(url)[0] if is_named else "memory://", kept, question))


async def _asked(url: str, ledger: str | None, question: Callable[[Fairlead], Awaitable[T]]) -> T:
    app = Fairlead(store=connect(url), ledger=ledger)
    try:
        return await question(app)
    finally:
        await app.aclose()


async def _pages(app: Fairlead, selection: dict[str, Any], limit: int) -> HistoryPage:
    """As many pages as it takes: those of the broker may be empty."""
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
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, [*widths, 0], strict=True)]
        click.echo("  ".join(cells).rstrip())


def moment_text(seconds: float | None) -> str:
    """A moment for people, in UTC; a dash where there is none."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _moment(option: str, text: str) -> float:
    """A moment, or how long ago it was, as unix seconds."""
    ago = in_seconds(text)
    if ago is not None:
        return time.time() - ago
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--{option} {text!r} is no moment: give 2026-11-17T08:00:00Z, or 2h"
        ) from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
