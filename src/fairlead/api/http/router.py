"""Finds the route of a path. Names in a path may hold a slash, if it is written as %2F."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from fairlead.api.http.mount import Connection
from fairlead.api.http.problems import BadRequest, MethodNotAllowed, Problem

_Node = dict[str, Any]  # segment -> node; "{" -> (name, node); "/" -> {method: route}


T = TypeVar("T")


class Router(Generic[T]):
    """A tree of segments; a fixed segment goes before one that has a name."""

    def __init__(self, routes: Iterable[tuple[str, str, T]]) -> None:
        """``routes``: path, method, and what is to be found."""
        self._root: _Node = {}
        for path, method, item in routes:
            self._add(path, method, item)

    def _add(self, path: str, method: str, item: T) -> None:
        node = self._root
        names: list[str] = []
        for segment in path.strip("/").split("/"):
            key = "{" if segment.startswith("{") else segment
            if key == "{":
                names.append(segment[1:-1])
            node = node.setdefault(key, {})
        methods = node.setdefault("/", {})
        if method in methods:
            raise ValueError(f"{method} {path} is in the table twice")
        methods[method] = item, tuple(names)

    def find(
        self, method: str, segments: list[str]
    ) -> tuple[tuple[T, dict[str, str]] | None, Problem | None]:
        """What stands at a path, and the parts that it names; or why there is nothing."""
        taken: list[str] = []
        methods = _methods(self._root, segments, 0, taken)
        if methods is None:
            return None, None
        found = methods.get(method)
        if found is None:
            allowed = ", ".join(sorted(methods))
            detail = f"this path answers to {allowed}"
            return None, MethodNotAllowed(detail, rule=allowed, headers={"allow": allowed})
        item, names = found
        return (item, dict(zip(names, taken, strict=True))), None


def _methods(node: _Node, segments: list[str], at: int, taken: list[str]) -> Any:
    """What stands behind the segments; ``taken`` gets those that have a name in the tree."""
    if at == len(segments):
        return node.get("/")
    segment = segments[at]
    below = node.get(segment) if segment not in ("{", "/") else None
    found = None if below is None else _methods(below, segments, at + 1, taken)
    if found is None and segment and "{" in node:
        taken.append(segment)
        found = _methods(node["{"], segments, at + 1, taken)
        if found is None:
            taken.pop()
    return found


def path_of(connection: Connection, prefix: str) -> str:
    """The path below wherever the API is mounted, decoded."""
    path: str = connection["path"]
    for base in (connection.get("root_path", ""), prefix):
        if base and path.startswith(base) and path[len(base) : len(base) + 1] in ("", "/"):
            path = path[len(base) :]
    # Litestar adds a slash to the path of what it mounts, which the caller did not write.
    raw = connection.get("raw_path") or b"/"
    if path.endswith("/") and not raw.partition(b"?")[0].endswith(b"/"):
        path = path[:-1]
    return path or "/"


def segments_of(connection: Connection, path: str) -> list[str]:
    """The segments of the path, each decoded by itself."""
    raw = connection.get("raw_path") or b""
    if b"%" not in raw:
        return path[1:].split("/")
    try:
        encoded = raw.decode("ascii").partition("?")[0].split("/")
        # From the right: whoever mounts the API may have taken something off in front. In one
        # pass, because paths of strangers come here too, and may have thousands of slashes.
        segments: list[str] = []
        size = 0
        while encoded and size < len(path):
            segments.append(unquote(encoded.pop(), errors="strict"))
            size += len(segments[-1]) + 1
    except UnicodeError:
        raise BadRequest("the path is not UTF-8", field="path") from None
    segments.reverse()
    return segments if "/".join(segments) == path[1:] else path[1:].split("/")
