"""``fairlead stats``: what happened in the queues, how long it took, and how fair it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_store
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.output import plain, print_json
from fairlead.model.fairness_stats import jain

if TYPE_CHECKING:
    from fairlead.broker.stats import Histogram, Stats, TenantStats

_SHARES = (0.5, 0.95, 0.99)
_TENANTS = 20  # that are listed, the busiest first


@click.command(
    cls=Command,
    examples=(
        ("fairlead stats", "all queues, since they exist"),
        ("fairlead stats --queue mail --tenants", "one queue, and who did what in the last hour"),
        ("fairlead stats --tenants --json", "for programs"),
    ),
)
@click.option("--queue", help="One queue only.")
@click.option("--tenants", is_flag=True, help="Tenants of this hour and the one before, too.")
@url_option
@json_option
def stats(queue: str | None, tenants: bool, url: str | None, as_json: bool) -> None:
    """Show what was counted, and upper bounds of the times that it took.

    A percentile is the upper end of its bucket, so up to twice the true figure. Jain's index of
    the attempts that tenants got for their weights is 1 if all got the same share; it is told of
    those that have tasks queued now, as nobody else wanted more.
    """
    found = with_store(url, lambda store: store.stats(queue, tenants=tenants))
    if as_json:
        print_json(_report(found))
    elif not found.queues:
        talk("nothing was counted yet")
    else:
        _show(found)


def _times(histogram: Histogram) -> dict[str, float | None]:
    return {
        **{f"p{share * 100:.0f}": histogram.upper(share) for share in _SHARES},
        "largest": histogram.largest if histogram.count else None,
    }


def _wanting(found: Stats, queue: str) -> dict[str, TenantStats]:
    return {name: each for name, each in found.tenants[queue].items() if each.queued}


def _fairness(found: Stats, queue: str) -> float | None:
    tenants = _wanting(found, queue)
    if len(tenants) < 2:
        return None
    return jain(
        {name: each.started for name, each in tenants.items()},
        {name: each.weight for name, each in tenants.items()},
    )


def _report(found: Stats) -> dict[str, Any]:
    from fairlead.broker.stats import HISTOGRAMS

    report = plain(found)
    for name, queue in found.queues.items():
        for histogram in HISTOGRAMS:
            report["queues"][name][histogram].update(_times(getattr(queue, histogram)))
        if name in found.tenants:
            report["queues"][name]["jain"] = _fairness(found, name)
    return report


def _show(found: Stats) -> None:
    from fairlead.broker.stats import HISTOGRAMS
    from fairlead.cli.common.tables import console, table

    out = console()
    names = ("enqueued", "started", "completed", "failed", "retried", "dead", "cancelled")
    made = table("Since each queue was created", "queue", *names, "fenced", "deferred now")
    for name, queue in sorted(found.queues.items()):
        counts = (getattr(queue, each) for each in (*names, "fenced", "deferred"))
        made.add_row(name, *(f"{count:,}" for count in counts))
    out.print(made)
    made = table("How long, at most", "queue", "what", "count", "p50", "p95", "p99", "largest")
    for name, queue in sorted(found.queues.items()):
        for histogram in HISTOGRAMS:
            taken: Histogram = getattr(queue, histogram)
            if taken.count:
                times = (_seconds(each) for each in _times(taken).values())
                made.add_row(name, histogram, f"{taken.count:,}", *times)
    out.print(made)
    for name in sorted(found.tenants):
        _show_tenants(found, name)
    if found.more_tenants:
        talk("there are more tenants than are told of")
    if found.orphans:
        talk(f"{found.orphans:,} dependents were to be told of an end, but are not known")


def _show_tenants(found: Stats, queue: str) -> None:
    from fairlead.cli.common.tables import console, table

    tenants = sorted(found.tenants[queue].items(), key=lambda each: -each[1].started)
    names = ("enqueued", "started", "completed", "dead", "cancelled")
    title = f"Queue {queue}: tenants of this hour and the one before"
    made = table(title, "tenant", "weight", *names, "longest wait", "queued now")
    for name, each in tenants[:_TENANTS]:
        counts = (f"{getattr(each, field):,}" for field in names)
        waits = (_seconds(each.longest_wait), f"{each.queued:,}")
        made.add_row(name, f"{each.weight:g}", *counts, *waits)
    console().print(made)
    index = _fairness(found, queue)
    if index is not None:
        wanting = len(_wanting(found, queue))
        click.echo(f"Jain's index over {wanting:,} tenants with tasks queued now: {index:.3f}")
    if len(tenants) > _TENANTS:
        click.echo(f"{len(tenants) - _TENANTS:,} more tenants are in --json")


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1.0 else f"{seconds:,.3g} s"
