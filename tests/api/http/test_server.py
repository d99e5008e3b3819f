"""The frame around every route: who is answered, and how."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from fairlead import Fairlead
from fairlead.api.http.responses import SECURITY
from tests.api.app import Api, open_api, problem

PLANTED = "a secret of a payload"


async def test_without_a_token_only_the_probes_are_answered() -> None:
    api = Api()
    async with api.caller(headers={}) as client:
        assert (await client.get("/livez")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ok"}
        for path in ("/openapi.json", "/api/v1/tasks", "/api/v1/nothing", "/nothing"):
            answer = await client.get(path)
            problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_an_unknown_path_is_a_problem() -> None:
    async with open_api() as (_, client):
        for path in ("/api/v1/nothing", "/api/v1/tasks/", "/api/v1/tasks/a/b/c", "/api/v1"):
            problem(await client.get(path), 404, "not-found")


async def test_another_method_is_told_which_ones_there_are() -> None:
    async with open_api() as (_, client):
        answer = await client.put("/api/v1/tasks", json={})
        problem(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] == "GET, POST"
        answer = await client.post("/livez")
        problem(answer, 405, "method-not-allowed")


async def test_every_answer_has_the_headers_that_keep_it_safe() -> None:
    async with open_api() as (_, client):
        for path in ("/livez", "/api/v1/tasks", "/api/v1/nothing", "/openapi.json"):
            answer = await client.get(path)
            for name, value in SECURITY:
                assert answer.headers[name.decode()] == value.decode()
            policy = answer.headers["content-security-policy"]
            assert "unsafe-inline" not in policy
            assert "access-control-allow-origin" not in answer.headers


async def test_parameters_that_are_not_known_are_refused() -> None:
    async with open_api() as (_, client):
        body = problem(await client.get("/api/v1/tasks?colour=red"), 422, "invalid")
        assert (body["field"], body["value"]) == ("colour", "red") or body["field"] == "colour"
        body = problem(await client.get("/api/v1/tasks?limit=lots"), 422, "invalid")
        assert (body["field"], body["value"]) == ("limit", "lots")
        assert "int" in body["rule"]
        body = problem(await client.get("/api/v1/tasks?limit=201"), 422, "invalid")
        assert (body["field"], body["value"]) == ("limit", "201")
        problem(await client.get("/api/v1/tasks?limit=1&limit=2"), 422, "invalid")
        problem(await client.get("/api/v1/tasks?state=%ff"), 400, "bad-request")
        problem(await client.post("/api/v1/tasks?x=1", json={"task": "t"}), 422, "invalid")


async def test_a_server_that_drains_is_not_ready() -> None:
    async with open_api() as (api, client):
        api.server.drain()
        body = problem(await client.get("/readyz"), 503, "draining")
        assert body["retry_after"] == 1.0
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/api/v1/tasks")).status_code == 200  # what comes is answered


async def test_a_broker_that_is_away_is_told_soon() -> None:
    app = Fairlead("redis://127.0.0.1:9")  # nobody listens there
    api = Api(app, open_to_loopback=True, patience=0.2)
    async with api.caller({}) as client:
        for method, path, body in (
            ("GET", "/readyz", None),
            ("GET", "/api/v1/tasks", None),
            ("GET", "/api/v1/tasks/a", None),
            ("POST", "/api/v1/tasks", {"task": "a"}),
        ):
            began = time.monotonic()
            answer = await client.request(method, path, json=body)
            assert time.monotonic() - began < 2.5
            in_doubt = method == "POST" and "in-doubt" in answer.text  # with so little time
            slug = "in-doubt" if in_doubt else "broker-away"
            assert problem(answer, 503, slug)["retry_after"] == 2.0
            assert answer.headers["retry-after"] == "2"
        assert (await client.get("/livez")).status_code == 200
    async with api.caller({"authorization": "Bearer fl_0123456789ab_" + "x" * 43}) as client:
        problem(await client.get("/api/v1/tasks"), 503, "broker-away")
    await api.server.service.close()


async def test_a_mistake_of_ours_tells_nothing_to_the_caller_or_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(PLANTED)

    async with open_api() as (api, client):
        monkeypatch.setattr(api.server.service.client(), "page", broken)
        answer = await client.get("/api/v1/tasks")
        body = problem(answer, 500, "unexpected")
        assert PLANTED not in str(body)
        assert "RuntimeError" in caplog.text
        assert PLANTED not in caplog.text


async def test_it_answers_below_any_path() -> None:
    api = Api()
    headers = await api.token()
    async with api.caller(headers) as client:
        assert (await client.get("/livez")).status_code == 200

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await api.server({**scope, "root_path": "/queue"}, receive, send)

    transport = httpx.ASGITransport(app=mounted)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers
    ) as client:
        assert (await client.get("/queue/livez")).status_code == 200
        assert (await client.get("/queue/api/v1/tasks")).status_code == 200
    prefixed = Api(prefix="/queue")
    async with prefixed.caller() as client:
        assert (await client.get("/queue/livez")).status_code == 200
        assert (await client.get("/queue/api/v1/tasks")).status_code == 200
        problem(await client.get("/queues/livez"), 404, "not-found")


async def test_it_can_be_mounted_into_starlette() -> None:
    api = Api()
    whole = Starlette(routes=[Mount("/queue", api.server)])
    headers = await api.token()
    transport = httpx.ASGITransport(app=whole)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers
    ) as client:
        made = await client.post("/queue/api/v1/tasks", json={"task": "a", "id": "x"})
        assert made.status_code == 201
        seen = await client.get("/queue/api/v1/tasks/default%3Ax")
        assert seen.json()["id"] == "default:x"
        assert (await client.get("/queue/readyz")).status_code == 200
        problem(await client.get("/queue/api/v1/tasks/a%2Fb"), 404, "not-found")
    await api.server.service.close()


async def test_the_lifespan_of_a_server_ends_what_it_began() -> None:
    api = Api()
    sent: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await api.server({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert api.server.service.draining


async def test_a_socket_that_nobody_serves_is_refused_before_it_is_accepted() -> None:
    api = Api()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/nothing", "headers": [(b"host", b"localhost")]}
    await api.server(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
