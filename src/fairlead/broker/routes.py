"""Which tasks go to another server, as a table and as a URL says it.

A route leads from a queue (``queue:reports``) or from a priority (``priority:low``, whatever the
queue) to the URL of a broker. ``drain:NAME`` names a server where tasks of former routes still
wait. Routes stand in the URL of the broker (``redis://main?routes=...``) because all processes of a
deployment must say the same, and the URL is what they hand to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

import msgspec

from fairlead.model.errors import InvalidName, InvalidOption
from fairlead.model.message import LEVEL_NAMES
from fairlead.model.names import check_queue

_OPTION = "routes"
_RULE = 'a table such as {"queue:reports": "redis://bulk", "priority:low": "redis://bulk"}'
_KEYS = "queue:NAME, priority:LEVEL or drain:NAME"


class Route(msgspec.Struct, frozen=True):
    """One line of the table, checked."""

    kind: str  # queue, priority, or drain
    name: str
    url: str  # may hold a password: never shown

    @property
    def key(self) -> str:
        """The route as it stands in the table."""
        return f"{self.kind}:{self.name}"


def check_routes(routes: object) -> list[Route]:
    """Return the routes of a table, sorted; raise ``InvalidOption`` that names what is wrong."""
    if not isinstance(routes, Mapping):
        raise InvalidOption(_OPTION, type(routes).__name__, _RULE)
    return [_checked(key, routes[key]) for key in sorted(routes, key=str)]


def split_routes(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without its routes, and the routes."""
    base, _, query = url.partition("?")
    options = query.split("&") if query else []
    said = [each.partition("=")[2] for each in options if each.partition("=")[0] == _OPTION]
    if not said:
        return url, {}
    if len(said) > 1:
        raise InvalidOption(_OPTION, "…", "given once in a URL")
    routes: dict[str, str] = {}
    for item in unquote(said[0]).split():
        key, _, target = item.partition("=")
        if key in routes:
            raise InvalidOption(_OPTION, key, "given once")
        routes[key] = target
    rest = "&".join(each for each in options if each.partition("=")[0] != _OPTION)
    return (f"{base}?{rest}" if rest else base), routes


def with_routes(url: str, routes: Mapping[str, str]) -> str:
    """Return the URL that says all of it."""
    checked = check_routes(routes)
    if not checked:
        return url
    if split_routes(url)[1]:
        raise InvalidOption(_OPTION, list(routes), "left out, or left out of the URL")
    text = quote(" ".join(f"{route.key}={route.url}" for route in checked), safe="")
    return f"{url}{'&' if '?' in url else '?'}{_OPTION}={text}"


def shown_url(url: str) -> str:
    """Return as much of a URL as an error may repeat: no part that may hold a secret."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        return "…"
    return f"{scheme}://…" if "@" in url or "?" in url else url


def _checked(key: object, url: object) -> Route:
    kind, colon, name = key.partition(":") if isinstance(key, str) else ("", "", "")
    if not colon or kind not in ("queue", "priority", "drain"):
        raise InvalidOption("route", key, f"one of {_KEYS}")
    if kind == "priority":
        if name not in LEVEL_NAMES:
            raise InvalidOption("route", key, f"priority: and one of {', '.join(LEVEL_NAMES)}")
    else:
        try:
            check_queue(name)
        except InvalidName as error:
            raise InvalidOption("route", key, f"one of {_KEYS} ({error})") from None
    if not isinstance(url, str) or "://" not in url or url.split() != [url]:
        # Not the value itself: what stands in the place of a URL may hold a password.
        raise InvalidOption(f"route {key}", "…", "the URL of a broker, like redis://bulk")
    return Route(kind, name, url)
