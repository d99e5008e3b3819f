"""Namespaces: several installations of Fairlead on one server or cluster, which do not meet.

Each has keys of its own, and so queues, tenants, workers, tokens and events of its own. The name
stands in the URL (``?namespace=shop``), or in the settings for every URL that says none.
"""

from __future__ import annotations

from urllib.parse import unquote

from fairlead.model.errors import InvalidOption
from fairlead.model.names import check_namespace

_OPTION = "namespace="


def split_namespace(url: str) -> tuple[str, str]:
    """Return a URL without its option ``namespace``, and what that says; empty: nothing."""
    head, _, query = url.partition("?")
    options = query.split("&") if query else []
    said = [each.removeprefix(_OPTION) for each in options if each.startswith(_OPTION)]
    if not said:
        return url, ""
    if len(said) > 1:
        raise InvalidOption("namespace", len(said), "given once in a URL")
    rest = "&".join(each for each in options if not each.startswith(_OPTION))
    return f"{head}?{rest}" if rest else head, check_namespace(unquote(said[0]))


def with_namespace(url: str, name: str | None) -> str:
    """Return a URL that says this namespace, unless it says one itself, or lives in memory."""
    if not name or url.lower().startswith("memory:") or split_namespace(url)[1]:
        return url
    return f"{url}{'&' if '?' in url else '?'}{_OPTION}{check_namespace(name)}"
