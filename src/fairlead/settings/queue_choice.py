"""What ``create_queue`` is told: its own few keys, three variables, and then our settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import combinations
from types import FunctionType, ModuleType
from typing import Any, Literal

import msgspec

from fairlead.model.durations import LEAST_LIMIT, duration_rule, limit_in_seconds
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.message import LEVELS
from fairlead.settings.keys import closest
from fairlead.settings.sources import Sources

__all__ = ("QueueChoice", "levels_of", "queue_choice")

_TIMEOUT = 2.0  # seconds that the server has for its first answer
_URL = "redis://localhost:6379/0"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

_KEYS = (
    "priorities",
    "max_in_memory",
    "warn_depth",
    "use_redis",
    "redis_url",
    "redis_health_check_timeout",
    # Understood, and without a meaning: all keys of ours begin with a prefix of their own.
    "redis_ready_key",
    "redis_scheduled_key",
)

#: By how many different numbers there are, the levels that are taken if no label decides.
_USUAL = {1: (2,), 2: (1, 3), 3: (1, 2, 3), 4: (0, 1, 2, 3)}


class QueueChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which broker an app is to have, and the limits of its queue."""

    use_redis: bool = False
    url: str | None = None  # None: as the settings of Fairlead say
    timeout: float = _TIMEOUT
    priorities: dict[str | int, str] = {}  # the level of each label and number
    max_in_memory: int | None = None
    warn_depth: int | None = None
    fallback: Literal["spool"] | None = None  # None: as the settings of Fairlead say


def queue_choice(settings: object = None, folder: str | os.PathLike[str] = ".") -> QueueChoice:
    """Return what the program says, else the environment, else the settings of Fairlead.

    ``settings`` is a mapping, or an object with attributes of these names. Raises
    ``InvalidInput`` for a name that is not known, ``InvalidOption`` for a wrong value.
    """
    said = _said(settings)
    for name in said:
        if name not in _KEYS:
            close = closest(name, _KEYS)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(_KEYS)}"
            raise InvalidInput(f"create_queue has no setting {name!r}; {hint}")
    sources = Sources(folder)
    ours = sources.find("url")
    wanted = _flag(said)
    if wanted is None:  # a broker that is named is wanted, wherever it is named
        wanted = ours is not None and not ours.value.lower().startswith("memory:")
    url = _text(said, "redis_url") or os.environ.get("REDIS_URL", "").strip() or None
    return QueueChoice(
        use_redis=wanted,
        url=url if url or ours else _URL,
        timeout=_timeout(said),
        priorities=levels_of(said.get("priorities") or {}),
        max_in_memory=_count(said, "max_in_memory"),
        warn_depth=_count(said, "warn_depth"),
        fallback="spool" if sources.find("fallback") is None else None,
    )


def levels_of(numbers: object) -> dict[str | int, str]:
    """Return the level of each label and of each number: the smaller, the earlier.

    Labels of one number share a level. Where there are fewer numbers than levels, labels that are
    names of levels keep theirs, as far as the order allows. Raises ``InvalidOption`` for more
    different numbers than levels.
    """
    if not isinstance(numbers, Mapping):
        raise InvalidOption("priorities", numbers, "a number for each label")
    for label, number in numbers.items():
        if not isinstance(label, str) or type(number) is not int:
            raise InvalidOption(f"priorities[{label!r}]", number, "a whole number for a label")
    ranks = sorted(set(numbers.values()))
    if not ranks:
        return {}
    if len(ranks) > len(LEVELS):
        rule = (
            f"at most {len(LEVELS)} different numbers, one for each of {', '.join(LEVELS)}: "
            "give labels that may share a level the same number"
        )
        raise InvalidOption("priorities", f"{len(ranks)} different numbers", rule)
    # What is critical starves the rest, so it takes a fourth number, or the name itself.
    first = 0 if len(ranks) == len(LEVELS) or LEVELS[0] in numbers else 1
    usual = _USUAL[len(ranks)]

    def fit(levels: tuple[int, ...]) -> tuple[int, bool]:
        at = dict(zip(ranks, levels, strict=True))
        kept = sum(LEVELS[at[number]] == label for label, number in numbers.items())
        return kept, levels == usual

    best = max(combinations(range(first, len(LEVELS)), len(ranks)), key=fit)
    level = {number: LEVELS[each] for number, each in zip(ranks, best, strict=True)}
    return {**level, **{label: level[number] for label, number in numbers.items()}}


def _said(settings: object) -> dict[str, Any]:
    """Return what is said by name; None among the values says nothing."""
    if settings is None:
        return {}
    if isinstance(settings, Mapping):
        found = dict(settings)
    else:
        found = {name: getattr(settings, name) for name in _names(settings)}
    return {name: value for name, value in found.items() if value is not None}


def _names(settings: object) -> Iterable[str]:
    """Return the names of an object's data: its declared fields, or its plain attributes."""
    if isinstance(settings, ModuleType):  # which holds other things as well
        return [name for name in _KEYS if hasattr(settings, name)]
    kind = settings if isinstance(settings, type) else type(settings)
    for fields in ("__struct_fields__", "__dataclass_fields__", "model_fields", "_fields"):
        if found := getattr(kind, fields, None):
            return list(found)
    names = dict.fromkeys(getattr(settings, "__dict__", ()))
    for each in kind.__mro__[:-1]:
        names |= dict.fromkeys(vars(each))
    methods = (FunctionType, classmethod, staticmethod, property, type)
    return [
        name
        for name in names
        if not name.startswith("_")
        and not isinstance(getattr(kind, name, None), methods)
        and not callable(getattr(settings, name))
    ]


def _flag(said: dict[str, Any]) -> bool | None:
    if isinstance(value := said.get("use_redis"), bool):
        return value
    name, text = "use_redis", said.get("use_redis")
    if text is None:
        name, text = "USE_REDIS_QUEUE", os.environ.get("USE_REDIS_QUEUE", "").strip()
        if not text:
            return None
    if not isinstance(text, str) or text.lower() not in _YES + _NO:
        raise InvalidOption(name, text, "true or false")
    return text.lower() in _YES


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidOption(name, type(value).__name__, "text")
    return None if value is None else value.strip()


def _timeout(said: dict[str, Any]) -> float:
    name, value = "redis_health_check_timeout", said.get("redis_health_check_timeout")
    if value is None:
        name, value = "REDIS_HEALTH_CHECK_TIMEOUT", os.environ.get("REDIS_HEALTH_CHECK_TIMEOUT")
        if not (value or "").strip():
            return _TIMEOUT
    limit = limit_in_seconds(value)
    if limit is None:
        raise InvalidOption(name, value, duration_rule(LEAST_LIMIT))
    return limit


def _count(said: dict[str, Any], name: str) -> int | None:
    value = said.get(name)
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidOption(name, value, "a whole number, 0 or more")
    return value
