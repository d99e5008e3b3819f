"""``/ws``: a socket whose client says what it wants, and may change it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Literal

import msgspec

from fairlead.api.auth.access import bearer, require
from fairlead.api.http.input import decoder_of
from fairlead.api.http.mount import Connection, Receive, Send
from fairlead.api.http.problems import (
    Draining,
    Forbidden,
    Invalid,
    Problem,
    TooManyRequests,
    Unauthorized,
    problem_of,
)
from fairlead.api.http.responses import encode
from fairlead.api.http.route import Access
from fairlead.api.live.connection import first_of, recheck
from fairlead.api.live.encoded_events import EventBatch
from fairlead.api.live.hub import Hub
from fairlead.api.live.selection import Selection, check_place, filter_of
from fairlead.api.live.sent_events import MAX_CLIENTS
from fairlead.api.live.subscription import Ended, Subscription
from fairlead.api.service import Service, headers_of
from fairlead.client.event_info import EventFilter
from fairlead.model.errors import BrokerError

PROTOCOL = "fairlead.v1"
_BEARER = "fairlead.bearer."  # before a token in the place of a subprotocol

# Close codes: RFC 6455 and its registry; from 4000 on our own.
_POLICY, _TOO_BIG, _RESTART, _LATER = 1008, 1009, 1012, 1013
_SLOW, _UNAUTHORIZED, _FORBIDDEN, _LATE = 4008, 4401, 4403, 4408
_CODES = {"slow": _SLOW, "drained": _RESTART, "closed": _LATER, "revoked": _UNAUTHORIZED}

_MAX_FRAME = 16 * 1024  # bytes of a message of a client
_LONGEST_REASON = 123  # bytes, by RFC 6455
_MOST_BAD = 5  # messages that cannot be understood
_MOST_FILTERS = 20  # of one socket
_MOST_STRANGERS = 200  # sockets that have not said their token yet
_AUTH = 5.0  # seconds for the first message, if the token comes in it
_IDLE = 60.0  # seconds without a subscription
_HEARTBEAT = 20.0  # seconds without an event after which there is a ping
_LAST_WORDS = 30.0  # seconds in which a slow client may still read why it was dropped
_YIELD = 50  # frames after which others have their turn


class _Auth(msgspec.Struct, tag="auth", forbid_unknown_fields=True):
    token: str


class _Subscribe(Selection, tag="subscribe", kw_only=True, forbid_unknown_fields=True):
    after: str | None = None  # the id of the last event that was seen
    batch: bool = False  # events come as arrays


class _Unsubscribe(Selection, tag="unsubscribe", kw_only=True, forbid_unknown_fields=True):
    """With nothing else: from everything."""


class _Ping(msgspec.Struct, tag="ping", forbid_unknown_fields=True):
    pass


_decode = decoder_of(_Auth | _Subscribe | _Unsubscribe | _Ping)  # type: ignore[arg-type]


class _Close(Exception):
    """The socket has to be closed."""

    def __init__(self, code: int, reason: str = "", resume: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.resume = resume


class Sockets:
    """The ASGI application; one for a server. Host and Origin were checked before it is called."""

    def __init__(self, service: Service, hub: Hub) -> None:
        self._service = service
        self._hub = hub
        self._strangers = 0
        self._open = 0  # whose clients are known; the hub knows of those that have subscribed

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Serve one socket, until the client goes or is told to."""
        if connection["type"] != "websocket":
            raise Invalid("this is a WebSocket", field="Upgrade", rule="websocket")
        if (await receive())["type"] != "websocket.connect":
            return
        try:
            token, access = await self._admit(connection)
        except Problem as problem:
            await _refuse(connection, send, problem)
            return
        offered = connection.get("subprotocols", ())
        chosen = PROTOCOL if PROTOCOL in offered else None
        await send({"type": "websocket.accept", "subprotocol": chosen})
        try:
            if access is None:
                token, access = await self._introduced(connection, receive)
            self._open += 1
            try:
                socket = _Socket(self._service, self._hub, connection, receive, send)
                await socket.run(token, access)
            finally:
                self._open -= 1
        except _Gone:
            return
        except _Close as close:
            await _closed(send, close)

    async def _admit(self, connection: Connection) -> tuple[str | None, Access | None]:
        """The token and whose it is; without one, None if it may still come."""
        if self._service.draining:
            raise Draining("this server is about to stop", retry_after=1.0)
        clients = max(self._hub.clients, self._open)
        if clients >= MAX_CLIENTS or self._strangers >= _MOST_STRANGERS:
            raise TooManyRequests("this server has no room for more sockets", retry_after=5.0)
        token = bearer(headers_of(connection)) or _token_offered(connection)
        try:
            access = await self._service.authorize(connection, token)
        except Unauthorized:
            if token is not None:
                raise
            return None, None
        require(access, "read")
        return token, access

    async def _introduced(self, connection: Connection, receive: Receive) -> tuple[str, Access]:
        """Wait for the message that has the token."""
        self._strangers += 1
        try:
            async with asyncio.timeout(_AUTH):
                message = _decode(await _received(receive))
                if not isinstance(message, _Auth):
                    raise _Close(_UNAUTHORIZED, "the first message must be auth")
                access = await self._service.authorize(connection, message.token)
                require(access, "read")
                return message.token, access
        except TimeoutError:
            raise _Close(_LATE, "no token came in time") from None
        except Forbidden as problem:
            raise _Close(_FORBIDDEN, problem.body.detail) from None
        except Problem as problem:
            raise _Close(_UNAUTHORIZED, problem.body.detail) from None
        finally:
            self._strangers -= 1


