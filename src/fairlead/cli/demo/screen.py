"""The demo as people see it: one table, drawn over and over, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.table import Table

from fairlead.cli.common.tables import console, table


@contextmanager
def picture() -> Iterator[Callable[[dict[str, Any]], None]]:
    """A table on the terminal that is gone afterwards; call what it gives to draw it anew."""
    with Live(console=console(), auto_refresh=False, transient=True) as live:
        yield lambda figures: live.update(_table(figures), refresh=True)


def summary(figures: dict[str, Any], sentences: Sequence[str]) -> None:
    """The last table, and what was seen."""
    out = console()
    out.print(_table(figures))
    for sentence in sentences:
        out.print(sentence)


def _table(figures: dict[str, Any]) -> Table:
    made = table(
        f"{figures['done']:,} of {figures['tasks']:,} tasks in {figures['seconds']:.1f} s, "
        f"{figures['tasks_per_second']:,.0f} a second, {figures['concurrency']} at a time",
        "tenant",
        "weight",
        "enqueued",
        "done",
        "waiting",
        "share",
        "fair",
        "wait p50 ms",
        "p99 ms",
    )
    for name, row in figures["tenants"].items():
        made.add_row(
            name,
            f"{row['weight']:g}",
            f"{row['enqueued']:,}",
            f"{row['done']:,}",
            f"{row['waiting']:,}",
            f"{row['share']:.1%}",
            f"{row['fair_share']:.1%}",
            f"{row['wait_p50_ms']:,.1f}",
            f"{row['wait_p99_ms']:,.1f}",
        )
    return made
