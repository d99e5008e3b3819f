"""Links that sign in: each is good for one token, for a while, and for nobody who guesses."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from fairlead import Fairlead
from fairlead.api.auth.sign_in import create_code, link_of, redeem_code
from fairlead.model.errors import InvalidOption
from tests.api.app import Api, open_api, problem
from tests.support.servers import shared


async def link(api: Api, **options: Any) -> str:
    return await create_code(api.server.service.client(), **{"scopes": ("read",), **options})


async def exchanged(client: httpx.AsyncClient, code: object) -> httpx.Response:
    return await client.post("/sign-in", json={"code": code})


async def test_a_code_is_exchanged_for_a_token_with_its_scopes_once() -> None:
    async with open_api() as (api, _), api.caller({}) as stranger:
        code = await link(api, name="ann", tenant="acme")
        answer = await exchanged(stranger, code)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        token = {"authorization": f"Bearer {answer.json()['token']}"}
        assert (await stranger.get("/api/v1/queues", headers=token)).status_code == 200
        problem(await stranger.post("/api/v1/tasks", headers=token, json={}), 403, "forbidden")
        problem(await exchanged(stranger, code), 401, "unauthorized")


async def test_of_many_who_have_the_code_at_once_one_gets_a_token() -> None:
    # On a server: there all of them read the code before the first one deletes it.
    with shared() as valkey:
        api = Api(Fairlead(valkey.url))
        code, client = await link(api), api.server.service.client()
        found = await asyncio.gather(*(redeem_code(client, code) for _ in range(10)))
        assert sum(each is not None for each in found) == 1
        await api.server.service.close()
        await api.app.aclose()


@pytest.mark.parametrize("wrong", ["", "x", "0" * 12 + "-" + "a" * 22, "\n", 5, None])
async def test_what_is_no_code_opens_nothing(wrong: object) -> None:
    async with open_api() as (api, _), api.caller({}) as stranger:
        assert (await exchanged(stranger, wrong)).status_code in (401, 422)


async def test_a_code_with_another_secret_opens_nothing_and_stays_good() -> None:
    async with open_api() as (api, _), api.caller({}) as stranger:
        code = await link(api)
        other = code[:-1] + ("a" if code[-1] != "a" else "b")
        problem(await exchanged(stranger, other), 401, "unauthorized")
        assert (await exchanged(stranger, code)).status_code == 200


async def test_who_guesses_is_slowed_down() -> None:
    async with open_api() as (api, _), api.caller({}, peer="10.0.0.1") as guesser:
        answers = [await exchanged(guesser, "x") for _ in range(30)]
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1


async def test_pages_of_other_sites_cannot_use_a_code() -> None:
    async with open_api() as (api, _), api.caller({"origin": "https://evil.example"}) as page:
        problem(await exchanged(page, await link(api)), 403, "forbidden")


async def test_it_is_by_post_and_small() -> None:
    async with open_api() as (api, _), api.caller({}) as stranger:
        problem(await stranger.get("/sign-in"), 405, "method-not-allowed")
        problem(await exchanged(stranger, "x" * 5_000), 413, "too-large")


async def test_scopes_of_a_code_are_checked_when_it_is_made() -> None:
    async with open_api() as (api, _):
        with pytest.raises(InvalidOption, match="scopes"):
            await link(api, scopes=("everything",))


def test_the_code_stands_in_the_fragment_which_is_sent_to_nobody() -> None:
    assert link_of("http://host:1/", "abc") == "http://host:1/#sign-in=abc"
