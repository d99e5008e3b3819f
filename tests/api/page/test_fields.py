"""The page reads what the API has: its paths are routes, and its fields are in their answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import fairlead.api.page
from fairlead.api.route_table import ROUTES

TEXT = resources.files(fairlead.api.page).joinpath("fields.js").read_text(encoding="utf-8")

#: The functions of the page that read an answer, and the route that gives it.
VIEWS = {
    "viewStats": "/stats",
    "viewQueues": "/queues",
    "viewTenants": "/tenants",
    "viewWorkers": "/workers",
    "viewDead": "/dead-letters/groups",
    "viewLimiters": "/limiters",
    "viewHealth": "/health",
}
OURS = {"rows", "examined", "map", "some", "length", "reduce", "count", "last", "values"}


def _function(name: str) -> str:
    (found,) = re.findall(rf"^function {name}\(.*?^}}", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


def _fields(kind: Any) -> Iterator[str]:
    """The names of all fields of a struct and of those within it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for name, hint in get_type_hints(kind).items():
            yield name
            yield from _fields(hint)
    for part in get_args(kind):
        yield from _fields(part)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_reads_fields_that_the_answer_has(view: str) -> None:
    (route,) = [each for each in ROUTES if (each.method, each.path) == ("GET", VIEWS[view])]
    assert route.scope == "read"
    text = _function(view)
    if "viewCounts" in text:
        text += _function("viewCounts")
    text = re.sub(r"\b(before|same|row|rows|groups|found|Object|JSON|Math)\??\.\w+", "", text)
    used = set(re.findall(r"(?<![.\w])[a-z]+\.(\w+)", text)) | set(re.findall(r"\)\.(\w+)", text))
    used |= set(re.findall(r"sum\(\"(\w+)\"\)", text))
    assert used - OURS
    assert used - OURS <= set(_fields(route.answer))


def test_each_path_that_is_read_is_a_route() -> None:
    paths = {f"/{path}" for path in re.findall(r"path: \(\) => \"([\w-]+)", TEXT)}
    paths |= {f"/{path}" for path in re.findall(r"return `([\w/-]+)[?$]", TEXT)}
    assert paths == set(VIEWS.values())
