"""Reads the body of a request: no more than its limit, and not for longer than it keeps coming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

from fairlead.api.http.mount import Receive
from fairlead.api.http.problems import BadRequest, BodyTooLarge, RequestTimeout

_TOTAL = 6  # a body may take in all so many times as long as it may be silent


async def whole(receive: Receive, limit: int, idle: float) -> bytes:
    """The whole body."""
    message = await _next(receive, idle)
    data: bytes = message.get("body", b"")
    if len(data) > limit:
        raise _too_large(limit)
    if not message.get("more_body", False):
        return data
    parts, size = [data], len(data)
    try:
        async with asyncio.timeout(idle * _TOTAL):
            while message.get("more_body", False):
                message = await _next(receive, idle)
                data = message.get("body", b"")
                size += len(data)
                if size > limit:
                    raise _too_large(limit)
                parts.append(data)
    except TimeoutError:
        raise _too_slow(idle * _TOTAL) from None
    return b"".join(parts)


async def pieces(receive: Receive, idle: float) -> AsyncIterator[bytes]:
    """The body as it comes; whoever reads it bounds what is kept of it."""
    more = True
    while more:
        message = await _next(receive, idle)
        data: bytes = message.get("body", b"")
        if data:
            yield data
        more = message.get("more_body", False)


async def _next(receive: Receive, idle: float) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(idle):
            message = await receive()
    except TimeoutError:
        raise _too_slow(idle) from None
    if message["type"] == "http.disconnect":
        raise BadRequest("the connection ended before the body did", field="body")
    return message


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is over {limit} bytes", field="body", rule=f"at most {limit} bytes"
    )


def _too_slow(seconds: float) -> RequestTimeout:
    return RequestTimeout(f"the body did not come within {seconds:g} s", field="body")
