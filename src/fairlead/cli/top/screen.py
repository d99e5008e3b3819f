"""``fairlead top`` as people see it: what fits the window, the busiest first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlead.api.views.tenants import TenantView
from fairlead.cli.common.output import NOTHING, duration_text, moment_text
from fairlead.cli.common.tables import console, table
from fairlead.cli.top.rates import Figures, Look, QueueFigures, compared, read
from fairlead.client import Client
from fairlead.model.errors import BrokerError
from fairlead.model.safe_repr import one_line

_WIDE = 120  # columns from which on everything is shown
_FRAME = 5  # lines that a table needs beside its rows
_LEAST = 2  # rows of each table, however low the window is
_NAME, _SHORT_NAME = 30, 12  # characters of a name, in a wide window and in a narrow one
_USUAL = 80  # columns from which on the last column of a table is shown: in what the others leave
_KEYS = "q quits"


class _Column(NamedTuple):
    """A figure of a queue, and whether it is shown in a narrow window."""

    heading: str
    text: Callable[[QueueFigures], str]
    narrow: bool = True


_QUEUE_COLUMNS = (
    _Column("waiting", lambda each: f"{each.waiting:,}"),
    _Column("running", lambda each: f"{each.running:,}"),
    _Column("dead", lambda each: f"{each.dead:,}"),
    _Column("in/s", lambda each: _rate(each.enqueued)),
    _Column("started/s", lambda each: _rate(each.started), narrow=False),
    _Column("done/s", lambda each: _rate(each.completed)),
    _Column("failed/s", lambda each: _rate(each.failed)),
    _Column("wait", lambda each: _seconds(each.wait)),
    _Column("oldest", lambda each: duration_text(each.oldest), narrow=False),
    _Column("workers", lambda each: f"{each.workers:,}", narrow=False),
    _Column("state", lambda each: "paused" if each.paused else "open", narrow=False),
)


def print_once(figures: Figures) -> None:
    """Print all that there is, for a file or a pipe."""
    out = console()
    out.print(screen(figures, width=_WIDE, height=10_000, where=""))


async def run_screen(
    client: Client, before: Look, queue: str | None, interval: float, *, where: str
) -> None:
    """Draw it over and over until q is pressed; Ctrl-C ends it as well."""
    out, trouble = console(), ""
    figures = compared(before, before)
    with _keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        while not pressed.is_set():
            live.update(_drawn(out, figures, where, trouble), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await pressed.wait()
            try:
                after = await read(client, queue)
                figures, before, trouble = compared(before, after), after, ""
            except BrokerError as error:  # it goes on when the broker is back
                trouble = one_line(str(error), 200)


def _drawn(out: Console, figures: Figures, where: str, trouble: str) -> Group:
    return screen(figures, width=out.width, height=out.height, where=where, trouble=trouble)


def screen(figures: Figures, *, width: int, height: int, where: str, trouble: str = "") -> Group:
    """What fits a window of this size."""
    head = [_summary(figures, where, width)]
    if trouble:
        head.append(Text(f"the broker does not answer: {trouble}", style="red"))
    room = max(height - len(head) - 3 * _FRAME, 3 * _LEAST)
    rows = _shared(room, [len(figures.queues), len(figures.tenants), len(figures.workers)])
    return Group(
        *head,
        _heading(_queued(figures), rows[0], len(figures.queues)).append(
            f"  {_KEYS}" if where and width < _WIDE else "", style="dim not italic"
        ),
        _queues(figures, rows[0], width),
        _heading("Tenants, this hour and the one before", rows[1], len(figures.tenants)),
        _tenants(figures, rows[1], width),
        _heading(_working(figures), rows[2], len(figures.workers)),
        _workers(figures, rows[2], width),
    )


def _shared(room: int, wanted: list[int]) -> list[int]:
    """How many rows each table gets: all that it wants, or an equal part of what is left."""
    given = [0] * len(wanted)
    for place in sorted(range(len(wanted)), key=wanted.__getitem__):
        left = sum(1 for each in given if each == 0)
        given[place] = max(min(wanted[place], room // max(left, 1)), 1)
        room -= given[place]
    return given


def _summary(figures: Figures, where: str, width: int) -> Text:
    queues = figures.queues
    total = {
        name: sum(getattr(each, name) for each in queues)
        for name in ("waiting", "running", "dead", "enqueued", "completed", "failed")
    }
    place = where.rpartition("@")[2].partition("?")[0]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{moment_text(figures.now)[11:19]}  ", style="bold")
    text.append(f"{total['waiting']:,} waiting  {total['running']:,} running  ")
    text.append(f"{total['dead']:,} dead", style="red" if total["dead"] else "")
    text.append(
        f"  {_rate(total['enqueued'])} in/s  {_rate(total['completed'])} done/s  "
        f"{_rate(total['failed'])} failed/s"
    )
    if place and width >= _WIDE:
        text.append(f"  {place}  every {figures.interval:.1f} s  {_KEYS}", style="dim")
    return text


def _queues(figures: Figures, rows: int, width: int) -> Table:
    columns = [each for each in _QUEUE_COLUMNS if each.narrow or width >= _WIDE]
    made = _table("queue", *(each.heading for each in columns))
    for each in figures.queues[:rows]:
        style = "yellow" if each.paused else ""
        made.add_row(_name(each.name, width), *(c.text(each) for c in columns), style=style)
    return made


def _tenants(figures: Figures, rows: int, width: int) -> Table:
    headings = ("weight", "waiting", "running", "share", "fair", "longest", "held by")
    shown = len(headings) if width >= _USUAL else 5
    made = _table("tenant", *headings[:shown])
    for each in figures.tenants[:rows]:
        cells = (
            "differs" if each.weight is None else f"{each.weight:g}",
            f"{each.depth:,}",
            f"{each.in_flight:,}",
            _percent(each.share),
            _percent(each.fair_share),
            duration_text(each.longest_wait),
            one_line(_holders(each), max(width - _name_width(width) - 56, 0)),
        )
        made.add_row(_name(each.tenant, width), *cells[:shown])
    return made


def _queued(figures: Figures) -> str:
    paused = sum(each.paused for each in figures.queues)
    return f"Queues, {paused:,} paused" if paused else "Queues"


def _holders(tenant: TenantView) -> str:
    return ", ".join(sorted({held.limiter or held.by for held in tenant.throttled}))


def _working(figures: Figures) -> str:
    states = Counter(str(each.details.get("state", "")) for each in figures.workers)
    running = sum(each.running for each in figures.workers)
    slots = sum(each.concurrency for each in figures.workers)
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"Workers: {told or 'none'}; {running:,} of {slots:,} slots in use"


def _workers(figures: Figures, rows: int, width: int) -> Table:
    headings = ("pid", "state", "running", "queues")
    shown = slice(None) if width >= _USUAL else slice(1, 3)
    made = _table("worker", "host", *headings[shown])
    for each in figures.workers[:rows]:
        cells = (
            str(each.pid),
            one_line(str(each.details.get("state", "")), _NAME),
            f"{each.running}/{each.concurrency}",
            one_line(",".join(each.queues), max(width - _name_width(width) - 48, 0)),
        )
        made.add_row(each.incarnation[-8:], _name(each.host, width), *cells[shown])
    return made


def _heading(name: str, rows: int, count: int) -> Text:
    shown = name if count <= rows else f"{name} ({rows} of {count:,})"
    return Text(shown, style="italic", no_wrap=True, overflow="ellipsis")


def _table(first: str, *others: str) -> Table:
    made = table("", first, *others)
    made.collapse_padding = True  # a window of 80 columns is narrow
    return made


def _name(name: str, width: int) -> str:
    return one_line(name, _name_width(width))


def _name_width(width: int) -> int:
    return _NAME if width >= _WIDE else _SHORT_NAME


def _rate(value: float) -> str:
    return "0" if not value else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value * 1000:.0f}ms" if value < 1 else duration_text(value)


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


@contextlib.contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """An event that is set when q is pressed, where there is a keyboard."""
    pressed = asyncio.Event()
    if not sys.stdin.isatty():
        yield pressed
        return
    import termios
    import tty

    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def look() -> None:
        if os.read(keyboard, 64).lower().startswith(b"q"):
            pressed.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, look)
    try:
        yield pressed
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
