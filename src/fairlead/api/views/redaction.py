"""Fields of arguments and results that are not shown to anybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairlead.model.errors import InvalidOption

HIDDEN = "[redacted]"


class Redaction:
    """Hides what stands at certain paths.

    A path is names with dots between them; ``*`` is any one name or place in a list. It is looked
    for at every level: ``password`` hides each field of this name, ``card.number`` each ``number``
    in a ``card``.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        for path in paths:
            if not path or not all(path.split(".")):
                raise InvalidOption("redact", path, "names with dots between them")
        found = tuple(tuple(path.split(".")) for path in paths)
        # Most paths are not about places in a list, and lists may be long.
        in_lists = any(path[0] == "*" or path[0].isdigit() for path in found)
        self._rules = _Rules(found, in_lists)

    def hide(self, value: Any) -> Any:
        """The value without what is hidden; it is not changed itself."""
        return _hidden(value, (), self._rules) if self._rules.paths else value


_Paths = tuple[tuple[str, ...], ...]
_NESTED = (dict, list, tuple)


class _Rules(NamedTuple):
    paths: _Paths
    in_lists: bool  # whether one of them may begin at a place in a list


def _hidden(value: Any, begun: _Paths, rules: _Rules) -> Any:
    if isinstance(value, dict):
        items: Any = value.items()
        return {key: _below(str(key), each, begun, rules) for key, each in items}
    if isinstance(value, list | tuple):
        if begun or rules.in_lists:
            return [_below(str(at), each, begun, rules) for at, each in enumerate(value)]
        return [_hidden(each, (), rules) if type(each) in _NESTED else each for each in value]
    return value


def _below(name: str, value: Any, begun: _Paths, rules: _Rules) -> Any:
    """``begun`` is what is left of paths whose first names were met on the way here."""
    met = tuple(path[1:] for path in (*begun, *rules.paths) if path[0] in (name, "*"))
    if () in met:
        return HIDDEN
    return _hidden(value, met, rules)
