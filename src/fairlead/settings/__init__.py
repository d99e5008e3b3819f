"""What a program need not say itself: where its broker is, how long calls may take, and the like.

The first that says so counts: the argument of ``Fairlead``, the environment variable, the file
``fairlead.toml`` in the working directory, the default. An empty variable says nothing. Folders
above are not looked into: a file that somebody left there would silently name the broker.

A program that names its broker depends on no part of the file that it does not use: each function
here but ``configured`` and ``load`` looks at its own keys only.

Start with ``keys``, which has them all; ``sources`` finds their values, ``values`` reads them, and
``queue_choice`` is what ``create_queue`` goes by.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlead.model.errors import InvalidOption
from fairlead.model.setting_names import FILE, LEDGER, REQUIRE, VARIABLE
from fairlead.settings.keys import KEYS, Fallback, Settings, SpoolSettings
from fairlead.settings.sources import Sources

__all__ = (
    "FILE",
    "LEDGER",
    "REQUIRE",
    "VARIABLE",
    "Configured",
    "Fallback",
    "FallbackSettings",
    "Settings",
    "SpoolSettings",
    "configured",
    "configured_fallback",
    "configured_ledger",
    "configured_limits",
    "configured_namespace",
    "configured_timeout",
    "load",
    "requires_url",
)

_Folder = str | os.PathLike[str]

ARGUMENT, DEFAULT = "argument", "default"


class Configured(NamedTuple):
    """The broker as the environment or the file names it."""

    url: str | None = None
    source: str = ""  # the variable, or the path of the file
    shards: dict[str, str] | None = None  # the shard of each queue that is not in the first one
    routes: dict[str, str] | None = None  # the broker of queues and priorities that have another


class FallbackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an app does while its broker is away."""

    fallback: Fallback = "none"
    local_queues: tuple[str, ...] = ()  # whose tasks this process may run itself, with "local"
    local_concurrency: int = 4  # of these, at a time
    spool: SpoolSettings = SpoolSettings()


def load(folder: _Folder = ".", arguments: Mapping[str, Any] | None = None) -> Settings:
    """Return every setting with its source; raise ``InvalidInput`` for whatever is wrong.

    ``arguments`` go before the environment; None among them says nothing.
    """
    sources = _sources(folder)
    sources.check_file()
    given = arguments or {}
    found = {name: _value(sources, name, given.get(name)) for name in KEYS}
    whole = {name: value for name, (value, _) in found.items() if "." not in name}
    spool = {name.rpartition(".")[2]: each[0] for name, each in found.items() if "." in name}
    said = {name: source for name, (_, source) in found.items()}
    return Settings(**whole, spool=SpoolSettings(**spool), sources=said)


def configured(folder: _Folder = ".") -> Configured:
    """Return the broker as the environment or the file names it; no URL if neither does.

    Shards and routes count, whichever names the URL, and also if neither does.
    """
    sources = _sources(folder)
    sources.check_file()
    url, shards, routes = (sources.find(name) for name in ("url", "shards", "routes"))
    return Configured(
        url.value if url else None,
        url.source if url else "",
        shards.value if shards else None,
        routes.value if routes else None,
    )


def configured_ledger(folder: _Folder = ".") -> str | None:
    """Return the URL of the ledger, as the environment or the file says; None if neither does."""
    found = _sources(folder).find("ledger")
    return None if found is None else found.value


def requires_url(folder: _Folder = ".") -> bool:
    """Return whether a broker that nobody named is to be refused."""
    return bool(_value(_sources(folder), "require_url")[0])


def configured_limits(folder: _Folder = ".") -> tuple[dict[str, dict[str, dict[str, Any]]], str]:
    """Return what the file declares for queues, tenants and limiters, and where the file is."""
    sources = Sources(folder)
    return sources.limits(), sources.file


def configured_namespace(folder: _Folder = ".") -> str | None:
    """Return the namespace of URLs that say none; None if neither environment nor file says."""
    found = _sources(folder).find("namespace")
    return None if found is None else found.value


def configured_timeout(folder: _Folder = ".") -> float | None:
    """Return the seconds that a call may take; None if neither environment nor file says."""
    found = _sources(folder).find("timeout")
    return None if found is None else found.value


def configured_fallback(
    fallback: str | None = None,
    spool: _Folder | None = None,
    local_queues: Sequence[str] | None = None,
    folder: _Folder = ".",
) -> FallbackSettings:
    """Return what to do while the broker is away; arguments go before the environment.

    The settings of the spool are looked at only if there is to be one. Raises ``InvalidOption``
    for an argument that is wrong, ``InvalidInput`` for a variable or the file.
    """
    sources = _sources(folder)
    said = _value(sources, "fallback", fallback)[0]
    if said == "none":
        return FallbackSettings()
    directory = None if spool is None else os.fspath(spool)
    own = {
        name: _value(sources, f"spool.{name}", directory if name == "directory" else None)[0]
        for name in SpoolSettings.__struct_fields__
    }
    found = FallbackSettings(fallback=said, spool=SpoolSettings(**own))
    if said != "local":
        return found
    return msgspec.structs.replace(
        found,
        local_queues=_value(sources, "local_queues", local_queues)[0],
        local_concurrency=_value(sources, "local_concurrency")[0],
    )


def _sources(folder: _Folder) -> Sources:
    sources = Sources(folder)
    sources.warn_of_variables()
    return sources


def _value(sources: Sources, name: str, argument: object = None) -> tuple[Any, str]:
    """Return the value of a setting and who says so: the one rule of which goes first."""
    key = KEYS[name]
    if argument is not None:
        value = key.kind.read(argument)
        if value is None:
            shown = "…" if key.kind.is_secret else argument
            raise InvalidOption(name, shown, key.kind.rule)
        return value, ARGUMENT
    found = sources.find(name)
    return (key.default, DEFAULT) if found is None else (found.value, found.source)
