"""The settings by name: the variable of each, what it may be, and what holds if none says so."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal

import msgspec

from fairlead.settings import values
from fairlead.settings.values import Kind

SPOOL = "spool"  # the table of the file

#: Tables of the file that commands read, and how their variables begin.
COMMAND_TABLES = {"api": "FAIRLEAD_HTTP_", "worker": "FAIRLEAD_WORKER_"}

#: Tables of the file that declare limits: of each a table by name, such as [queues.mail].
LIMIT_TABLES = ("queues", "tenants", "limiters")

#: What is no setting of an app, but a name that is known: of a process, of the command line, of a
#: test of ours that stops a program at a given place.
OTHER_VARIABLES = ("FAIRLEAD_DEBUG", "FAIRLEAD_FAULT", "FAIRLEAD_HOST", "FAIRLEAD_RUN_DIR")

_PREFIX = "FAIRLEAD_"
_CLOSE = 0.7  # how much of a name must be right before another is taken to be meant

#: What a client does while the broker is away: raise, keep tasks on disk, or run them as well.
Fallback = Literal["none", "spool", "local"]


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process keeps tasks and outcomes while the broker is away, and how many."""

    directory: str = ".fairlead/spool"
    max_bytes: int = 256 * 1024**2
    max_count: int = 1_000_000
    max_age: float = 7 * 86_400.0  # seconds


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, and where each came from."""

    url: str | None = None
    ledger: str | None = None
    namespace: str | None = None  # of the keys, for every URL that says none; None: the usual ones
    timeout: float | None = None  # None: that of the URL, or ten seconds
    routes: dict[str, str] = {}
    shards: dict[str, str] = {}
    require_url: bool = False
    fallback: Fallback = "none"
    local_queues: tuple[str, ...] = ()
    local_concurrency: int = 4
    spool: SpoolSettings = SpoolSettings()
    sources: dict[str, str] = {}  # by name: argument, a variable, the path of the file, default


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    name: str  # with a dot: in a table of the file
    kind: Kind
    variable: str

    @property
    def default(self) -> Any:
        """What holds if none says so."""
        table, _, name = self.name.rpartition(".")
        return getattr(Settings().spool if table else Settings(), name)


def _key(name: str, kind: Kind, variable: str = "") -> tuple[str, Key]:
    made = variable or _PREFIX + name.upper().replace(".", "_")
    return name, Key(name=name, kind=kind, variable=made)


KEYS: dict[str, Key] = dict(
    (
        _key("url", values.url("redis://host")),
        _key("ledger", values.url("postgresql://host/database")),
        _key("namespace", values.namespace),
        _key("timeout", values.duration),
        _key(
            "routes", values.table('"priority:low" = "redis://host"', "priority:low=redis://bulk")
        ),
        _key("shards", values.table('queue = "shard"', "queue=shard")),
        _key("require_url", values.flag),
        _key("fallback", values.fallback),
        _key("local_queues", values.queues),
        _key("local_concurrency", values.count),
        _key("spool.directory", values.path, "FAIRLEAD_SPOOL"),
        _key("spool.max_bytes", values.size),
        _key("spool.max_count", values.count),
        _key("spool.max_age", values.duration),
    )
)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most likely meant, or None."""
    names = list(known)
    found = get_close_matches(name, names, n=1, cutoff=_CLOSE)
    # Two letters in the wrong order are much of a short name.
    swapped = (each for each in names if sorted(each) == sorted(name))
    return found[0] if found else next(swapped, None)


def closest_variable(variable: str) -> str | None:
    """Return the variable that is most likely meant by one that is not known, or None.

    Only what stands behind ``FAIRLEAD_`` is compared: that much is the same in all of them.
    """
    known = [*(key.variable for key in KEYS.values()), *OTHER_VARIABLES]
    if not variable.startswith(_PREFIX) or variable in known:
        return None
    if variable.startswith(tuple(COMMAND_TABLES.values())):  # a command knows its own
        return None
    found = closest(variable.removeprefix(_PREFIX), (each.removeprefix(_PREFIX) for each in known))
    return None if found is None else _PREFIX + found
