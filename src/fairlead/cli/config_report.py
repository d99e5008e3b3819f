"""What ``fairlead config`` shows: each setting as a program here would find it."""

from __future__ import annotations

from typing import Any

import click

from fairlead.cli.common.configured_command import ConfiguredCommand
from fairlead.model.errors import FairleadError
from fairlead.settings.keys import COMMAND_TABLES, KEYS, Key, closest
from fairlead.settings.sources import Sources

_EMBEDDED = "embedded://"  # what an app uses for which no broker is named


def settings_report(name: str | None) -> tuple[list[dict[str, Any]], list[str], dict[str, str]]:
    """Return a row for each setting, what is wrong, and variables that are nearly right.

    With a name, only that setting's row; raises a usage error if there is none of that name.
    """
    sources = Sources()
    rows, errors = [], []
    for key in KEYS.values() if name is None else _keys_of(name):
        try:
            rows.append(_row(sources, key))
        except FairleadError as error:
            errors.append(str(error))
    if name is None or name.partition(".")[0] in COMMAND_TABLES:
        more, wrong = _of_commands(sources, name)
        rows, errors = [*rows, *more], [*errors, *wrong]
    if name is None:
        more, wrong = _of_limits(sources)
        rows, errors = [*rows, *more], [*errors, *wrong]
    errors += [str(sources.unknown_key(each)) for each in _unknown(sources)]
    meant = sources.mistaken_variables()
    return rows, errors, meant


def _of_commands(sources: Sources, name: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the options of `fairlead worker` and `fairlead api`, and what is wrong with them."""
    from fairlead.cli.api import api
    from fairlead.cli.worker import worker

    rows, errors = [], []
    for command in (worker, api):
        assert isinstance(command, ConfiguredCommand)  # noqa: S101 - that is what they are
        try:
            for found in command.values(sources):
                row = {**found._asdict(), "name": f"{command.table}.{found.name}"}
                if isinstance(found.value, tuple):
                    row["value"] = list(found.value)
                if name is None or name == row["name"]:
                    rows.append(row)
        except FairleadError as error:
            errors.append(str(error))
    if name is not None and not rows and not errors:
        raise click.UsageError(f"there is no setting {name!r}")
    return rows, errors


def _of_limits(sources: Sources) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the limits that the file declares, and what is wrong with them."""
    from fairlead.client.limits import DeclaredLimits

    try:
        DeclaredLimits().joined()
        tables = sources.limits()
    except FairleadError as error:
        return [], [str(error)]
    rows = [
        {"name": f"{kind}.{name}.{option}", "value": value, "source": sources.file, "variable": ""}
        for kind, named in tables.items()
        for name, options in named.items()
        for option, value in options.items()
    ]
    return rows, []


def _keys_of(name: str) -> list[Key]:
    if name.partition(".")[0] in COMMAND_TABLES:
        return []
    if name not in KEYS:
        close = closest(name, KEYS)
        hint = f"; did you mean {close}?" if close else ""
        raise click.UsageError(f"there is no setting {name!r}{hint}")
    return [KEYS[name]]


def _row(sources: Sources, key: Key) -> dict[str, Any]:
    found = sources.find(key.name)
    value, source = (key.default, "default") if found is None else found
    if key.name == "timeout":
        value, source = _timeout(sources, value, source)
    elif key.name == "namespace":
        value, source = _namespace(sources, value, source)
    elif key.name == "url" and found is None:
        value = _EMBEDDED
    return {
        "name": key.name,
        "value": _without_secrets(key.name, value),
        "source": source,
        "variable": key.variable,
    }


def _timeout(sources: Sources, value: float | None, source: str) -> tuple[float, str]:
    """Return how long a call may take: the URL goes before the setting."""
    from fairlead.broker import LIMIT, split_limit

    url = sources.find("url")
    limit = None if url is None else split_limit(url.value)[1]
    if url is not None and limit is not None:
        return limit, f"{url.source}, ?timeout= of the URL"
    return (LIMIT if value is None else value), source


def _namespace(sources: Sources, value: str | None, source: str) -> tuple[str | None, str]:
    """Return the namespace: the URL goes before the setting."""
    from fairlead.broker.namespace import split_namespace

    url = sources.find("url")
    said = "" if url is None else split_namespace(url.value)[1]
    if url is not None and said:
        return said, f"{url.source}, ?namespace= of the URL"
    return value, source


def _without_secrets(name: str, value: Any) -> Any:
    from fairlead.broker import address_of
    from fairlead.broker.routes import shown_url
    from fairlead.ledger.address import parse_address

    if name == "url":
        return value if value == _EMBEDDED else address_of(value)
    if name == "ledger" and value is not None:
        return parse_address(value).shown
    if name == "routes":
        return {route: shown_url(url) for route, url in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _unknown(sources: Sources) -> list[str]:
    try:
        return sources.unknown_keys()
    except FairleadError:  # the table of the spool is none: told of already
        return []
