"""What ``create_queue`` is told: its own few keys, three variables, and then our settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any, Literal

import msgspec

from fairlead.model.durations import LEAST_LIMIT, duration_rule, limit_in_seconds
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.priorities import levels_of
from fairlead.settings.keys import closest
from fairlead.settings.sources import Sources

_TIMEOUT = 2.0  # seconds that the server has for its first answer
_URL = "redis://localhost:6379/0"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

_KEYS = (
    "priorities",
    "strict_priorities",
    "max_in_memory",
    "warn_depth",
    "use_redis",
    "redis_url",
    "redis_health_check_timeout",
    # Understood, and without a meaning: all keys of ours begin with a prefix of their own.
    "redis_ready_key",
    "redis_scheduled_key",
)


class QueueChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which broker an app is to have, and the limits of its queue."""

    use_redis: bool = False
    url: str | None = None  # None: as the settings of Fairlead say
    timeout: float = _TIMEOUT
    priorities: dict[str, int] = {}  # the number of each label
    strict_priorities: bool = False
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
        priorities=_priorities(said),
        strict_priorities=_strict(said),
        max_in_memory=_count(said, "max_in_memory"),
        warn_depth=_count(said, "warn_depth"),
        fallback="spool" if sources.find("fallback") is None else None,
    )


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


def _priorities(said: dict[str, Any]) -> dict[str, int]:
    """Return the number of each label, which Fairlead can take."""
    numbers = said.get("priorities") or {}
    levels_of(numbers)
    return dict(numbers)


def _strict(said: dict[str, Any]) -> bool:
    value = said.get("strict_priorities", False)
    if not isinstance(value, bool):
        raise InvalidOption("strict_priorities", value, "true or false")
    return value


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
