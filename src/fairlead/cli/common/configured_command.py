"""Commands whose options may also stand in the environment, or in a table of ``fairlead.toml``.

The first that says so counts: the command line, the variable, the file, the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from fairlead.cli.common.commands import Command, closest
from fairlead.model.errors import InvalidInput

if TYPE_CHECKING:
    from fairlead.settings.sources import Sources

_HELP = ("-h", "--help")


class OptionValue(NamedTuple):
    """An option as it is without a command line."""

    name: str  # in the file
    value: Any
    source: str  # a variable, the path of the file, or ``default``
    variable: str


class ConfiguredCommand(Command):
    """A command with a table in the file, and variables that begin with a prefix."""

    def __init__(self, *args: Any, table: str, prefix: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table
        self.prefix = prefix
        for option in self.options():
            option.envvar = self._variable(option)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """As click does it, with what the environment and the file say."""
        if not any(each in _HELP for each in args):  # a wrong file must not keep it from helping
            extra["default_map"] = self._said_by_file(_sources())
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.BadParameter as error:
            raise self._with_source(error) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, and where else the options may stand."""
        super().format_options(ctx, formatter)
        example = next(self.options())
        formatter.write_paragraph()
        formatter.write_text(
            f"Options may also stand in [{self.table}] of fairlead.toml ({_name(example)} = ...) "
            f"or in variables ({self._variable(example)}=...). The command line goes first."
        )

    def options(self) -> Iterator[click.Option]:
        """The options that may be configured."""
        for each in self.params:
            if isinstance(each, click.Option) and each.allow_from_autoenv and each.name != "help":
                yield each

    def values(self, sources: Sources) -> Iterator[OptionValue]:
        """Each option without a command line; raises for what is wrong, as a start would."""
        said = self._said_by_file(sources)
        context = click.Context(self, info_name=self.name, resilient_parsing=True)
        for each in self.options():
            name, variable = _name(each), self._variable(each)
            raw: Any = os.environ.get(variable, "").strip() or None
            source = variable
            if raw is not None and each.multiple:
                raw = raw.split()
            if raw is None and each.name in said:
                raw, source = said[each.name], sources.file
            if raw is None:
                yield OptionValue(name, _default(each, context), "default", variable)
                continue
            try:
                value = each.type_cast_value(context, raw)
            except click.BadParameter as error:
                raise InvalidInput(
                    f"{self.table}.{name} is wrong in {source}: {error.message.removesuffix('.')}"
                ) from None
            yield OptionValue(name, value, source, variable)

    def _said_by_file(self, sources: Sources) -> dict[str, Any]:
        """What the table of the file says, by the names of the parameters."""
        table = sources.table(self.table)
        known = {_name(each): each for each in self.options()}
        for name, value in table.items():
            if name not in known:
                hint = closest(name, known) or f"; it may have {', '.join(sorted(known))}"
                raise InvalidInput(
                    f"{sources.file!r} has the key {name!r} in [{self.table}], which Fairlead does "
                    f"not know{hint}"
                )
            if known[name].is_flag and not isinstance(value, bool):
                raise InvalidInput(
                    f"{sources.file!r} has {value!r} as {name} in [{self.table}]; write true or "
                    "false"
                )
            if known[name].multiple != isinstance(value, list):
                what = "list of texts" if known[name].multiple else "single value"
                raise InvalidInput(f"{sources.file!r} has no {what} as {name} in [{self.table}]")
        return {str(known[name].name): value for name, value in table.items()}

    def _variable(self, option: click.Option) -> str:
        return f"{self.prefix}_{_name(option)}".upper()

    def _with_source(self, error: click.BadParameter) -> click.BadParameter:
        """Return an error that says which variable or file it is about."""
        option, context = error.param, error.ctx
        if context is None or not isinstance(option, click.Option) or option.name is None:
            return error
        source = context.get_parameter_source(option.name)
        if source is ParameterSource.ENVIRONMENT:
            where = self._variable(option)
        elif source is ParameterSource.DEFAULT_MAP:
            where = f"[{self.table}] of {_sources().file!r}"
        else:
            return error
        text = f"{error.message.removesuffix('.')} (in {where})"
        return click.BadParameter(text, ctx=context, param=option)


def _sources() -> Sources:
    from fairlead.settings.sources import Sources  # here: no help needs it

    return Sources()


def _name(option: click.Option) -> str:
    """The name of an option in the file: that of the command line, with underscores."""
    longest = max(option.opts, key=len)
    return longest.removeprefix("--").replace("-", "_")


def _default(option: click.Option, context: click.Context) -> Any:
    """What holds if none says so; click has a value of its own for nothing."""
    value = option.get_default(context)
    if option.multiple:
        return ()
    return value if isinstance(value, bool | int | float | str) else None
