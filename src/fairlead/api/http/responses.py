"""Writes answers: values as JSON, streams, problems; each with the headers that keep it safe."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from fairlead.api.http.mount import Connection, Send
from fairlead.api.http.problems import Problem
from fairlead.api.http.route import Reply, Route

#: In every answer, unless it has a header of that name itself. The page has a policy of its own.
SECURITY: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

encode = msgspec.json.Encoder().encode


async def send_value(send: Send, route: Route, value: Any) -> None:
    """Send what a handler returned."""
    if isinstance(value, Reply):
        if value.stream is not None:
            await _send_stream(send, value.status, value.stream, value.headers, value.media_type)
            return
        data = b"" if value.status == 204 else encode(value.value)
        await send_data(send, value.status, data, value.headers, value.media_type.encode())
    elif value is None and route.answer is None:
        await send_data(send, 204, b"")
    else:
        await send_data(send, route.status, encode(value))


async def send_problem(send: Send, problem: Problem) -> None:
    """Send a problem document."""
    data = encode(problem.body)
    await send_data(send, problem.body.status, data, problem.headers, b"application/problem+json")


async def send_data(
    send: Send,
    status: int,
    data: bytes,
    headers: Mapping[str, str] | None = None,
    media_type: bytes = b"application/json",
) -> None:
    """Send an answer that is there as a whole."""
    lines = [*SECURITY, (b"content-length", b"%d" % len(data))]
    if data:
        lines.append((b"content-type", media_type))
    if headers:
        lines += _lines(headers)
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": data})


async def _send_stream(
    send: Send,
    status: int,
    stream: AsyncGenerator[bytes, None],
    headers: Mapping[str, str],
    media_type: str,
) -> None:
    lines = [*SECURITY, (b"content-type", media_type.encode()), *_lines(headers)]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    async with aclosing(stream):  # however it ends: what it has to do at its end is done now
        async for part in stream:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def guarded(connection: Connection, send: Send) -> Send:
    """``send`` for a mount: puts the headers in that it does not set itself."""
    if connection["type"] != "http":
        return send

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            lines = list(message.get("headers", ()))
            named = {name.lower() for name, _ in lines}
            lines += [line for line in SECURITY if line[0] not in named]
            message = {**message, "headers": lines}
        await send(message)

    return sending
