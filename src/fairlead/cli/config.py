"""``fairlead config``: every setting, and where its value comes from."""

from __future__ import annotations

from typing import Any

import click

from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_json


@click.command(
    cls=Command,
    examples=(
        ("fairlead config", "every setting, and where it comes from"),
        ("fairlead config fallback", "one of them"),
        ("fairlead config --json", "for programs"),
    ),
)
@click.argument("name", required=False)
@json_option
def config(name: str | None, as_json: bool) -> int:
    """Show every setting, or the one of that NAME, and where it comes from.

    A variable goes before fairlead.toml in the working directory, and that before the default.
    Arguments that a program gives to Fairlead go before all of them, and are not known here.
    Users, passwords and options of URLs are left out. Exit code 1 if something is wrong.
    """
    from fairlead.cli.config_report import settings_report

    rows, errors, meant = settings_report(name)
    if as_json:
        found = {row["name"]: {each: row[each] for each in row if each != "name"} for row in rows}
        print_json({"settings": found, "errors": errors, "variables": meant})
    else:
        _show(rows)
        for variable, close in meant.items():
            talk(f"warning: {variable} is set, which Fairlead does not know: meant is {close}?")
        for text in errors:
            talk(f"error: {text}")
    return FAILURE if errors else OK


def _show(rows: list[dict[str, Any]]) -> None:
    names = ("name", "value", "source")
    cells = [[_text(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column), default=0) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _text(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
