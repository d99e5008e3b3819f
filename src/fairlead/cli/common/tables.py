"""How tables look. rich is slow to import, so only commands that print one import this module."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table

_WIDTH = 110  # where nobody looks, lines need not fit a window


def console() -> Console:
    """Writes to stdout: with color and control codes on a terminal only, NO_COLOR permitting."""
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        force_terminal=terminal,
        width=None if terminal else _WIDTH,
        highlight=False,
        soft_wrap=not terminal,
    )


def table(title: str, first: str, *others: str) -> Table:
    """An empty table: names on the left, figures on the right of their columns."""
    made = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, header_style="cyan"
    )
    made.add_column(first, no_wrap=True)
    for heading in others:
        made.add_column(heading, justify="right", no_wrap=True)
    return made