class _Socket:
    """One socket whose client is known."""

    def __init__(
        self, service: Service, hub: Hub, connection: Connection, receive: Receive, send: Send
    ) -> None:
        self._service = service
        self._hub = hub
        self._connection = connection
        self._receive = receive
        self._send = send
        self._subscription: Subscription | None = None
        self._begun = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None
        self._batch = False

    async def run(self, token: str | None, access: Access) -> None:
        """Serve until it has to be closed. Raises ``_Close``, unless the client went."""
        service = self._service
        try:
            await self._say("ready", {"tenant": access.tenant})
            why = await first_of(
                {
                    "gone": self._listen(access),
                    "drained": service.drained.wait(),
                    "over": self._over(),
                    "revoked": recheck(service, self._connection, token, access),
                    "sent": self._hand_on(),
                }
            )
        except Ended as ended:
            why = ended.reason
        finally:
            if self._feeding is not None:
                self._feeding.cancel()
                await asyncio.wait([self._feeding])
            if self._subscription is not None:
                self._hub.leave(self._subscription)
        if why != "gone":
            subscription = self._subscription
            ended_by = None if subscription is None else subscription.ended
            reason = why if why in _CODES else ended_by or "closed"
            resume = "" if subscription is None else subscription.resume
            raise _Close(_CODES[reason], reason, resume)

    # -- what the client says -------------------------------------------------------------------

    async def _listen(self, access: Access) -> None:
        bad = 0
        while True:
            try:
                data = await _received(self._receive)
            except _Gone:
                return
            try:
                message = _decode(data)
                await self._obey(message, access)
            except (Ended, _Close):
                raise
            except Exception as error:
                problem = problem_of(error)
                if problem is None:
                    raise
                bad += 1
                await self._say("error", problem.body)
                if bad >= _MOST_BAD:
                    raise _Close(_POLICY, "too many bad messages") from None

    async def _obey(self, message: object, access: Access) -> None:
        if isinstance(message, _Subscribe):
            await self._subscribe(message, access)
        elif isinstance(message, _Unsubscribe):
            await self._unsubscribe(message, access)
        elif isinstance(message, _Ping):
            await self._say("pong", {})
        else:
            raise Invalid("the token is known already", field="type", rule="subscribe")

    async def _subscribe(self, message: _Subscribe, access: Access) -> None:
        wanted = filter_of(message, access)
        after = check_place(message.after)
        subscription = self._subscription
        self._batch = message.batch
        if subscription is None:
            try:
                subscription = await self._hub.join(frozenset((wanted,)), after)
            except BrokerError:
                raise _Close(_LATER, "the broker does not answer") from None
            self._subscription = subscription
            await self._confirm(subscription)
            self._feeding = asyncio.ensure_future(self._hub.feed(subscription, after))
            self._begun.set()
            return
        if after is not None:
            raise Invalid(
                "the events of this socket are under way",
                field="after",
                rule="left out, unless it is the first subscription",
            )
        filters = subscription.filters | {wanted}
        if len(filters) > _MOST_FILTERS:
            raise Invalid("too many subscriptions", rule=f"at most {_MOST_FILTERS} in a socket")
        self._hub.change(subscription, filters)
        await self._confirm(subscription)

    async def _unsubscribe(self, message: _Unsubscribe, access: Access) -> None:
        subscription = self._subscription
        if subscription is None:
            raise Invalid("there is no subscription", rule="subscribed before")
        wanted = filter_of(message, access)
        left: frozenset[EventFilter] = frozenset()
        if wanted != filter_of(Selection(), access) or wanted in subscription.filters:
            left = subscription.filters - {wanted}
        self._hub.change(subscription, left)
        await self._confirm(subscription)

    async def _confirm(self, subscription: Subscription) -> None:
        shown = [
            {
                key: sorted(value) if isinstance(value, frozenset) else value
                for key, value in msgspec.structs.asdict(each).items()
                if value is not None and key != "workers"  # that is not asked for
            }
            for each in subscription.filters
        ]
        await self._say("subscribed", {"filters": shown, "id": subscription.resume})

    # -- what the client gets -------------------------------------------------------------------

    async def _hand_on(self) -> None:
        try:
            async with asyncio.timeout(_IDLE):
                await self._begun.wait()
        except TimeoutError:
            raise _Close(_POLICY, "nothing was subscribed to") from None
        subscription = self._subscription
        assert subscription is not None  # noqa: S101 - that is what begun means
        while True:
            events = await subscription.take(_HEARTBEAT)
            if events is None:
                await self._say("ping", {})
            else:
                await self._send_events(subscription, events)

    async def _send_events(self, subscription: Subscription, events: EventBatch) -> None:
        if self._batch:
            await self._send({"type": "websocket.send", "text": events.array})
            subscription.sent(events.last_id)
            return
        for number, item in enumerate(events.items):
            await self._send({"type": "websocket.send", "text": item.text})
            subscription.sent(item.id)
            if number % _YIELD == _YIELD - 1:
                await asyncio.sleep(0)

    async def _over(self) -> None:
        await self._begun.wait()
        if self._subscription is not None:
            await self._subscription.over.wait()

    async def _say(
        self, what: Literal["ready", "subscribed", "error", "ping", "pong"], data: Any
    ) -> None:
        text = encode({"type": f"stream.{what}", "data": data}).decode()
        await self._send({"type": "websocket.send", "text": text})


