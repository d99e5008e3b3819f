"""Every route, called by those who may not: strangers, tokens of another scope, another tenant."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from fairlead.api.http.route import SCOPES
from fairlead.api.openapi import document
from fairlead.api.route_table import BASE, MOUNTS
from tests.api.acceptance.calls import CALLS, GoodCall, filled_in, unknown_routes
from tests.api.acceptance.world import MARK, OTHER, OWNER, opened_world
from tests.api.app import problem

#: What is not in the table of routes: the scope it takes, or None where everybody may.
BESIDE: dict[str, str | None] = {
    "/": None,
    "/sign-in": None,
    "/static/": None,
    "/ws": "read",
    "/events": "read",
    "/metrics": "read",
    "/openapi.json": "read",
    "/livez": None,
    "/readyz": None,
}
FIXED = {"/livez", "/readyz", "/openapi.json"}


def test_every_route_and_mount_is_known_here() -> None:
    """Whoever adds one says in calls.py how it is called, and is tried by what follows."""
    assert unknown_routes() == set()
    assert {mount.path for mount in MOUNTS} | FIXED == set(BESIDE)


async def sent(
    client: httpx.AsyncClient, name: str, names: dict[str, str], **more: Any
) -> httpx.Response:
    """A good call with the names of a tenant in it; the answer is one that is described."""
    call = CALLS[name]
    method, _, path = name.partition(" ")
    answer = await client.request(
        method,
        BASE + filled_in(call.path, names),
        json=more.pop("body", filled_in(call.body, names)),
        params={**call.query, **more.pop("query", {})},
        **more,
    )
    described = document()["paths"][BASE + path][method.lower()]["responses"]
    assert str(answer.status_code) in described, (name, answer.status_code, answer.text)
    return answer


async def test_without_a_valid_token_there_is_nothing() -> None:
    async with opened_world() as world:
        names, before = world.names[OWNER], await world.picture()
        made = (await world.api.token())["authorization"]
        wrong = made[:-4] + ("aaaa" if made[-4:] != "aaaa" else "bbbb")
        for value in (None, "Bearer", "Basic eDp4", f"Bearer {MARK}", wrong, made * 2):
            headers = {} if value is None else {"authorization": value}
            for number, name in enumerate(CALLS):
                # From many places: one place is soon told that it guesses too often.
                async with world.api.caller(headers, peer=f"10.0.0.{number}") as client:
                    said = problem(await sent(client, name, names), 401, "unauthorized")
                    assert MARK not in str(said), name
                    assert made[-20:] not in str(said), name
            async with world.api.caller(headers, peer="10.0.1.1") as client:
                for path, scope in BESIDE.items():
                    if scope is not None and path != "/ws":
                        problem(await client.get(path), 401, "unauthorized")
                # Nor is it said what there is.
                problem(await client.get(f"{BASE}/nothing"), 401, "unauthorized")
                problem(await client.put(f"{BASE}/tasks"), 401, "unauthorized")
        assert await world.picture() == before


async def test_who_guesses_is_slowed_down_and_nobody_else() -> None:
    async with opened_world(OTHER) as world:
        wrong = {"authorization": f"Bearer fl_{'0' * 12}_{'a' * 43}"}
        async with world.api.caller(wrong, peer="10.0.0.1") as guesser:
            answers = [await guesser.get(f"{BASE}/tasks") for _ in range(100)]
        assert {answer.status_code for answer in answers} == {401, 429}
        assert int(answers[-1].headers["retry-after"]) >= 1
        right = await world.api.token()
        async with world.api.caller(right, peer="10.0.0.2") as other:
            assert (await other.get(f"{BASE}/tasks")).status_code == 200


@pytest.mark.parametrize("name", CALLS)
async def test_one_scope_opens_what_it_is_for_and_nothing_else(name: str) -> None:
    async with opened_world(OWNER) as world:
        names, before = world.names[OWNER], await world.picture()
        call = CALLS[name]
        takes = {call.scope, *call.also}
        for scope in SCOPES:
            if {scope} != takes:
                async with world.caller(scope) as client:
                    said = problem(await sent(client, name, names), 403, "forbidden")
                    assert any(each in said["rule"] for each in takes - {scope})
                    assert await world.picture() == before
        async with world.caller(*takes) as client:
            answer = await sent(client, name, names)
            assert answer.status_code == call.status, answer.text


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json"])
async def test_one_scope_opens_what_is_beside_the_routes(path: str) -> None:
    async with opened_world(OWNER) as world:
        for scope in SCOPES:
            async with world.caller(scope) as client:
                answer = await client.get(path)
                if scope == BESIDE[path] or path == "/openapi.json":
                    assert answer.status_code == 200, answer.text
                else:
                    problem(answer, 403, "forbidden")


def told(answer: httpx.Response, *said: str) -> str:
    """An answer without what the caller said himself."""
    text = answer.text + str(dict(answer.headers))
    for each in sorted(said, key=len, reverse=True):
        text = text.replace(each, "")
    return text


def variants(call: GoodCall, names: dict[str, str]) -> list[dict[str, Any]]:
    """The ways of asking for what is another's."""
    found: list[dict[str, Any]] = [{}]
    body = filled_in(call.body, names)
    if call.whose == "query":
        found.append({"query": {"tenant": OWNER}})
    elif call.whose == "body":
        found.append({"body": {**body, "tenant": OWNER}})
    elif call.whose == "items":
        found.append({"body": [{**each, "tenant": OWNER} for each in body]})
    elif call.whose == "filter":
        found.append({"body": {**body, "filter": {"tenant": OWNER}}})
    return found


