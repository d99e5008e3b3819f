"""The entry point: finds the command, and turns what goes wrong into a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from fairlead.cli.common.commands import Group, UnknownName, remember_debug, talk
from fairlead.cli.common.exit_codes import INTERRUPTED, OK, exit_code
from fairlead.model.errors import (
    Ambiguous,
    FairleadError,
    InvalidInput,
    QueueFull,
    QueueInUse,
    Refused,
    ResultGone,
    ResultTimeout,
    ScheduleConflict,
    TaskFailed,
    UnknownSchedule,
    UnknownTask,
    Unreachable,
)
from fairlead.model.ledger_errors import LedgerAmbiguous, LedgerRefused, LedgerUnreachable
from fairlead.runtime.terminals import end_without_outputs

_NEXT: tuple[tuple[type[FairleadError], str], ...] = (
    (Unreachable, "check the address and that the server runs"),
    (Ambiguous, "look whether it was done before you try again"),
    (QueueFull, "wait until it is shorter, or raise its limit with fairlead queue limit"),
    (QueueInUse, "wait until it is empty, or empty it with fairlead queue purge"),
    (ResultGone, "check its id and tenant; to keep it for longer, raise its retention"),
    (ResultTimeout, "it goes on: look at it with fairlead task watch"),
    (TaskFailed, "mend the cause, then put it back with fairlead task retry"),
    (UnknownTask, "look for its name with fairlead task types"),
    (ScheduleConflict, "look at it with fairlead schedule show"),
    (UnknownSchedule, "look for its name with fairlead schedule list"),
    (Refused, "mend what it says and try again"),
    (LedgerUnreachable, "check the address of the ledger and that PostgreSQL runs"),
    (LedgerAmbiguous, "look at it with fairlead db status"),
    (LedgerRefused, "mend what it says and try again"),
    (InvalidInput, "correct the value"),
)


#: The commands under their headings, with what each is for: their help need not import them.
SECTIONS: dict[str, dict[str, str]] = {
    "Run": {
        "up": "Run everything: a broker, a worker of APP, the API and its page.",
        "worker": "Run the tasks of APP, which is MODULE:ATTRIBUTE, until a signal says to stop.",
        "api": "Serve the HTTP API of APP, which is MODULE:ATTRIBUTE, or of a broker alone.",
        "manager": (
            "The queue manager: sends tasks from the ledger to the broker, and records what they "
            "become."
        ),
    },
    "Tasks": {
        "task": "Tasks: find, watch, explain, retry, cancel, delete and enqueue them.",
        "dlq": "Dead letters: what failed for good, by what it failed of.",
        "flow": "Flows: tasks that depend on each other and were enqueued as one.",
        "schedule": (
            "Schedules: list, make, change, pause and delete what is enqueued by the clock."
        ),
        "history": "List what became of tasks, the newest first.",
    },
    "Queues and workers": {
        "queue": "Queues: look at them, pause, limit, purge and delete them.",
        "tenant": "Tenants: their shares, weights, limits and pauses.",
        "limiter": "Limiters that tasks of all queues share, and their breakers.",
        "workers": "Workers of a broker: look at them, quiet, resume or stop them.",
    },
    "Watch": {
        "top": ("Watch rates, waits, tenants with their shares, workers and dead letters, live."),
        "stats": "Show what was counted, and upper bounds of the times that it took.",
        "events": "Events: what happens, as it happens.",
        "check": "Look at the workers of this machine, for a probe.",
        "doctor": (
            "Look whether the broker can be trusted with tasks, and whether somebody works on them."
        ),
    },
    "Set up": {
        "init": "Write a small project that runs: tasks, a test of them, and fairlead.toml.",
        "config": "Show every setting, or the one of that NAME, and where it comes from.",
        "token": "Tokens of the HTTP API: make, list and revoke them.",
        "db": "The ledger in PostgreSQL: bring its schema up to date, look at it.",
        "migrate": "Bring what is stored to the layout of this release.",
        "functions": "Libraries of functions that releases of Fairlead keep on their server.",
        "spool": (
            "Look at what processes kept on this disk while the broker was away, and send it."
        ),
        "completion": "Print what a shell needs to complete commands and options.",
    },
    "Try": {
        "demo": "Watch small tenants get their turn while others flood the queue.",
        "bench": "Measure what a task costs on this machine.",
    },
}

# Each is in the file or the folder of its name.
_PLACES = {name: f"fairlead.cli.{name}:{name}" for section in SECTIONS.values() for name in section}


class _Commands(Group):
    """All commands; their help is the table above."""

    def sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the names of the commands and what each is for, by heading."""
        return {heading: list(rows.items()) for heading, rows in SECTIONS.items()}


@click.group(
    cls=_Commands,
    places=_PLACES,
    former={"tasks": "fairlead.cli.task.types:types"},
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        ("fairlead up --demo", "see all of it at work, with a page to look at"),
        ("fairlead worker shop.tasks:app", "run the tasks of an app"),
        ("fairlead task list --state dead --since 1h", "what failed in the last hour"),
        ("fairlead task explain ID", "why is it not running?"),
        ("fairlead queue pause mail", "let nothing of a queue start"),
        ("fairlead dlq list", "dead letters, by what they died of"),
    ),
)
@click.version_option(package_name="fairlead", message="%(prog)s %(version)s")
@click.option(
    "--debug",
    is_flag=True,
    envvar="FAIRLEAD_DEBUG",
    show_envvar=True,
    expose_value=False,  # run() looks for it itself
    callback=remember_debug,
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


def main() -> None:
    """Run the command that the arguments of this process name, and exit with its code."""
    end_without_outputs()
    sys.exit(run(cli, sys.argv[1:]))


def run(command: click.Command, args: Sequence[str], name: str = "fairlead") -> int:
    """Run a command; errors become one line on stderr, and every end an exit code."""
    try:
        code = command.main(list(args), prog_name=name, standalone_mode=False)
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
    step = error.step if isinstance(error, UnknownName) else f"{path} --help"
    return f"error: {text} (next: {step})"
