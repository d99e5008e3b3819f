"""The entry point: finds the command, and turns what goes wrong into a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from fairlead.cli.codes import INTERRUPTED, OK, exit_code
from fairlead.cli.commands import Group, talk
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


# Each is in the file of its name.
_COMMANDS = (
    "api", "bench", "check", "config", "db", "demo", "doctor", "flow", "functions", "history",
    "manager", "migrate", "schedule", "spool", "stats", "task", "tasks", "token", "worker",
    "workers",
)  # fmt: skip


class _Commands(Group):
    """The commands, of which a call imports only the one that it names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, if there is one."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"fairlead.cli.{cmd_name}"), cmd_name)
        return command


@click.group(
    cls=_Commands,
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