async def test_another_tenant_learns_nothing_and_changes_nothing() -> None:
    async with opened_world() as world, world.caller(tenant=OTHER) as client:
        names = world.names[OWNER]
        ours = {key: value for key, value in (await world.picture())[0].items() if MARK in key}
        for name, call in CALLS.items():
            for number, more in enumerate(variants(call, names)):
                answer = await sent(client, name, names, **more)
                where = (name, more, answer.status_code, answer.text)
                if number and call.whose == "items":
                    assert answer.json()["accepted"] == 0 if answer.is_success else True, where
                elif number or call.kind == "named":
                    assert answer.status_code == (404 if number else hidden(name)), where
                elif call.kind == "global":
                    assert answer.status_code in (403, 404), where
                elif call.kind == "own":
                    assert answer.status_code in (200, 201, 404), where
                else:
                    assert answer.status_code in (200, 403, 404), where
                assert MARK not in told(answer, *names.values(), *tails(names)), where
                now = (await world.picture())[0]
                assert {key: now.get(key) for key in ours} == ours, where


def hidden(name: str) -> int:
    """What a call says of another tenant's: a schedule cannot be made under a name it has."""
    return 409 if name == "PUT /schedules/{name}" else 404


def tails(names: dict[str, str]) -> list[str]:
    """Ids without the tenant before them."""
    return [value.rpartition(":")[2] for value in names.values()]


async def test_short_ids_of_another_tenant_lead_nowhere() -> None:
    """Without the tenant in front, they are ids of the caller's own tenant."""
    async with opened_world() as world, world.caller(tenant=OTHER) as client:
        names = {key: value.rpartition(":")[2] for key, value in world.names[OWNER].items()}
        before = (await world.picture())[0]
        for name, call in CALLS.items():
            if call.kind == "named":
                answer = await sent(client, name, names)
                assert answer.status_code == hidden(name), (name, answer.text)
                assert MARK not in told(answer, *names.values()), name
        assert (await world.picture())[0] == before


async def test_what_is_beside_the_routes_tells_another_tenant_nothing() -> None:
    async with opened_world() as world, world.caller(tenant=OTHER) as client:
        for path in ("/metrics", "/openapi.json", "/livez", "/readyz", "/"):
            answer = await client.get(path)
            assert answer.status_code == (403 if path == "/metrics" else 200)
            assert MARK not in told(answer), path


_RANDOM = re.compile(r"[0-9a-f]{12}7[0-9a-f]{19}|\d+\.\d{4,}(e-\d+)?|\d+(\.\d+)?e-\d+")


async def test_another_tenant_sees_the_same_whether_we_are_there_or_not() -> None:
    """No figure is told either: all reads answer as if nobody else were there."""
    seen: list[dict[str, str]] = []
    for tenants in ((OTHER,), (OTHER, OWNER)):
        async with opened_world(*tenants) as world, world.caller(tenant=OTHER) as client:
            names = world.names[OTHER]
            answers = {}
            for name in CALLS:
                if name.startswith("GET "):
                    answer = await sent(client, name, names)
                    answers[name] = f"{answer.status_code} {_RANDOM.sub('#', answer.text)}"
            seen.append(answers)
    alone, beside = seen
    different = {name: (alone[name], beside[name]) for name in alone if alone[name] != beside[name]}
    assert different == {}


async def test_who_may_only_read_sees_no_argument_and_no_result() -> None:
    async with opened_world() as world, world.caller("read") as client:
        names = world.names[OWNER]
        for name, call in CALLS.items():
            if call.scope == "read":
                text = (await sent(client, name, names)).text
                for secret in ("in", "kw", "running", "waiting", "later", "first", "scheduled"):
                    assert f"{MARK} {secret}" not in text, (name, secret)
