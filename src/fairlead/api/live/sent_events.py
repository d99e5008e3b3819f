"""``GET /events``: a stream of server-sent events, for clients that only read."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from fairlead.api.auth.access import bearer
from fairlead.api.http.input import query_decoder_of, text_of
from fairlead.api.http.mount import ACCESS, Connection, Receive, Send
from fairlead.api.http.problems import Draining, MethodNotAllowed, TooManyRequests
from fairlead.api.http.route import Access
from fairlead.api.live.connection import first_of, recheck
from fairlead.api.live.hub import Hub
from fairlead.api.live.selection import Selection, check_place, filter_of
from fairlead.api.live.subscription import Ended, Subscription
from fairlead.api.service import Service, headers_of
from fairlead.runtime.randomness import generator

MAX_CLIENTS = 2_000  # of one process, sockets among them
_HEARTBEAT = 15.0  # seconds without an event after which a comment is sent
_RETRY = 2_000  # milliseconds after which a client comes again when the connection is lost
_LAST_WORDS = 30.0  # seconds in which a slow client may still read why it was dropped
_DRAINED = 2.0  # the same for a server that stops
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
)


class _Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    types: str | None = None  # separated by commas
    queue: str | None = None
    tenant: str | None = None
    task: str | None = None
    name: str | None = None
    after: str | None = None  # what the header Last-Event-ID says goes before it


_decode = query_decoder_of(_Query)


class SentEvents:
    """The ASGI application; one for a server."""

    def __init__(self, service: Service, hub: Hub) -> None:
        self._service = service
        self._hub = hub

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Answer one request, until the client goes or is told to."""
        if connection["type"] != "http" or connection["method"] != "GET":
            raise MethodNotAllowed("this is only read", headers={"allow": "GET"})
        if self._service.draining:
            raise Draining("this server is about to stop", retry_after=1.0)
        if self._hub.clients >= MAX_CLIENTS:
            raise TooManyRequests("this server has no room for more streams", retry_after=5.0)
        access: Access = connection[ACCESS]
        headers = headers_of(connection)
        query: _Query = _decode(connection["query_string"])
        wanted = filter_of(
            Selection(
                types=None if query.types is None else query.types.split(","),
                queue=query.queue,
                tenant=query.tenant,
                task=query.task,
                name=query.name,
            ),
            access,
        )
        after = check_place(text_of(headers, b"last-event-id") or query.after)
        subscription = await self._hub.join(frozenset((wanted,)), after)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await send(_body(b"retry: %d\n\n" % _RETRY))
            token = bearer(headers)
            await self._stream(subscription, after, connection, receive, send, token, access)
        finally:
            self._hub.leave(subscription)

    async def _stream(
        self,
        subscription: Subscription,
        after: str | None,
        connection: Connection,
        receive: Receive,
        send: Send,
        token: str | None,
        access: Access,
    ) -> None:
        service = self._service
        feeding = asyncio.ensure_future(self._hub.feed(subscription, after))
        try:
            why = await first_of(
                {
                    "gone": _gone(receive),
                    "drained": service.drained.wait(),
                    "over": subscription.over.wait(),
                    "revoked": recheck(service, connection, token, access),
                    "sent": _hand_on(subscription, send),
                }
            )
        except Ended as ended:
            why = ended.reason
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        if why == "gone":
            return
        ends = {"reason": subscription.ended or why, "id": subscription.resume}
        # Not all in one moment: when a server stops, all of its clients go to the others.
        again = generator.randint(_RETRY // 4, _RETRY)
        said = msgspec.json.encode({"type": "stream.end", "data": ends})
        last = b"retry: %d\nevent: stream.end\ndata: %s\n\n" % (again, said)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAINED if service.draining else _LAST_WORDS):
                await send({"type": "http.response.body", "body": last})


async def _hand_on(subscription: Subscription, send: Send) -> None:
    while True:
        events = await subscription.take(_HEARTBEAT)
        await send(_body(b":\n\n" if events is None else events.sent_events))
        if events is not None:
            subscription.sent(events.last_id)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _body(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}
