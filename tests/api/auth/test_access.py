"""Who is let in: tokens, scopes, tenants, Host, Origin, and callers of this machine."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.api.http.problems import Unauthorized
from fairlead.api.route_table import BASE, ROUTES
from fairlead.api.settings import ApiSettings
from fairlead.model.errors import InvalidOption
from tests.api.app import Api, open_api, problem

TASK = {"task": "echo"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_token_without_the_scope_is_refused_on_every_route(route: object) -> None:
    from fairlead.api.http.route import SCOPES, Route

    assert isinstance(route, Route)
    api = Api()
    others = [scope for scope in SCOPES if scope != route.scope]
    path = BASE + route.path.replace("{", "x").replace("}", "")
    async with api.caller(await api.token(*others)) as client:
        body = problem(await client.request(route.method, path), 403, "forbidden")
        assert route.scope in body["detail"]
    await api.server.service.close()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "nonsense",
        "fl_0123456789ab_" + "x" * 43,
        "fl_0123456789ab_short",
        "fl_0123456789ab_" + "x" * 44,
        "FL_0123456789ab_" + "x" * 43,
    ],
)
async def test_a_wrong_token_is_refused(token: str) -> None:
    api = Api()
    async with api.caller({"authorization": f"Bearer {token}"}) as client:
        problem(await client.get("/api/v1/tasks"), 401, "unauthorized")


async def test_the_secret_must_be_that_of_the_token() -> None:
    api = Api()
    right = await api.token()
    text = right["authorization"]
    async with api.caller(
        {"authorization": text[:-1] + ("A" if text[-1] != "A" else "B")}
    ) as client:
        problem(await client.get("/api/v1/tasks"), 401, "unauthorized")
    async with api.caller(right) as client:
        assert (await client.get("/api/v1/tasks")).status_code == 200
    async with api.caller({"authorization": text.replace("Bearer", "Basic")}) as client:
        problem(await client.get("/api/v1/tasks"), 401, "unauthorized")


async def test_a_token_in_the_url_is_not_taken() -> None:
    api = Api()
    text = (await api.token())["authorization"].removeprefix("Bearer ")
    async with api.caller({}) as client:
        problem(await client.get(f"/api/v1/tasks?token={text}"), 401, "unauthorized")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:80", "127.0.0.1.nip.io", "", "[::2]"],
)
async def test_another_host_is_refused(host: str) -> None:
    async with open_api() as (_, client):
        body = problem(await client.get("/api/v1/tasks", headers={"host": host}), 403, "forbidden")
        assert body["field"] == "Host"


async def test_hosts_are_exact_and_mind_the_port() -> None:
    api = Api(hosts=("api.example.org", "other.example.org:8800", "any.example.org:*"))
    async with api.caller() as client:
        for host, status in {
            "api.example.org": 200,
            "API.example.org": 200,
            "api.example.org:8800": 403,
            "other.example.org:8800": 200,
            "other.example.org": 403,
            "any.example.org": 200,
            "any.example.org:1": 200,
            "any.example.org:x": 403,
            "localhost": 403,
        }.items():
            answer = await client.get("/api/v1/tasks", headers={"host": host})
            assert answer.status_code == status, host


async def test_two_hosts_are_refused() -> None:
    async with open_api() as (_, client):
        headers = [("host", "localhost"), ("host", "evil.example")]
        problem(await client.get("/api/v1/tasks", headers=headers), 400, "bad-request")


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://localhost.evil", "x"])
async def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    async with open_api() as (_, client):
        for method in ("GET", "POST"):
            answer = await client.request(method, "/api/v1/tasks", headers={"origin": origin})
            assert problem(answer, 403, "forbidden")["field"] == "Origin"


async def test_a_page_of_the_host_itself_or_of_a_known_origin_may_call() -> None:
    async with open_api(origins=("https://panel.example.org",)) as (_, client):
        for headers in (
            {"origin": "http://localhost", "sec-fetch-site": "same-origin"},
            {"origin": "https://localhost", "sec-fetch-site": "same-origin"},
            {"origin": "https://panel.example.org", "sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "none"},
        ):
            answer = await client.post("/api/v1/tasks", json=TASK, headers=headers)
            assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd"])
async def test_a_page_of_another_site_changes_nothing(site: str) -> None:
    async with open_api() as (_, client):
        headers = {"sec-fetch-site": site}
        answer = await client.post("/api/v1/tasks", json=TASK, headers=headers)
        assert problem(answer, 403, "forbidden")["field"] == "Sec-Fetch-Site"
        assert (await client.get("/api/v1/tasks", headers=headers)).status_code == 200
        assert (await client.get("/api/v1/tasks")).json()["tasks"] == []


async def test_loopback_is_open_only_by_choice() -> None:
    async with Api(open_to_loopback=True).caller({}) as client:
        assert (await client.get("/api/v1/tasks")).status_code == 200
    async with Api(open_to_loopback=True).caller({}, peer="::1") as client:
        assert (await client.get("/api/v1/tasks")).status_code == 200
    async with Api(open_to_loopback=True).caller({}, peer="::ffff:127.0.0.1") as client:
        assert (await client.get("/api/v1/tasks")).status_code == 200
    for peer in ("10.0.0.1", "::2", "", "not an address"):
        async with Api(open_to_loopback=True).caller({}, peer=peer) as client:
            problem(await client.get("/api/v1/tasks"), 401, "unauthorized")
    async with Api().caller({}) as client:
        problem(await client.get("/api/v1/tasks"), 401, "unauthorized")


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Via", "X-Real-IP"]
)
async def test_what_comes_through_a_proxy_is_not_loopback(name: str) -> None:
    api = Api(open_to_loopback=True)
    async with api.caller({}) as client:
        answer = await client.get("/api/v1/tasks", headers={name: "10.0.0.1"})
        assert problem(answer, 403, "forbidden")["field"] == name.lower()
        headers = {name: "10.0.0.1", **await api.token()}
        assert (await client.get("/api/v1/tasks", headers=headers)).status_code == 200


async def test_a_wrong_token_is_not_made_good_by_loopback() -> None:
    async with Api(open_to_loopback=True).caller({"authorization": "Bearer x"}) as client:
        problem(await client.get("/api/v1/tasks"), 401, "unauthorized")


@pytest.mark.parametrize("origin", ["panel.example.org", "https://x.org/path", "*", "ws://x.org"])
def test_an_origin_that_no_page_has_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidOption, match="origins"):
        ApiSettings(origins=(origin,))
    assert ApiSettings(origins=("https://panel.example.org:8443/",)).origins


@pytest.mark.parametrize("host", ["https://api.example.org", "api.example.org/", ""])
def test_a_host_that_no_request_names_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(InvalidOption, match="hosts"):
        ApiSettings(hosts=(host,))


async def test_a_token_that_is_revoked_during_a_long_poll_gets_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api() as (api, client):
        id = (await client.post("/api/v1/tasks", json=TASK)).json()["id"]
        find, asked = api.server.service._tokens.find, 0

        async def find_once(*args: Any, **more: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise Unauthorized("the token is not valid")
            return await find(*args, **more)

        async with api.caller(await api.token("payload")) as own:
            monkeypatch.setattr(api.server.service._tokens, "find", find_once)
            answer = await own.get(f"/api/v1/tasks/{id}/result", params={"wait": 0.02})
            problem(answer, 401, "unauthorized")
            assert asked == 2
