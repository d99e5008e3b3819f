"""Serves a few small files out of the package: from memory, revalidated by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple
from urllib.parse import quote

from fairlead.api.http.mount import Connection, Receive, Send
from fairlead.api.http.problems import MethodNotAllowed, NotFound
from fairlead.api.http.router import path_of

#: Script, style, image and requests of this origin alone; nothing inline, nothing evaluated, no
#: frame, no form that is sent. With trusted types no text can become markup in the page.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",  # kept by the browser, but asked about each time
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class _File(NamedTuple):
    data: bytes
    etag: str
    headers: Mapping[str, str]


class StaticFiles:
    """An ASGI application that answers GET and HEAD of fixed paths with files of this package."""

    def __init__(self, prefix: str, paths: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._files = {path: _read(name) for path, name in paths.items()}

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Answer one request; a socket is refused."""
        if connection["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        if connection["method"] not in ("GET", "HEAD"):
            allowed = "GET, HEAD"
            raise MethodNotAllowed(
                f"this path answers to {allowed}", rule=allowed, headers={"allow": allowed}
            )
        path = path_of(connection, self._prefix)
        found = self._files.get(path)
        if found is None:
            raise NotFound("there is no such file")
        if path == "/" and not connection["path"].endswith("/"):
            # Mounted at /base and called without the slash: the page names its files relative to
            # where it is, and they would be looked for beside /base.
            where = f"./{quote(connection['path'].rpartition('/')[2])}/"
            await _respond(connection, send, 307, {**_HEADERS, "location": where}, b"")
        else:
            await _answer(connection, send, found)


def _read(name: str) -> _File:
    data = resources.files(__package__).joinpath(name).read_bytes()
    etag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
    kind = _TYPES[name.rpartition(".")[2]]
    return _File(data, etag, {**_HEADERS, "content-type": kind, "etag": etag})


async def _answer(connection: Connection, send: Send, file: _File) -> None:
    asked = b",".join(value for name, value in connection["headers"] if name == b"if-none-match")
    # Proxies that compress weaken a tag: W/"..." is the same file.
    known = {tag.strip().removeprefix("W/") for tag in asked.decode("latin-1").split(",")}
    if file.etag in known or "*" in known:
        await _respond(connection, send, 304, file.headers, None)
    else:
        await _respond(connection, send, 200, file.headers, file.data)


async def _respond(
    connection: Connection,
    send: Send,
    status: int,
    headers: Mapping[str, str],
    data: bytes | None,
) -> None:
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    if data is not None:
        lines.append((b"content-length", str(len(data)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    body = b"" if data is None or connection["method"] == "HEAD" else data
    await send({"type": "http.response.body", "body": body})
