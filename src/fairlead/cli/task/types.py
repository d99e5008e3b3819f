"""``fairlead task types``: what can be enqueued, as the workers tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import url_option, with_app
from fairlead.cli.common.commands import Command, json_option, talk
from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.common.output import print_columns, print_json
from fairlead.model.safe_repr import one_line

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.client import KnownTask
    from fairlead.model.catalog import TaskEntry
    from fairlead.model.parameters import Parameter

_LONGEST = 60  # characters of a name, a default or a type
_LONGEST_LINE = 1_000


@click.command(
    cls=Command,
    examples=(
        ("fairlead task types", "all that workers have: queues, versions, parameters"),
        ("fairlead task types shop.mail", "one of them, with its options"),
        ("fairlead task types --json", "for programs, with JSON Schemas"),
    ),
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@url_option
@json_option
def types(names: tuple[str, ...], url: str | None, as_json: bool) -> int:
    """List the tasks that workers have, with their queues, versions and parameters.

    Nothing of their code is needed here: workers publish it. A task stays listed for up to three
    minutes after the last worker that has it. Exit codes: 0 fine, 1 a NAME is not known, 3 the
    broker cannot be reached.
    """
    from fairlead.client.catalog import closest_names

    known = with_app(url, _known)
    found = [task for task in known if not names or task.name in names]
    if as_json:
        print_json({"tasks": found})
    elif names:
        for task in found:
            _show(task)
    elif found:
        _list(found)
    elif not names:
        talk("no worker tells of any task")
    missing = [name for name in names if name not in {task.name for task in found}]
    for name in missing:
        close = closest_names(name, [task.name for task in known])
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        talk(f"task {name!r} is not known to any worker{hint}")
    return FAILURE if missing else OK


async def _known(app: Fairlead) -> list[KnownTask]:
    from fairlead.client import known_tasks

    return await known_tasks(app._clients.current())


def _list(found: list[KnownTask]) -> None:
    rows = [("TASK", "VERSION", "QUEUE", "WORKERS", "PARAMETERS")]
    for task in found:
        for place, entry in enumerate(task.entries):
            name, workers = (_cut(task.name), str(task.workers)) if place == 0 else ("", "")
            rows.append((name, str(entry.version), _cut(entry.queue), workers, signature(entry)))
    print_columns(rows)


def _show(task: KnownTask) -> None:
    for entry in task.entries:
        rows = [
            ("task", f"{task.name}{signature(entry)}"),
            ("about", entry.summary),
            ("version", str(entry.version)),
            ("workers", str(task.workers)),
            ("queue", entry.queue),
            ("tenant", entry.tenant),
            ("priority", entry.priority_label or entry.priority or "by its arguments"),
            ("retries", str(entry.max_retries)),
            ("timeout", "none" if entry.timeout is None else f"{entry.timeout:g} s"),
            ("retention", "" if entry.retention is None else f"{entry.retention:g} s"),
            ("cost", f"{entry.cost:g}"),
            ("limiters", ", ".join(entry.limiters)),
            ("unique", entry.unique),
            ("isolation", entry.isolation),
            ("schemas", "left out: there was no room for them" if entry.is_cut else ""),
        ]
        for name, value in rows:
            if value:
                click.echo(f"{name:10} {one_line(value, _LONGEST_LINE)}")
        click.echo()


def signature(entry: TaskEntry) -> str:
    """The parameters of a task in one line."""
    if entry.parameters is None:
        return "(…)"
    parts, kinds = [], [each.kind for each in entry.parameters]
    for place, each in enumerate(entry.parameters):
        if each.kind == "keyword_only" and not {"var_positional", each.kind} & {*kinds[:place]}:
            parts.append("*")
        parts.append(_parameter(each))
        if each.kind == "positional_only" and kinds[place + 1 : place + 2] != ["positional_only"]:
            parts.append("/")
    return f"({', '.join(parts)})"


def _parameter(each: Parameter) -> str:
    import json

    stars = {"var_positional": "*", "var_keyword": "**"}.get(each.kind, "")
    kind = _type(each.schema)
    text = f"{stars}{_cut(each.name)}: {kind}" if kind else f"{stars}{_cut(each.name)}"
    if "default" in each.schema:
        return f"{text} = {_cut(json.dumps(each.schema['default'], ensure_ascii=False))}"
    return text if each.required or stars else f"{text} = …"


def _type(schema: Any) -> str:
    """A schema in a word or two; empty if it says nothing."""
    import json

    from fairlead.model.parameters import REFERENCE

    if not isinstance(schema, dict):
        return ""
    if isinstance(schema.get("$ref"), str):
        return _cut(schema["$ref"].removeprefix(REFERENCE))
    if isinstance(schema.get("anyOf"), list):
        return _cut(" | ".join(_type(each) or "any" for each in schema["anyOf"]))
    if isinstance(schema.get("enum"), list):
        return _cut(" | ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"]))
    kind = schema.get("type")
    if kind == "array" and (inner := _type(schema.get("items"))):
        return _cut(f"array of {inner}")
    return _cut(str(schema.get("format") or kind or ""))


def _cut(text: str) -> str:
    return one_line(text, _LONGEST)
