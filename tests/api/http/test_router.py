"""From a path to a route."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairlead.api.http.problems import MethodNotAllowed
from fairlead.api.http.router import Router, path_of, segments_of

ROUTER = Router(
    [
        ("/tasks", "GET", "list"),
        ("/tasks", "POST", "submit"),
        ("/tasks/batch", "POST", "batch"),
        ("/tasks/{id}", "GET", "show"),
        ("/tasks/{id}/cancel", "POST", "cancel"),
        ("/dead/groups", "GET", "groups"),
        ("/dead/{id}/x", "GET", "x"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "tasks", ("list", {})),
        ("POST", "tasks/batch", ("batch", {})),
        ("GET", "tasks/a", ("show", {"id": "a"})),
        ("POST", "tasks/batch/cancel", ("cancel", {"id": "batch"})),
        ("GET", "dead/groups/x", ("x", {"id": "groups"})),
        ("GET", "tasks//", None),
        ("GET", "tasks/{", ("show", {"id": "{"})),
        ("GET", "{", None),
        ("GET", "/", None),
        ("GET", "", None),
    ],
)
def test_fixed_segments_go_before_names(method: str, path: str, found: Any) -> None:
    assert ROUTER.find(method, path.split("/"))[0] == found


def test_another_method_is_told_which_ones_there_are() -> None:
    found, problem = ROUTER.find("GET", ["tasks", "batch"])
    assert found is None
    assert isinstance(problem, MethodNotAllowed)
    assert problem.headers == {"allow": "POST"}


def test_a_route_stands_in_the_table_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Router([("/a/{x}", "GET", 1), ("/a/{y}", "GET", 2)])


@pytest.mark.parametrize(
    ("scope", "path", "segments"),
    [
        ({"path": "/a/b", "raw_path": b"/a/b"}, "/a/b", ["a", "b"]),
        ({"path": "/a/b/c", "raw_path": b"/a/b%2Fc"}, "/a/b/c", ["a", "b/c"]),
        (
            {"path": "/r/a/b/c", "raw_path": b"/r/a/b%2fc", "root_path": "/r"},
            "/a/b/c",
            ["a", "b/c"],
        ),
        # taken off in front by a framework that does not tell
        ({"path": "/a/b/c", "raw_path": b"/r/a/b%2Fc"}, "/a/b/c", ["a", "b/c"]),
        # and that adds a slash (Litestar)
        ({"path": "/a/b/c/", "raw_path": b"/r/a/b%2Fc?x=/"}, "/a/b/c", ["a", "b/c"]),
        ({"path": "/a/b/", "raw_path": b"/r/a/b"}, "/a/b", ["a", "b"]),
        ({"path": "/a/b/", "raw_path": b"/a/b/"}, "/a/b/", ["a", "b", ""]),
        ({"path": "/a/%", "raw_path": b"/a/%25"}, "/a/%", ["a", "%"]),
        ({"path": "/a/b"}, "/a/b", ["a", "b"]),
        ({"path": "/r", "root_path": "/r"}, "/", [""]),
        ({"path": "/rx", "root_path": "/r"}, "/rx", ["rx"]),
    ],
)
def test_a_segment_may_hold_a_slash(scope: Any, path: str, segments: list[str]) -> None:
    assert path_of(scope, "") == path
    assert segments_of(scope, path) == segments


def test_a_path_of_many_slashes_holds_nobody_up() -> None:
    slashes = "/" * 30_000  # as many as the head of a request may have; before any token is seen
    path, raw = f"/api/v1{slashes}A", f"/api/v1{slashes}%41".encode()
    began = time.process_time()
    assert segments_of({"path": path, "raw_path": raw}, path) == path[1:].split("/")
    assert time.process_time() - began < 1.0  # it took a minute