class _Gone(Exception):
    """The client has closed the socket."""


async def _received(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] != "websocket.receive":
        raise _Gone
    text = message.get("text")
    data: bytes = text.encode() if text is not None else message.get("bytes") or b""
    if len(data) > _MAX_FRAME:
        raise _Close(_TOO_BIG, "a message is too long")
    return data


def _token_offered(connection: Connection) -> str | None:
    """A token that a browser put among the subprotocols: it can set no header."""
    for each in connection.get("subprotocols", ()):
        if each.startswith(_BEARER):
            return str(each[len(_BEARER) :])
    return None


async def _refuse(connection: Connection, send: Send, problem: Problem) -> None:
    """Answer a handshake with a problem document, where the server can."""
    if "websocket.http.response" not in connection.get("extensions", {}):
        await send({"type": "websocket.close", "code": _POLICY})
        return
    lines = [(name.encode(), value.encode("latin-1")) for name, value in problem.headers.items()]
    await send(
        {
            "type": "websocket.http.response.start",
            "status": problem.status,
            "headers": [(b"content-type", b"application/problem+json"), *lines],
        }
    )
    await send({"type": "websocket.http.response.body", "body": encode(problem.body)})


async def _closed(send: Send, close: _Close) -> None:
    said: dict[str, str] = {"reason": close.reason[:60]}
    if close.resume:
        said["id"] = close.resume
    reason = encode(said)
    if len(reason) > _LONGEST_REASON:
        reason = encode({"reason": close.reason[:60]})
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_LAST_WORDS):
            await send({"type": "websocket.close", "code": close.code, "reason": reason.decode()})
