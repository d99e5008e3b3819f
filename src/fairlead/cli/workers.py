"""``fairlead workers``: the workers of a broker, and what they are ordered to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

import click
import msgspec

from fairlead.app import Fairlead
from fairlead.broker.verbs import WorkerOrder
from fairlead.broker.views import WorkerRecord
from fairlead.cli.codes import FAILURE, OK, exit_code
from fairlead.cli.commands import Command, Group, talk
from fairlead.cli.target import asked, url_option
from fairlead.model.errors import FairleadError
from fairlead.model.shown import one_line

__all__ = ("workers",)

_LONGEST = 60  # characters of a host or a state
_LONGEST_ERROR = 300
_AT_ONCE = 20  # orders: where a broker fails, each takes its time
_SHORTEST = 6  # characters of an id that may stand for all of it
_DONE = {"pause": "will pause", "resume": "will go on", "stop": "will stop"}
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(
    cls=Group,
    section="Look after it",
    examples=(
        ("fairlead workers list", "who works, on what, and in which state"),
        ("fairlead workers pause 9d41c2", "let one fetch no more tasks"),
        ("fairlead workers resume --all", "let all fetch again"),
        ("fairlead workers stop 9d41c2", "let one finish what it runs, and end"),
    ),
)
def workers() -> None:
    """Look at the workers of a broker, and pause, resume or stop them from anywhere.

    To run one, use `fairlead worker`. A worker hears of an order with its next heartbeat: within
    10 seconds, or a third of its lease if that is less.
    """


@workers.command(
    "list",
    cls=Command,
    examples=(
        ("fairlead workers list", "the broker of FAIRLEAD_URL or fairlead.toml"),
        ("fairlead workers list --json", "for programs, with all that is known of each"),
    ),
)
@url_option
@_JSON
def list_(url: str | None, as_json: bool) -> None:
    """Show the workers that were heard of in the last 15 seconds, and what they do.

    A process of a worker with several is a worker of its own here. STATE is working, quiet (by
    signal), paused (by order), stopping or stopped. ORDERED is what it was ordered to do, though
    it may not have heard of it yet.
    """
    found = asked(url, lambda app: app.aworkers())
    if as_json:
        click.echo(json.dumps({"workers": [msgspec.to_builtins(each) for each in found]}))
        return
    if not found:
        talk("there are no workers")
        return
    rows: list[tuple[str, ...]] = [
        ("ID", "HOST", "PID", "STATE", "ORDERED", "RUNNING", "UP", "QUEUES")
    ]
    rows += [_row(each) for each in sorted(found, key=lambda each: (each.host, each.pid))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def _order_command(order: WorkerOrder, about: str, *examples: tuple[str, str]) -> None:
    """Add the command that gives one order."""

    @workers.command(order, cls=Command, examples=examples, help=about)
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @click.option("--all", "everyone", is_flag=True, help="All workers of the broker.")
    @url_option
    @_JSON
    def command(ids: tuple[str, ...], everyone: bool, url: str | None, as_json: bool) -> int:
        if bool(ids) == everyone:
            raise click.UsageError("name the workers by their ids, or give --all")
        done = asked(url, partial(_give, order=order, ids=None if everyone else ids))
        if as_json:
            said = {id: one_line(str(answer), _LONGEST_ERROR) for id, answer in done.items()}
            click.echo(json.dumps({"order": order, "workers": said}))
        for id, answer in done.items():
            if isinstance(answer, FairleadError):
                talk(f"error: worker {id!r}: {one_line(str(answer), _LONGEST_ERROR)}")
            elif answer != "ordered":
                talk(f"error: worker {id!r} is {answer} (next: fairlead workers list)")
            elif not as_json:
                click.echo(f"{id}  {_DONE[order]}")
        if not done and not as_json:
            talk("there are no workers")
        failed = [answer for answer in done.values() if isinstance(answer, FairleadError)]
        if failed:
            return max(map(exit_code, failed))
        return OK if all(answer == "ordered" for answer in done.values()) else FAILURE


_IDS = (
    "Of an ID its first or last six characters will do, or more, as long as they fit one worker. "
    "All are ordered that can be, whatever becomes of the others. "
    "Exit codes: 0 ordered, 1 an ID is not known or fits several, 3 the broker cannot be reached."
)

_order_command(
    "pause",
    "Let workers fetch no more tasks; what they run goes on.\n\n"
    "It holds until `resume`, or until the worker ends: a process that takes its place is not "
    f"paused. To stop tasks wherever they would run, pause their queue instead. {_IDS}",
    ("fairlead workers pause 9d41c2", "by the end of its id"),
    ("fairlead workers pause --all", "every worker of the broker"),
)
_order_command(
    "resume",
    "Let workers fetch again that were paused.\n\n"
    f"One that a signal made quiet (TSTP) stays so until CONT. {_IDS}",
    ("fairlead workers resume 9d41c2", "by the end of its id"),
    ("fairlead workers resume --all", "every worker of the broker"),
)
_order_command(
    "stop",
    "Let workers finish what they run and end, as TERM does.\n\n"
    "What does not finish within their grace is handed back, and no attempt is used up. A process "
    "of `fairlead worker` that is stopped so is not replaced; with its last process the worker "
    f"ends, with exit code 0. {_IDS}",
    ("fairlead workers stop 9d41c2", "by the end of its id"),
)


async def _give(
    app: Fairlead, order: WorkerOrder, ids: Sequence[str] | None
) -> dict[str, str | FairleadError]:
    """Give an order to each, whatever becomes of the others; what came of it, by id."""
    client = app._clients.current()
    known = [worker.incarnation for worker in await client.workers()]
    done: dict[str, str | FairleadError] = {}
    for asked_for in known if ids is None else ids:
        fitting = [asked_for] if asked_for in known else _meant(asked_for, known)
        if len(fitting) > 1:
            done[asked_for] = f"one of {len(fitting)} whose ids fit"
        else:
            done[fitting[0] if fitting else asked_for] = "not known"
    turns = asyncio.Semaphore(_AT_ONCE)

    async def give(id: str) -> None:
        async with turns:
            try:
                if await client.order_worker(id, order):
                    done[id] = "ordered"
            except FairleadError as error:
                done[id] = error

    await asyncio.gather(*(give(id) for id, answer in done.items() if answer == "not known"))
    return done


def _row(worker: WorkerRecord) -> tuple[str, ...]:
    return (
        worker.incarnation,
        one_line(worker.host, _LONGEST),
        str(worker.pid),
        one_line(str(worker.details.get("state", "")), _LONGEST),
        worker.order,
        f"{worker.running}/{worker.concurrency}",
        _duration(max(worker.seen_at - worker.started_at, 0.0)),
        ",".join(worker.queues),
    )


def _meant(part: str, known: Sequence[str]) -> list[str]:
    if len(part) < _SHORTEST:
        return []
    return [id for id in known if id.startswith(part) or id.endswith(part)]


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
