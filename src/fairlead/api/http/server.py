"""The ASGI application: from a connection to a route, and from its value to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from functools import partial
from typing import Any

from fairlead.api.auth.access import SAFE, require
from fairlead.api.http.body import pieces, whole
from fairlead.api.http.input import JSON, Decode, Query, check_body, decoder_of, query_decoder_of
from fairlead.api.http.mount import ACCESS, Application, Connection, Mount, Receive, Send
from fairlead.api.http.problems import (
    NOTHING_DONE,
    BrokerAway,
    Draining,
    InDoubt,
    Invalid,
    MethodNotAllowed,
    NotFound,
    Problem,
    TooManyRequests,
    Unexpected,
    problem_of,
)
from fairlead.api.http.responses import encode, guarded, send_data, send_problem, send_value
from fairlead.api.http.route import Headers, Request, Route
from fairlead.api.http.router import Router, path_of, segments_of
from fairlead.api.openapi import document
from fairlead.api.route_table import BASE, MOUNTS, ROUTES
from fairlead.api.service import Service, headers_of, mutates

_log = logging.getLogger("fairlead.api")

_MORE = 0.3  # seconds that a call has beyond those of the client, which knows better what happened
_LARGE = 64 * 1024  # bytes of a body that is rather cut off than read to its end for nothing
_LEAST = 0.3  # seconds that a handler has, however long the token took to read
_LARGE_JSON = 512 * 1024  # bytes of a body that waits for its turn to be decoded
_LARGE_AT_ONCE = 4  # that have one: in memory JSON may take fifty times its bytes
_QUEUED = 5.0  # seconds that one of them waits for its turn
_REFUSED = {"type": "websocket.close", "code": 1008}  # before it is accepted: the answer is a 403
_OK, _DEGRADED = b'{"status":"ok"}', b'{"status":"degraded"}'
_FAILED = {"type": "websocket.close", "code": 1011}


class _Plan:
    """A route with what is worked out once."""

    __slots__ = (
        "decode", "is_open_when_away", "limit", "media_types", "patience", "query", "route",
    )  # fmt: skip

    def __init__(self, route: Route, service: Service) -> None:
        self.route = route
        self.decode: Decode | None = None if route.body is None else decoder_of(route.body)
        self.query: Query | None = None if route.query is None else query_decoder_of(route.query)
        self.media_types = route.streams or ((JSON,) if route.body is not None else ())
        self.patience = route.patience
        if route.spools and service.fallback is not None:
            self.patience = None
        elif route.patience is not None:
            self.patience = max(route.patience, service.settings.patience + _MORE)
        spools = route.spools and service.fallback is not None
        self.is_open_when_away = route.when_away or spools
        self.limit = route.max_body or service.settings.max_body


class Server:
    """Answers HTTP and hands sockets to their mounts."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._router = Router(
            (BASE + each.path, each.method, _Plan(each, service)) for each in ROUTES
        )
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._exact: dict[str, tuple[Mount, Application]] = {}
        self._below: list[tuple[Mount, Application]] = []
        for mount in MOUNTS:
            made = mount, mount.make(service)
            if mount.path.endswith("/") and mount.path != "/":
                self._below.append(made)
            else:
                self._exact[mount.path] = made
        self._fixed = {"/livez": self._live, "/readyz": self._ready, "/openapi.json": self._openapi}

    def drain(self) -> None:
        """Begin to end: /readyz fails, long polls and sockets are told to come again elsewhere."""
        self.service.drained.set()

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """The entry point that ASGI servers and frameworks call."""
        kind = connection["type"]
        if kind == "lifespan":
            await self._lifespan(receive, send)
            return
        answer = _Answer(send)
        path = path_of(connection, self.service.settings.prefix)
        try:
            if kind == "http" and path.startswith(BASE):
                await self._answer(connection, path, receive, answer)
            elif (mounted := self._mount(path)) is not None:
                await self._mounted(mounted, connection, receive, answer)
            elif kind == "websocket":
                await send(_REFUSED)
            elif (fixed := self._fixed.get(path)) is not None:
                if connection["method"] not in SAFE:
                    raise MethodNotAllowed("this is only read", headers={"allow": "GET, HEAD"})
                await fixed(connection, answer)
            else:
                await self._answer(connection, path, receive, answer)
        except Exception as error:  # noqa: BLE001 - each is told, or logged
            if answer.lost:
                return  # the caller has hung up
            problem = self._problem(error, connection)
            if kind == "websocket":
                with contextlib.suppress(OSError):
                    await send(_FAILED if answer.started else _REFUSED)
            elif answer.started:
                # Too late for a problem: the connection is cut, so that it is not taken as whole.
                raise AnswerCut(type(error).__name__) from None
            else:
                await send_problem(answer, problem)

    # -- what is in the table -------------------------------------------------------------------

    async def _answer(
        self, connection: Connection, path: str, receive: Receive, send: Send
    ) -> None:
        service = self.service
        headers = headers_of(connection)
        method = connection["method"]
        found, unknown = self._router.find(
            "GET" if method == "HEAD" else method, segments_of(connection, path)
        )
        stale = found is not None and found[0].is_open_when_away
        clock = asyncio.get_running_loop().time
        began = clock()
        access = await service.authorize(connection, headers=headers, stale=stale)
        spent = clock() - began  # for the token; the answer is not to be late because of it
        if found is None:  # only now: a stranger is not told what there is
            raise unknown or NotFound("there is nothing at this path")
        plan, names = found
        route = plan.route
        require(access, route.scope)
        data = connection["query_string"]
        query = None
        if plan.query is not None:
            query = plan.query(data)
        elif data:
            name = data.partition(b"=")[0].decode("latin-1")
            raise Invalid("no parameters are known here", field=name or "query", rule="left out")
        request = Request(service, access, path=names, query=query, headers=headers)
        if plan.media_types:
            media_type = check_body(headers, plan.media_types, plan.limit)
            if route.streams and media_type != JSON:
                request.receive = partial(pieces, receive, service.settings.body_idle)
            elif plan.decode is not None:
                body = await whole(receive, plan.limit, service.settings.body_idle)
                if len(body) > _LARGE_JSON:
                    await self._with_large(plan, request, body, send, spent)
                    return
                request.body = plan.decode(body)
        request.gone = partial(_hung_up, receive)
        value = await self._carried_out(plan, request, spent)
        await send_value(send, route, value)

    async def _with_large(
        self, plan: _Plan, request: Request, body: bytes, send: Send, spent: float
    ) -> None:
        """Carry out a request with a large body: few at a time, for what they are decoded."""
        try:
            async with asyncio.timeout(_QUEUED):
                await self._large.acquire()
        except TimeoutError:
            detail = "too many large bodies at a time"
            raise TooManyRequests(detail, field="body", retry_after=2.0) from None
        try:
            request.body = plan.decode(body) if plan.decode is not None else None
            request.large = True
            value = await self._carried_out(plan, request, spent)
        finally:
            request.body = None
            self._large.release()
        await send_value(send, plan.route, value)

    async def _carried_out(self, plan: _Plan, request: Request, spent: float) -> Any:
        route = plan.route
        patience = None if plan.patience is None else max(plan.patience - spent, _LEAST)
        try:
            async with asyncio.timeout(patience):
                return await route.handler(request)
        except Exception as error:
            late = isinstance(error, TimeoutError) and plan.patience is not None
            problem = _late(request, route) if late else _after_change(request, error)
            if route.scope == "manage" and isinstance(problem or problem_of(error), InDoubt):
                _log.warning(
                    "it is not known whether %s %s was carried out for token %s",
                    route.method,
                    route.path,
                    request.access.token,
                )
            if problem is None:
                raise
            raise problem from None

    # -- what is beside it ----------------------------------------------------------------------

    def _mount(self, path: str) -> tuple[Mount, Application] | None:
        found = self._exact.get(path)
        if found is not None:
            return found
        return next((each for each in self._below if path.startswith(each[0].path)), None)

    async def _mounted(
        self,
        mounted: tuple[Mount, Application],
        connection: Connection,
        receive: Receive,
        send: Send,
    ) -> None:
        mount, application = mounted
        headers = headers_of(connection)
        if mount.scope is None:
            self.service.origin_check.check(headers, mutates=mutates(connection))
        else:
            access = await self.service.authorize(connection, headers=headers)
            require(access, mount.scope)
            connection[ACCESS] = access
        await application(connection, receive, guarded(connection, send))

    async def _live(self, _connection: Connection, send: Send) -> None:
        await send_data(send, 200, _DEGRADED if self.service.is_degraded else _OK)

    async def _ready(self, _connection: Connection, send: Send) -> None:
        if self.service.draining:
            raise Draining("this server is about to stop", retry_after=1.0)
        await send_data(send, 200, _OK if await self.service.is_ready() else _DEGRADED)

    async def _openapi(self, connection: Connection, send: Send) -> None:
        await self.service.authorize(connection, headers=headers_of(connection))
        await send_data(send, 200, encode(document()))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.service.drained.clear()  # it may be started again, in tests for example
                await send({"type": "lifespan.startup.complete"})
            else:
                self.drain()
                await self.service.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _problem(self, error: Exception, connection: Connection) -> Problem:
        problem = problem_of(error)
        if problem is None:
            # Without the error's own words, which may repeat arguments of a task.
            where = "".join(traceback.format_tb(error.__traceback__))
            _log.error("a request failed: %s\n%s", type(error).__name__, where)
            problem = Unexpected("the log of the server says more")
        if self.service.draining or _leaves_much(dict(connection["headers"])):
            problem.headers["connection"] = "close"
        return problem


