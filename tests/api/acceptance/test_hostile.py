"""Hostile texts and values through every field, parameter and part of a path of every route."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from fairlead.api.route_table import BASE
from tests.api.acceptance.calls import CALLS, filled_in
from tests.api.acceptance.hostile import (
    TEXTS,
    VALUES,
    body_fields,
    encoded,
    parameters,
    path_parts,
)
from tests.api.acceptance.world import OTHER, World, opened_world
from tests.support.fair import EXAMPLES

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
PAYLOAD = ("args", "kwargs")
STEP = 1 if EXAMPLES >= 1 else 4  # a part of them in `make test`

pytestmark = pytest.mark.exhaustive


def check(answer: httpx.Response, about: object, *fields: str) -> None:
    """It is an answer of ours; if it is a refusal, it says what was wrong."""
    where = (about, answer.status_code, answer.text[:500])
    assert answer.status_code < 500, where
    assert "x-injected" not in answer.headers, where
    assert answer.headers["x-content-type-options"] == "nosniff"
    if answer.content:
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in ("application/json", "application/problem+json"), where
        assert not _CONTROL.search(answer.text), where  # inert wherever it is shown
    if answer.status_code < 400:
        return
    said = answer.json()
    assert said["status"] == answer.status_code
    assert said["type"].startswith("/problems/")
    assert len(answer.content) < 4_000, where
    if answer.status_code == 422:
        assert said.get("field"), where
        assert said.get("rule"), where
        if fields:
            assert any(field in said["field"] for field in fields), where
        # Arguments are never repeated, and what is missing or too large cannot be.
        if not any(each in said["field"] for each in (*PAYLOAD, "body")):
            assert "value" in said or valueless(said), where
    else:
        assert said["title"], where


_VALUELESS = re.compile(
    r"got `(array|object|null)`|out of range|missing|given|left out|argument|JSON|known here"
    r"|length|says nothing"
)


def valueless(said: dict[str, Any]) -> bool:
    """Whether there is no one short value to be told."""
    return bool(_VALUELESS.search(f"{said['detail']} {said['rule']}"))


async def count(world: World) -> int:
    """How many tasks there are."""
    return len((await world.store.page(limit=1_000)).tasks)


@pytest.mark.parametrize("name", [name for name in CALLS if body_fields(name)])
async def test_values_in_bodies(name: str) -> None:
    async with opened_world(OTHER) as world, world.caller() as client:
        call, names = CALLS[name], world.names[OTHER]
        method, path = name.partition(" ")[0], BASE + filled_in(call.path, names)
        body = filled_in(call.body, names)
        headers = {"content-type": "application/json"}
        before = await count(world)
        for place in body_fields(name):
            for value in VALUES[::STEP]:
                data = encoded(body, place, value)
                answer = await client.request(method, path, content=data, headers=headers)
                check(answer, (name, place, value[:60]))
                after = await count(world)
                if answer.status_code >= 400:
                    assert after == before, (name, place, value[:60])
                    named(answer, place)
                before = after


def named(answer: httpx.Response, place: tuple[str, ...]) -> None:
    """A refusal names the field, unless it is about the body as a whole."""
    said = answer.json()
    if answer.status_code == 422 and place:
        field = said["field"]
        known = {*place, *(each.rstrip("s") for each in place), "body", "filter"}
        assert any(part in field for part in known) or field in ("ids", "cron"), (place, said)
        assert not any(each in said.get("value", "") for each in ("secret",))


@pytest.mark.parametrize("name", CALLS)
async def test_texts_in_urls(name: str) -> None:
    async with opened_world(OTHER) as world, world.caller() as client:
        call, names = CALLS[name], world.names[OTHER]
        method, body = name.partition(" ")[0], filled_in(call.body, names)
        good = BASE + filled_in(call.path, names)

        async def ask(url: str) -> httpx.Response:
            return await client.request(method, url, json=body)

        before = await count(world)
        for parameter in parameters(name):
            for text in TEXTS[::STEP]:
                for shown in {quote(text, safe=""), f"%ff{quote(text[:50])}"}:
                    answer = await ask(f"{good}?{parameter}={shown}")
                    check(answer, (name, parameter, text[:60]))
                    after = await count(world)
                    if answer.status_code >= 400:
                        assert after == before, (name, parameter, text[:60])
                        if answer.status_code == 422:
                            said = answer.json()
                            assert parameter in said["field"] or said["field"] == "query", said
                    before = after
        pattern = BASE + name.partition(" ")[2]
        for part in path_parts(name):
            for text in TEXTS[::STEP]:
                shown = quote(text, safe="")
                answer = await ask(pattern.replace("{" + part + "}", shown))
                check(answer, (name, part, text[:60]))
                if answer.status_code >= 400:
                    assert await count(world) == before, (name, part, text[:60])
                before = await count(world)


async def test_keys_of_submissions_are_ids_or_refused() -> None:
    async with opened_world(OTHER) as world, world.caller() as client:
        for text in TEXTS:
            before = await count(world)
            key = text.encode("utf-8")
            if b"\r" in key or b"\n" in key or b"\0" in key:
                continue  # no client can send these
            answer = await client.post(
                f"{BASE}/tasks", json={"task": "work"}, headers={b"idempotency-key": key}
            )
            check(answer, ("Idempotency-Key", text[:60]))
            if answer.status_code >= 400:
                assert await count(world) == before


async def test_what_is_taken_comes_back_as_it_went() -> None:
    async with opened_world(OTHER) as world, world.caller() as client:
        for text in TEXTS:
            sent: dict[str, Any] = {"args": [text, {"k": text}], "kwargs": {"text": text}}
            made = await client.post(f"{BASE}/tasks", json={"task": "work", **sent})
            assert made.status_code == 201, made.text
            path = f"{BASE}/tasks/{made.json()['id']}"
            assert (await client.get(f"{path}/payload")).json() == sent
            raw = (await client.get(path)).text
            assert json.loads(raw)["payload"]["value"] == sent
            assert not _CONTROL.search(raw)
