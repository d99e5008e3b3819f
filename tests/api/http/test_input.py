"""What callers send: limits before anything is kept, and errors that name the place."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.api.http.input import decoder_of
from fairlead.api.http.problems import BadRequest
from fairlead.api.submissions import NewTask
from tests.api.app import Api, open_api, problem

TASKS = "/api/v1/tasks"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonx"},
        {**JSON, "content-encoding": "gzip"},
        {**JSON, "content-encoding": "identity, gzip"},
    ],
)
async def test_a_body_of_another_kind_is_refused(headers: dict[str, str]) -> None:
    async with open_api() as (_, client):
        answer = await client.post(TASKS, content=b'{"task":"a"}', headers=headers)
        problem(answer, 415, "unsupported-media-type")


async def test_a_charset_is_no_other_kind() -> None:
    async with open_api() as (_, client):
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        answer = await client.post(TASKS, content=b'{"task":"a"}', headers=headers)
        assert answer.status_code == 201


async def test_a_body_that_says_it_is_too_long_is_not_read() -> None:
    api = Api(max_body=1_000)
    token = await api.token()
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("nothing of the body is to be read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"1001")]
    headers += [(name.encode(), value.encode()) for name, value in {**JSON, **token}.items()]
    scope = {
        "type": "http", "method": "POST", "path": TASKS, "raw_path": TASKS.encode(),
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await api.server(scope, receive, send)
    assert sent[0]["status"] == 413
    await api.server.service.close()


async def test_a_body_that_goes_on_is_cut_off_at_its_limit() -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b" " * 1_000

    async with open_api(max_body=10_000) as (_, client):
        answer = await client.post(TASKS, content=endless(), headers=JSON)
        body = problem(answer, 413, "too-large")
        assert body["rule"] == "at most 10000 bytes"
        assert read <= 12
        assert answer.headers["connection"] == "close"


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with open_api(body_idle=0.05) as (_, client):

        async def hanging() -> AsyncIterator[bytes]:
            yield b'{"task":'
            await asyncio.sleep(30)

        answer = await client.post(TASKS, content=hanging(), headers=JSON)
        problem(answer, 408, "request-timeout")

        async def dripping() -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        answer = await asyncio.wait_for(client.post(TASKS, content=dripping(), headers=JSON), 10)
        problem(answer, 408, "request-timeout")


async def test_a_caller_who_hangs_up_in_the_body_enqueues_nothing() -> None:
    api = Api(open_to_loopback=True)
    messages = iter(
        [
            {"type": "http.request", "body": b'{"task":"a"}', "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": TASKS, "raw_path": TASKS.encode(),
        "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    await api.server(scope, receive, send)
    assert sent[0]["status"] == 400
    async with api.caller({}) as client:
        assert (await client.get(TASKS)).json()["tasks"] == []


async def test_values_are_cut_in_problems() -> None:
    async with open_api() as (_, client):
        answer = await client.post(TASKS, json={"task": "a", "queue": "q " * 5_000})
        body = problem(answer, 422, "invalid")
        assert len(body["value"]) <= 101
        assert len(answer.content) < 2_000
        answer = await client.post(TASKS, json={"task": "a", "x" * 50_000: 1})
        problem(answer, 422, "invalid")
        assert len(answer.content) < 5_000


@pytest.mark.parametrize("end", [b"]]}", b""])
def test_no_garbage_is_looked_for_while_a_large_body_is_decoded(end: bytes) -> None:
    """Each bracket is an object: what would be looked at again and again is most of the time."""
    body = b'{"task":"a","args":[[' + b",".join([b"[]"] * 100_000) + end
    looks: list[str] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        looks.append(phase)

    gc.callbacks.append(looked)
    try:
        with contextlib.nullcontext() if end else pytest.raises(BadRequest):
            decoder_of(NewTask)(body)
        seen = list(looks)
    finally:
        gc.callbacks.remove(looked)
    assert len(seen) <= 4  # before and after; with all those brackets it would be hundreds
    assert gc.isenabled()
