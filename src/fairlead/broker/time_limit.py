"""How long a call may take, as people say it: in code, in settings, or in a URL."""

from __future__ import annotations

from urllib.parse import unquote_plus

from fairlead.model.durations import LEAST_LIMIT, Duration, duration_rule, limit_in_seconds
from fairlead.model.errors import InvalidOption

_OPTION = "timeout="


def call_limit(timeout: Duration | None) -> float | None:
    """A time limit in seconds, checked; None: nothing was said. Text may be a bare number."""
    if timeout is None:
        return None
    limit = limit_in_seconds(timeout)
    if limit is None:
        raise InvalidOption("timeout", timeout, duration_rule(LEAST_LIMIT))
    return limit


def split_limit(url: str) -> tuple[str, float | None]:
    """A URL without its option ``timeout``, which every broker has, and what that says."""
    head, question, query = url.partition("?")
    options = query.split("&") if question else []
    found = [option for option in options if option.startswith(_OPTION)]
    if not found:
        return url, None
    if len(found) > 1:
        raise InvalidOption("timeout", len(found), "given once in a URL")
    rest = "&".join(option for option in options if option not in found)
    limit = call_limit(unquote_plus(found[0].removeprefix(_OPTION)))
    return f"{head}?{rest}" if rest else head, limit
