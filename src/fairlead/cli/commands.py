"""What all commands share: examples in the help, commands in groups, the closest name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import click

from fairlead.model.sizes import in_bytes, size_rule
from fairlead.runtime.resident import can_measure

__all__ = ("Command", "Group", "Number", "in_size", "log_options", "talk")


class Command(click.Command):
    """A command whose help ends with examples that can be copied."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        section: str = "Commands",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)  # what to type, and what it is for
        self.section = section  # where the help of the group lists it

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, behind the options."""
        _write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """Commands under headings, and a hint where a name is nearly right."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        section: str = "Commands",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.section = section  # where the help of the group above lists it

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, each under the heading of its section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            section = command.section if isinstance(command, Command | Group) else "Commands"
            sections.setdefault(section, []).append((name, command.get_short_help_str(80)))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, behind the commands."""
        _write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, but a wrong name is answered with the closest right one."""
        name = args[0]
        unknown = self.get_command(ctx, name) is None and not name.startswith("-")
        if unknown and not ctx.resilient_parsing:
            close = get_close_matches(name, self.list_commands(ctx), n=2)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


class Number(click.FloatRange):
    """A number in a range. click lets NaN through, which is in no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or a usage error that names the value."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def in_size(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The bytes that an amount of memory stands for, or a usage error that names the value."""
    if value is None:
        return None
    if not can_measure():
        raise click.BadParameter("this system does not tell how much memory a process has.")
    size = in_bytes(value)
    if size is None:
        raise click.BadParameter(f"{value!r} is not {size_rule()}.", param=param)
    return size


def talk(text: str) -> None:
    """Say something that is not data: on stderr."""
    click.echo(text, err=True)


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    if examples:
        with formatter.section("Examples"):
            formatter.write_dl(examples, col_max=50)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that runs until it is stopped: how it logs, and what."""
    for option in (
        click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
            default="info", show_default=True, help="The least that is logged.",
        ),
        click.option(
            "--log-format", type=click.Choice(["auto", "json", "console"]),
            default="auto", show_default=True, help="auto: console on a terminal, otherwise json.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
