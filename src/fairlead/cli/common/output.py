"""How commands print what they found: columns for people, JSON for programs, moments in UTC."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from fairlead.model.durations import in_seconds

NOTHING = "-"


def print_json(value: object) -> None:
    """Print one JSON object on one line."""
    import json  # here and below: no help needs them

    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(value, enc_hook=str, str_keys=True)))


def plain(record: object) -> dict[str, Any]:
    """Return a record as a dictionary of what JSON has."""
    import json

    import msgspec

    found: dict[str, Any] = json.loads(msgspec.json.encode(record))
    return found


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows, the first of which has the headings; the last column may be of any width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, [*widths, 0], strict=True)]
        click.echo("  ".join(cells).rstrip())


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a name and a value on each line; what is None or empty is left out."""
    shown = {name: str(value) for name, value in fields.items() if value not in (None, "")}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name:{width}}  {value}")


def moment_text(seconds: float | None) -> str:
    """A moment for people, in UTC; a dash where there is none."""
    if seconds is None:
        return NOTHING
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def duration_text(seconds: float | None) -> str:
    """A length of time for people, in its largest unit; a dash where there is none."""
    if seconds is None:
        return NOTHING
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.2g}s"


def tasks(count: int) -> str:
    """So many tasks, in words."""
    return "1 task" if count == 1 else f"{count:,} tasks"


def tasks_were(count: int, done: str) -> str:
    """What became of so many tasks: the beginning of a sentence."""
    return f"{tasks(count)} {'was' if count == 1 else 'were'} {done}"


def read_moment(option: str, text: str) -> float:
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
