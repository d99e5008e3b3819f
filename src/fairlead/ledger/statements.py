"""The named statements in ``ledger/sql``: a line ``-- name: NAME``, and the statement below it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_OPTIONAL = re.compile(r"-- @(\w+)$")
_COMMENT = re.compile(r"^--")
_PARAMETER = re.compile(r"%\((\w+)\)[sb]")  # b: in the binary format
_WRITES = re.compile(r"\b(insert into|update|delete from)\b")


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement, and what is known of it without a server."""

    name: str
    text: str
    parameters: frozenset[str]
    writes: bool  # so a lost connection leaves doubt

    @property
    def is_prepared(self) -> bool:
        """Whether one plan is good for all parameters, so that the server may keep it."""
        return "-- @" not in self.text

    def without(self, parameters: Mapping[str, Any]) -> str:
        """Return the text without the optional lines whose parameter is None or missing.

        Such a line ends with ``-- @name``. The planner then sees only what was asked for.
        """
        kept = []
        for line in self.text.splitlines():
            optional = _OPTIONAL.search(line)
            if optional is None:
                kept.append(line)
            elif parameters.get(optional[1]) is not None:
                kept.append(line[: optional.start()].rstrip())
        return "\n".join(kept)


def statement(name: str) -> Statement:
    """Return the statement of this name; a KeyError names one that does not exist."""
    return statements()[name]


@cache
def statements() -> dict[str, Statement]:
    """Return all statements by name."""
    from importlib.resources import files  # here: it takes long to load

    found: dict[str, Statement] = {}
    for file in sorted(files("fairlead.ledger").joinpath("sql").iterdir(), key=lambda x: x.name):
        if file.name.endswith(".sql"):
            for each in _parsed(file.read_text(encoding="utf-8")):
                if each.name in found:
                    raise ValueError(f"there are two statements {each.name!r} in ledger/sql")
                found[each.name] = each
    return found


def _parsed(text: str) -> list[Statement]:
    _, *parts = _NAME.split(text)
    return [_made(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def _made(name: str, body: str) -> Statement:
    lines = [line for line in body.strip().splitlines() if not _COMMENT.match(line)]
    text = "\n".join(lines).strip().removesuffix(";")
    return Statement(
        name=name,
        text=text,
        parameters=frozenset(_PARAMETER.findall(text)),
        writes=_WRITES.search(text) is not None,
    )
