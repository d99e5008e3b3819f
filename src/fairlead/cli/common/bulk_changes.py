"""One order about all tasks that match: counted first, agreed to, shown while it goes on.

Every step moves as many tasks as one call of the broker may. The first Ctrl-C ends it after the
step that is under way; what was done is told, whatever ended it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fairlead.cli.common.audit_trail import note
from fairlead.cli.common.broker_option import with_client
from fairlead.cli.common.commands import talk
from fairlead.cli.common.exit_codes import FAILURE, INTERRUPTED, OK
from fairlead.cli.common.output import print_json, tasks, tasks_were
from fairlead.cli.common.progress import Progress, interruptible
from fairlead.cli.common.task_filter import TaskQuery, each_once, hint_of

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.client.bulk_actions import Action

DONE: dict[str, str] = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}
_SHOWN = 10  # ids of a dry run


class BulkOptions(NamedTuple):
    """What was said about all that match."""

    dry_run: bool
    yes: bool
    as_json: bool


class _Done(NamedTuple):
    """What became of it."""

    matched: int
    changed: int
    sample: list[str]
    interrupted: bool
    hint: str = ""


def bulk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that change many tasks."""
    for option in reversed(
        (
            click.option("--dry-run", is_flag=True, help="Only count what matches."),
            click.option("--yes", is_flag=True, help="Do it, without a question."),
        )
    ):
        command = option(command)
    return command


def agreed(question: str) -> None:
    """Ask a person; raise where there is nobody to ask, or the answer is no."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{question} There is nobody to ask: give --yes to do it, or --dry-run to see more"
        )
    if not click.confirm(question, err=True):
        talk("nothing was changed")
        raise click.exceptions.Exit(FAILURE)


def carry_out(url: str | None, action: Action, query: TaskQuery, options: BulkOptions) -> int:
    """Do something with all tasks that match; the exit code."""
    total = None
    if options.dry_run or not options.yes:
        counted = with_client(url, lambda client: _go(client, action, query, dry_run=True))
        if counted.interrupted:
            talk("interrupted while counting: nothing was changed")
            return INTERRUPTED
        if options.dry_run or not counted.matched:
            return _tell(action, counted, options)
        total = counted.matched
        agreed(f"{tasks(counted.matched)} would be {DONE[action]}. Go on?")
    done = with_client(url, lambda client: _go(client, action, query, total=total))
    return _tell(action, done, options)


async def _go(
    client: Client,
    action: Action,
    query: TaskQuery,
    *,
    dry_run: bool = False,
    total: int | None = None,
) -> _Done:
    from fairlead.client.bulk_actions import STATES, BulkAction, Changes, begin, bulk_step
    from fairlead.model.errors import BrokerError

    states = STATES[action]
    if query.state is None and len(states) == 1:
        # Where only one state is possible, the broker need not look at the others.
        query = query._replace(state=next(iter(states)).value)
    matches = each_once(query.matches)
    act = BulkAction(action=action, selection=query.selection, matches=matches, dry_run=dry_run)
    progress = Progress("found" if dry_run else DONE[action], total)
    changes, sample = Changes(), list[str]()
    place, is_last = await begin(client, query.queue), False
    try:
        with interruptible() as interruption:
            while not is_last and not interruption.came:
                step = await bulk_step(client, act, place, changes)
                place, is_last = step.after, step.is_last
                sample += [record.message.id for record in step.records[: _SHOWN - len(sample)]]
                progress.show(place.matched if dry_run else changes.count)
    except BrokerError:
        if changes.count:
            talk(f"{tasks_were(changes.count, DONE[action])} before this, perhaps some more")
        raise
    except BaseException:  # interrupted twice: the last step may be done or not
        if changes.count:
            talk(f"interrupted: at least {tasks_were(changes.count, DONE[action])}")
        raise
    finally:
        progress.clear()
        if changes.count:
            said = {name: value for name, value in query._asdict().items() if value is not None}
            said.pop("error", None)  # content
            await note(client, f"tasks.{action}", "*", changed=changes.count, **said)
    hint = "" if place.matched else await hint_of(client, query)
    return _Done(place.matched, changes.count, sample, not is_last, hint)


def _tell(action: str, done: _Done, options: BulkOptions) -> int:
    if options.as_json:
        fields = {"action": action, "dry_run": options.dry_run, "finished": not done.interrupted}
        print_json({**fields, "matched": done.matched, "changed": done.changed})
    elif options.dry_run:
        for id in done.sample:
            click.echo(id)
        more = f", the first {len(done.sample)} of them above" if done.matched > _SHOWN else ""
        talk(f"{tasks(done.matched)} would be {DONE[action]}{more}" if done.matched else done.hint)
    elif done.interrupted:
        talk(f"interrupted: {tasks_were(done.changed, DONE[action])}, the others are untouched")
    elif not done.matched:
        talk(done.hint)
    else:
        talk(tasks_were(done.changed, DONE[action]))
        if done.changed < done.matched:
            talk(f"{done.matched - done.changed:,} had changed meanwhile and were left alone")
    return INTERRUPTED if done.interrupted else OK
