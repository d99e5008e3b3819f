"""``fairlead workers``: the workers of a broker, and what they are ordered to do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import url_option, with_app
from fairlead.cli.common.commands import Command, Group, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK, exit_code
from fairlead.cli.common.output import (
    duration_text,
    moment_text,
    print_columns,
    print_fields,
    print_json,
)
from fairlead.model.errors import FairleadError
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.broker.records import WorkerRecord
    from fairlead.broker.requests import WorkerOrder

_LONGEST = 60  # characters of a host or a state
_LONGEST_ERROR = 300
_AT_ONCE = 20  # orders: where a broker fails, each takes its time
_SHORTEST = 6  # characters of an id that may stand for all of it
_DONE = {"pause": "will pause", "resume": "will go on", "stop": "will stop"}


@click.group(
    cls=Group,
    former={"pause": "quiet"},
    examples=(
        ("fairlead workers list", "who works, on what, and in which state"),
        ("fairlead workers quiet 9d41c2", "let one fetch no more tasks"),
        ("fairlead workers resume --all", "let all fetch again"),
        ("fairlead workers stop 9d41c2", "let one finish what it runs, and end"),
    ),
)
def workers() -> None:
    """Workers of a broker: look at them, quiet, resume or stop them.

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
@json_option
def list_(url: str | None, as_json: bool) -> None:
    """Show the workers that were heard of in the last 15 seconds, and what they do.

    A process of a worker with several is a worker of its own here. STATE is working, quiet (by
    signal), paused (by order), stopping or stopped. ORDERED is what it was ordered to do, though
    it may not have heard of it yet.
    """
    found = with_app(url, lambda app: app.aworkers())
    if as_json:
        print_json({"workers": found})
        return
    if not found:
        talk("there are no workers")
        return
    rows: list[tuple[str, ...]] = [
        ("ID", "HOST", "PID", "STATE", "ORDERED", "RUNNING", "UP", "QUEUES")
    ]
    rows += [_row(each) for each in sorted(found, key=lambda each: (each.host, each.pid))]
    print_columns(rows)


@workers.command(
    cls=Command,
    examples=(
        ("fairlead workers show 9d41c2", "by the end of its id"),
        ("fairlead workers show 9d41c2 --json", "for programs, with all that is known of it"),
    ),
)
@click.argument("id")
@url_option
@json_option
def show(id: str, url: str | None, as_json: bool) -> int:
    """Show one worker: where it runs, what it serves and what it is doing.

    Of an ID its first or last six characters will do, if they fit one worker. Exit codes: 0 fine, 1
    the ID is not known or fits several, 3 the broker cannot be reached.
    """
    found = {each.incarnation: each for each in with_app(url, lambda app: app.aworkers())}
    fitting = [id] if id in found else _meant(id, [*found])
    if len(fitting) != 1:
        what = f"one of {len(fitting)} whose ids fit" if fitting else "not known"
        talk(f"error: worker {id!r} is {what} (next: fairlead workers list)")
        return FAILURE
    worker = found[fitting[0]]
    if as_json:
        print_json(worker)
        return OK
    details = worker.details
    print_fields(
        {
            "worker": worker.incarnation,
            "host": one_line(worker.host, _LONGEST),
            "pid": worker.pid,
            "state": one_line(str(details.get("state", "")), _LONGEST),
            "ordered": worker.order,
            "running": f"{worker.running} of {worker.concurrency}",
            "started": moment_text(worker.started_at),
            "last heard": moment_text(worker.seen_at),
            "queues": ", ".join(worker.queues),
            "tasks": one_line(", ".join(worker.tasks), _LONGEST_ERROR),
            "settled": details.get("settled"),
        }
    )
    for task_id, name in details.get("now", ()):
        click.echo(f"  runs  {one_line(str(name), _LONGEST)}  {one_line(str(task_id), _LONGEST)}")
    return OK


def _order_command(name: str, order: WorkerOrder, about: str, *examples: tuple[str, str]) -> None:
    """Add the command that gives one order."""

    @workers.command(name, cls=Command, examples=examples, help=about)
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @click.option("--all", "everyone", is_flag=True, help="All workers of the broker.")
    @url_option
    @json_option
    def command(ids: tuple[str, ...], everyone: bool, url: str | None, as_json: bool) -> int:
        if bool(ids) == everyone:
            raise click.UsageError("name the workers by their ids, or give --all")
        done = with_app(url, partial(_give, order=order, ids=None if everyone else ids))
        if as_json:
            said = {id: one_line(str(answer), _LONGEST_ERROR) for id, answer in done.items()}
            print_json({"order": order, "workers": said})
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
    "quiet",
    "pause",
    "Let workers fetch no more tasks; what they run goes on.\n\n"
    "It holds until `resume`, or until the worker ends: a process that takes its place is not "
    f"paused. To stop tasks wherever they would run, pause their queue instead. {_IDS}",
    ("fairlead workers quiet 9d41c2", "by the end of its id"),
    ("fairlead workers quiet --all", "every worker of the broker"),
)
_order_command(
    "resume",
    "resume",
    "Let workers fetch again that were paused.\n\n"
    f"One that a signal made quiet (TSTP) stays so until CONT. {_IDS}",
    ("fairlead workers resume 9d41c2", "by the end of its id"),
    ("fairlead workers resume --all", "every worker of the broker"),
)
_order_command(
    "stop",
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
    import asyncio

    client = app._clients.current()
    known = [worker.incarnation for worker in await client.store.workers()]
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
        duration_text(worker.seen_at - worker.started_at),
        ",".join(worker.queues),
    )


def _meant(part: str, known: Sequence[str]) -> list[str]:
    if len(part) < _SHORTEST:
        return []
    return [id for id in known if id.startswith(part) or id.endswith(part)]