async def _hung_up(receive: Receive) -> None:
    """Return when the caller has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _late(request: Request, route: Route) -> Problem:
    """What is told of a request that took too long."""
    if route.method == "GET":
        return BrokerAway("the broker did not answer in time", retry_after=2.0)
    ids = [request.path[name] for name in ("id",) if name in request.path]
    return InDoubt("the broker did not answer in time", ids=ids, retry_after=2.0)


def _after_change(request: Request, error: Exception) -> Problem | None:
    """What is told if the broker goes away when the change was made: not that there was none."""
    if not request.noted or not isinstance(problem_of(error), NOTHING_DONE):
        return None
    detail = "the change was made, all or a part of it; then the broker did not answer"
    return InDoubt(detail, ids=getattr(error, "ids", ()), retry_after=2.0)


class AnswerCut(Exception):
    """An answer that had begun ends too early; named without the words of what went wrong."""


class _Answer:
    """``send`` that remembers whether the answer has begun, and whether nobody takes it."""

    __slots__ = ("_send", "lost", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.lost = False

    async def __call__(self, message: Any) -> None:
        self.started = True
        try:
            await self._send(message)
        except OSError:
            self.lost = True
            raise


def _leaves_much(headers: Headers) -> bool:
    """Whether a body may be on its way that is too long to be read for nothing."""
    length = headers.get(b"content-length", b"0")
    large = length.isdigit() and int(length) > _LARGE
    return large or b"transfer-encoding" in headers
