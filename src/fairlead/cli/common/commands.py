"""What all commands share: examples in the help, commands in groups, the closest name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from fairlead.model.sizes import in_bytes, size_rule

_DEBUG = "fairlead.debug"  # where a context keeps it

#: The option of every command that reads something.
json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object."
)


class Command(click.Command):
    """A command whose help ends with examples that can be copied."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)  # what to type, and what it is for

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, behind the options."""
        _write_examples(formatter, self.examples)
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """Commands under headings, of which a call imports only the one that it names."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        places: Mapping[str, str] | None = None,
        former: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """``places`` says where commands are that are imported when they are called.

        ``former`` has names that commands had before, which are still understood but not listed:
        the name of each now, or its place if that is in another group.
        """
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self._places = dict(places or {})  # MODULE:ATTRIBUTE by name
        self._former = dict(former or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names, in the order in which they were declared."""
        return [*self._places, *(name for name in self.commands if name not in self._places)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, if there is one."""
        name = self._former.get(cmd_name, cmd_name)
        # A former name may stand for a place; what was typed never is one, though it may look so.
        place = self._places.get(name, name if cmd_name in self._former else "")
        module, _, attribute = place.partition(":")
        if not attribute:
            return super().get_command(ctx, name)
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, each under the heading of its section."""
        for section, rows in self.sections(ctx).items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the names of the commands and what each is for, by heading."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, each) for name, each in found if each is not None and not each.hidden]
        return {"Commands": [(name, each.get_short_help_str(80)) for name, each in shown]}

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
            hint = closest(name, self.list_commands(ctx))
            if ":" in name and "worker" in self._places:  # an app, where its command should be
                hint = f"; did you mean fairlead worker {name}?"
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


class UnknownName(click.UsageError):
    """A name that the broker does not know; ``step`` is the command that lists those it does."""

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


def in_size(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """The bytes that an amount of memory stands for, or a usage error that names the value."""
    from fairlead.runtime.process_memory import can_measure

    if value is None:
        return None
    if not can_measure():
        raise click.BadParameter("this system does not tell how much memory a process has.")
    size = in_bytes(value)
    if size is None:
        raise click.BadParameter(f"{value!r} is not {size_rule()}.", param=param)
    return size


def remember_debug(context: click.Context, _param: click.Parameter, value: bool) -> None:
    """Keep what ``--debug`` says, for commands that start other processes."""
    context.meta[_DEBUG] = value


def is_debugging() -> bool:
    """Return whether the command that runs was asked for tracebacks."""
    return bool(click.get_current_context().meta.get(_DEBUG))


def talk(text: str) -> None:
    """Say something that is not data: on stderr."""
    click.echo(text, err=True)


def closest(name: str, known: Iterable[str]) -> str:
    """Return a question for the end of a sentence: was one of these names meant?"""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=2)
    return f"; did you mean {' or '.join(close)}?" if close else ""


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
