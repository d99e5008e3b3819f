"""The lifespan and the dependency for Starlette and FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from fairlead import Fairlead, InvalidInput
from fairlead.contrib.starlette import get_app, lifespan
from fairlead.testing import Kit


async def depth(request: Request) -> JSONResponse:
    snapshot = await get_app(request).asnapshot()
    return JSONResponse([snapshot.depth, getattr(request.state, "database", None)])


def web_of(app: Fairlead, **options: Any) -> Starlette:
    return Starlette(routes=[Route("/depth", depth)], lifespan=lifespan(app, **options))


def test_requests_find_the_app() -> None:
    app = Fairlead("memory://")

    @app.task
    def work() -> None: ...

    work.enqueue()
    with TestClient(web_of(app)) as client:
        assert client.get("/depth").json() == [1, None]


def test_the_end_of_the_server_closes_the_app() -> None:
    app = Fairlead("memory://")

    @app.task
    def work() -> None: ...

    with TestClient(web_of(app)):
        work.enqueue()
    with pytest.raises(Exception, match="closed"):
        work.enqueue()


def test_without_the_lifespan_the_error_says_what_to_do() -> None:
    web = web_of(Fairlead("memory://"))
    client = TestClient(web)  # not entered: no lifespan
    with pytest.raises(InvalidInput, match="with TestClient"):
        client.get("/depth")


def test_a_worker_runs_beside_the_server() -> None:
    with Kit() as kit:

        @kit.app.task
        async def double(n: int) -> int:
            return 2 * n

        with TestClient(web_of(kit.app, worker={"concurrency": 2})):
            assert double.enqueue(21).result(timeout=30) == 42
        handle = double.enqueue(1)  # nobody runs it any more
        assert handle.state == "queued"


def test_a_lifespan_of_ones_own_is_around_it() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def own(web: Any) -> AsyncIterator[Mapping[str, Any]]:
        order.append("opened")
        yield {"database": "open"}
        with pytest.raises(Exception, match="closed"):
            await work.aenqueue()
        order.append("closed, after the app")

    app = Fairlead("memory://")

    @app.task
    def work() -> None: ...

    with TestClient(web_of(app, wraps=own)) as client:
        assert client.get("/depth").json() == [0, "open"]
    assert order == ["opened", "closed, after the app"]


def test_a_mounted_api_ends_with_the_server_and_may_begin_again() -> None:
    with Kit() as kit:
        api = kit.app.asgi()
        web = Starlette(routes=[Mount("/queue", api)], lifespan=lifespan(kit.app, api=api))
        for _ in range(2):
            with TestClient(web, base_url="http://127.0.0.1") as client:
                assert client.get("/queue/readyz").status_code == 200
            assert api.service.drained.is_set()
