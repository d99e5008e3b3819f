"""The entry point: finds the command, and turns what goes wrong into a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from fairlead.cli.api import api
from fairlead.cli.bench import bench
from fairlead.cli.check import check
from fairlead.cli.codes import INTERRUPTED, OK, exit_code
from fairlead.cli.commands import Group, talk
from fairlead.cli.db import db
from fairlead.cli.demo import demo
from fairlead.cli.doctor import doctor
from fairlead.cli.flow import flow
from fairlead.cli.functions import functions
from fairlead.cli.history import history
from fairlead.cli.manager import manager
from fairlead.cli.migrate import migrate
from fairlead.cli.schedule import schedule
from fairlead.cli.stats import stats
from fairlead.cli.task import task
from fairlead.cli.tasks import tasks
from fairlead.cli.token import token
from fairlead.cli.worker import worker
from fairlead.cli.workers import workers
from fairlead.model.errors import (
    Ambiguous,
    FairleadError,
    InvalidInput,
    QueueFull,
    ResultGone,
    ScheduleConflict,
    TaskFailed,
    UnknownSchedule,
    Unreachable,
)
from fairlead.model.ledger_errors import LedgerAmbiguous, LedgerRefused, LedgerUnreachable

__all__ = ("cli", "exit_code", "main", "run")

_NEXT: tuple[tuple[type[FairleadError], str], ...] = (
    (Unreachable, "check the address and that the server runs"),
    (Ambiguous, "look whether it was done before you try again"),
    (QueueFull, "wait until the queue is shorter, or raise its limit"),
    (ResultGone, "ask earlier, or raise the retention of the task"),
    (TaskFailed, "mend the cause and requeue the task"),
    (ScheduleConflict, "look at it with fairlead schedule show"),
    (UnknownSchedule, "look for its name with fairlead schedule list"),
    (LedgerUnreachable, "check the address of the ledger and that PostgreSQL runs"),
    (LedgerAmbiguous, "look at it with fairlead db status"),
    (LedgerRefused, "mend what it says and try again"),
    (InvalidInput, "correct the value"),
)


@click.group(
    cls=Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        ("fairlead demo", "see how four tenants share a worker"),
        ("fairlead worker shop.tasks:app", "run the tasks of an app"),
        ("fairlead bench --quick", "measure this machine, in two or three minutes"),
        ("fairlead demo --help", "what a command does, and its options"),
    ),
)
@click.version_option(package_name="fairlead", message="%(prog)s %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    envvar="FAIRLEAD_DEBUG",
    show_envvar=True,
    expose_value=False,  # run() looks for it itself
    help="Show the traceback of an error.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """A task queue that shares workers fairly between tenants.

    Data goes to stdout, everything else to stderr. Exit codes: 0 fine, 1 failed, 2 wrong usage,
    3 the broker cannot be reached, 4 timed out, 130 interrupted. NO_COLOR turns colors off.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli.add_command(demo)
cli.add_command(bench)
cli.add_command(doctor)
cli.add_command(worker)
cli.add_command(api)
cli.add_command(check)
cli.add_command(db)
cli.add_command(flow)
cli.add_command(functions)
cli.add_command(history)
cli.add_command(manager)
cli.add_command(migrate)
cli.add_command(schedule)
cli.add_command(stats)
cli.add_command(task)
cli.add_command(tasks)
cli.add_command(token)
cli.add_command(workers)


def main() -> None:
    """Run the command that the arguments of this process name, and exit with its code."""
    sys.exit(run(cli, sys.argv[1:]))


def run(command: click.Command, args: Sequence[str]) -> int:
    """Run a command; errors become one line on stderr, and every end an exit code."""
    try:
        code = command.main(list(args), prog_name="fairlead", standalone_mode=False)
    except click.Abort:
        talk("interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        talk(_usage_line(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it is, people get a line and scripts a code
        if _debugging(args):
            sys.excepthook(type(error), error, error.__traceback__)
        else:
            talk(_error_line(error))
        return exit_code(error)
    return code if isinstance(code, int) else OK


def _debugging(args: Sequence[str]) -> bool:
    """Whether tracebacks were asked for; the command's own parsing may have failed before it."""
    said = os.environ.get("FAIRLEAD_DEBUG", "").strip().lower()
    return "--debug" in args or said not in ("", "0", "false", "no", "off", "n", "f")


def _error_line(error: Exception) -> str:
    """What failed, with the value, and what to do next: one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, FairleadError):
        text = f"{type(error).__name__}: {text}"
    steps = [step for kind, step in _NEXT if isinstance(error, kind)]
    step = steps[0] if steps else "run it with --debug in front of the command to see where"
    return f"error: {text} (next: {step})"


def _usage_line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).removesuffix(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "fairlead"
    return f"error: {text} (next: {path} --help)"
