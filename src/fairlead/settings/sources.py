"""Where values come from: the environment, and a file that is read when it is first needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.model.errors import InvalidInput
from fairlead.model.safe_repr import safe_repr
from fairlead.model.setting_names import FILE
from fairlead.settings.keys import (
    COMMAND_TABLES,
    KEYS,
    LIMIT_TABLES,
    SPOOL,
    Key,
    closest,
    closest_variable,
)

_log = logging.getLogger("fairlead")
_told: set[str] = set()  # variables of this process that were warned of


class Found(NamedTuple):
    """A value, and who says so."""

    value: Any
    source: str  # a variable, or the path of the file


class Sources:
    """The environment, and the file of one folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str] = ".",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._file = Path(folder, FILE)
        self._environment = os.environ if environment is None else environment
        self._table: dict[str, Any] | None = None

    def find(self, name: str) -> Found | None:
        """Return the value of a setting; None if neither source says so.

        Nothing but this key of the file is looked at. Raises ``InvalidInput`` for a wrong value.
        """
        key = KEYS[name]
        if text := self._environment.get(key.variable, "").strip():
            return Found(_of_variable(key, text), key.variable)
        return self.find_in_file(name)

    @property
    def file(self) -> str:
        """The whole path of the file, which need not be there."""
        return str(self._file.absolute())

    def find_in_file(self, name: str) -> Found | None:
        """Return the value that the file has for a setting; None if it has none."""
        key, table = KEYS[name], self._read()
        head, _, rest = name.rpartition(".")
        if head:
            if head not in table:
                return None
            table = self._subtable(head)
        if rest not in table:
            return None
        return Found(self._checked(key, table[rest]), self.file)

    def table(self, name: str) -> dict[str, Any]:
        """Return a table of the file as it stands there; empty if there is none."""
        return self._subtable(name) if name in self._read() else {}

    def limits(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return what the file declares for queues, tenants and limiters, by name.

        Raises ``InvalidInput`` for what is no table; whoever uses it knows the options.
        """
        found = {kind: self.table(kind) for kind in LIMIT_TABLES}
        for kind, tables in found.items():
            for name, options in tables.items():
                if not isinstance(options, dict):
                    raise self._wrong(
                        f"has no table as {name} in [{kind}]; write [{kind}.{name}] and below it "
                        'options such as rate = "300/m"'
                    )
        return found

    def check_file(self) -> None:
        """Raise ``InvalidInput`` for the first key of the file that is wrong, or not known."""
        for name in KEYS:
            self.find_in_file(name)
        for name in self.unknown_keys():
            raise self.unknown_key(name)

    def unknown_keys(self) -> list[str]:
        """Return the keys of the file that Fairlead does not know."""
        table = self._read()
        below = self._subtable(SPOOL) if SPOOL in table else {}
        names = [name for name in table if name not in (SPOOL, *COMMAND_TABLES, *LIMIT_TABLES)]
        return [
            name for name in (*names, *(f"{SPOOL}.{each}" for each in below)) if name not in KEYS
        ]

    def unknown_key(self, name: str) -> InvalidInput:
        """Return the error for a key that is not known, with the closest name."""
        table, _, own = name.rpartition(".")
        names = [each.rpartition(".") for each in KEYS]
        known = sorted(end for begin, _, end in names if begin == table)
        if not table:
            known = sorted([*known, SPOOL, *COMMAND_TABLES, *LIMIT_TABLES])
        close = closest(own, known)
        hint = f"did you mean {close}?" if close else f"it may have {', '.join(known)}"
        if not table:
            hint += f" (options of commands stand in [{'] or ['.join(sorted(COMMAND_TABLES))}])"
        where = f"the key {own!r} in [{table}]" if table else f"the key {own!r}"
        return self._wrong(f"has {where}, which Fairlead does not know; {hint}")

    def mistaken_variables(self) -> dict[str, str]:
        """Return variables that look like a slip of the pen, each with the name that is meant."""
        found = ((name, closest_variable(name)) for name in sorted(self._environment))
        return {name: meant for name, meant in found if meant is not None}

    def warn_of_variables(self) -> None:
        """Log a warning for each such variable, once in a process.

        An error would be too much: orchestrators and other programs put names of their own that
        begin with ``FAIRLEAD_`` into the environment.
        """
        for name, meant in self.mistaken_variables().items():
            if name not in _told:
                _told.add(name)
                _log.warning("%s is set, which Fairlead does not know: meant is %s?", name, meant)

    def _read(self) -> dict[str, Any]:
        if self._table is None:
            self._table = self._parsed()
        return self._table

    def _parsed(self) -> dict[str, Any]:
        try:
            text = self._file.read_bytes().decode()
        except FileNotFoundError:
            return {}  # as with most programs
        except (OSError, UnicodeDecodeError) as error:
            what = f"cannot be read ({error}); make it a readable text, or remove it"
            raise self._wrong(what) from error
        import tomllib  # here: it takes long to load

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what = f'is not TOML ({error}); a line of it looks like url = "redis://host"'
            raise self._wrong(what) from None

    def _subtable(self, name: str) -> dict[str, Any]:
        found = self._read()[name]
        if not isinstance(found, dict):
            examples = {SPOOL: 'directory = "/var/lib/fairlead/spool"', "api": "port = 8800"}
            example = examples.get(name, "concurrency = 20")
            raise self._wrong(f"has no table as {name}; write [{name}] and below it {example}")
        return found

    def _checked(self, key: Key, value: Any) -> Any:
        found = key.kind.read(value)
        if found is not None:
            return found
        name, kind = key.name.rpartition(".")[2], key.kind
        if kind.is_table:
            what = f"has no table of texts as {name}; write [{name}] and below it {kind.example}"
            raise self._wrong(what)
        example = kind.example.format(name=name)
        raise self._wrong(f"has {_repeated(key, value)} as {key.name}; write {example}")

    def _wrong(self, what: str) -> InvalidInput:
        return InvalidInput(f"{self.file!r} {what}")


def _of_variable(key: Key, text: str) -> Any:
    try:
        found = key.kind.of_text(text)
    except ValueError as error:
        raise InvalidInput(f"{key.variable} {error}; write {key.kind.rule}") from None
    if found is None:
        raise InvalidInput(f"{key.variable} is {_repeated(key, text)}; make it {key.kind.rule}")
    return found


def _repeated(key: Key, value: object) -> str:
    """Return what an error says of a value: not itself, where a password may stand."""
    if not key.kind.is_secret:
        return safe_repr(value)
    is_empty = isinstance(value, str) and not value.strip()
    return "an empty text" if is_empty else type(value).__name__
