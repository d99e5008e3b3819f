"""A broker that goes away in the middle: what was done is never told as if nothing was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.api.views.audit import AUDIT
from fairlead.broker.requests import Alter
from fairlead.client import bulk_actions
from fairlead.model.errors import Refused
from tests.api.app import Api, open_api, problem

BASE = "/api/v1"
PLANTED = "planted words"
AWAY = Refused("oom", "no memory")  # certain, and not tried again


def failing(real: Any, after: int) -> Any:
    """The verb, but only so many times."""
    left = after

    async def verb(*args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise AWAY
        return await real(*args, **options)

    return verb


async def noted(api: Api) -> list[str]:
    return [note.value.decode() for note in await api.server.service.client().store.notes(AUDIT)]


async def test_a_change_that_cannot_be_shown_any_more_was_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_api() as (api, client):
        await client.post(f"{BASE}/tasks", json={"task": "a"})
        store = api.app._clients.store
        monkeypatch.setattr(store, "snapshot", failing(store.snapshot, 1))
        body = problem(await client.post(f"{BASE}/queues/default/pause"), 503, "in-doubt")
        assert "nothing" not in body["detail"]
        monkeypatch.undo()
        assert (await client.get(f"{BASE}/queues/default")).json()["paused"]
        assert ["queue.pause" in line for line in await noted(api)] == [True]
        assert "it is not known whether POST /queues/{queue}/pause" in caplog.text


@pytest.mark.parametrize("lines", [False, True])
async def test_the_part_of_an_act_that_was_done_is_noted(
    monkeypatch: pytest.MonkeyPatch, lines: bool
) -> None:
    async with open_api() as (api, client):
        tasks = [{"task": "a", "id": f"t{n}"} for n in range(120)]
        await client.post(f"{BASE}/tasks/batch", json=tasks)
        store = api.app._clients.store
        monkeypatch.setattr(store, "alter", failing(store.alter, 1))
        order = {"action": "cancel", "filter": {"queue": "default"}}
        headers = {"accept": "application/x-ndjson"} if lines else {}
        answer = await client.post(f"{BASE}/tasks/act", json=order, headers=headers)
        if lines:
            assert answer.json()["problem"]["type"] == "/problems/in-doubt"
        else:
            problem(answer, 503, "in-doubt")
        (line,) = await noted(api)
        assert f'"changed":{bulk_actions._AT_ONCE}' in line


async def test_the_part_of_dead_letters_that_was_done_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api() as (api, client):

        @api.app.task(name="fail", max_retries=0)
        async def fail() -> None:
            raise ValueError

        tasks = [{"task": "fail", "id": f"t{n}"} for n in range(60)]
        await client.post(f"{BASE}/tasks/batch", json=tasks)
        await api.app.drain()
        store = api.app._clients.store
        monkeypatch.setattr(store, "alter", failing(store.alter, 1))
        order = {"ids": [task["id"] for task in tasks]}
        answer = await client.post(f"{BASE}/dead-letters/delete", json=order)
        problem(answer, 503, "in-doubt")
        (line,) = await noted(api)
        assert f'"changed":{bulk_actions._AT_ONCE}' in line


async def test_a_note_is_written_even_if_the_request_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api(patience=0.2) as (api, client):
        id = (await client.post(f"{BASE}/tasks", json={"task": "a"})).json()["id"]
        store, real, goes_on = api.app._clients.store, api.app._clients.store.note, asyncio.Event()

        async def slow(*args: Any, **options: Any) -> None:
            await goes_on.wait()
            await real(*args, **options)

        monkeypatch.setattr(store, "note", slow)
        monkeypatch.setattr(api.server.service.client()._caller, "limit", 30.0)
        body = problem(await client.post(f"{BASE}/tasks/{id}/cancel"), 503, "in-doubt")
        assert body["ids"] == [id]
        goes_on.set()
        await api.server.service.close()
        assert ["task.cancel" in line for line in await noted(api)] == [True]


async def test_orders_that_the_broker_refuses_changed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api() as (api, client):
        id = (await client.post(f"{BASE}/tasks", json={"task": "a"})).json()["id"]

        async def alter(call: Any, orders: Sequence[Alter], **more: Any) -> Any:
            raise AWAY

        monkeypatch.setattr(api.app._clients.store, "alter", alter)
        problem(await client.post(f"{BASE}/tasks/{id}/cancel"), 503, "broker-full")
        assert await noted(api) == []


async def test_a_socket_that_fails_is_closed_and_logged_without_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api()
    sent: list[Any] = []

    async def broken(connection: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        raise RuntimeError(PLANTED)

    async def send(message: Any) -> None:
        sent.append(message)

    mount, _ = api.server._exact["/ws"]
    monkeypatch.setitem(api.server._exact, "/ws", (mount, broken))
    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"localhost")]}
    await api.server(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent[-1] == {"type": "websocket.close", "code": 1011}
    assert "RuntimeError" in caplog.text
    assert PLANTED not in caplog.text


async def test_an_answer_that_ends_too_early_is_cut_without_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_api() as (api, client):

        async def broken(*args: Any, **options: Any) -> Any:
            raise RuntimeError(PLANTED)

        monkeypatch.setattr(api.server.service.client(), "page", broken)
        order = {"action": "cancel", "all": True}
        with pytest.raises(Exception, match="RuntimeError") as caught:
            await client.post(
                f"{BASE}/tasks/act", json=order, headers={"accept": "application/x-ndjson"}
            )
        assert caught.value.__suppress_context__
        assert PLANTED not in caplog.text


async def test_strangers_who_ask_whether_it_is_ready_share_one_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api() as (api, client):
        store, asked = api.app._clients.store, 0
        real = store.hello

        async def hello(**options: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return await real(**options)

        monkeypatch.setattr(store, "hello", hello)
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert asked == 1


@pytest.mark.slow
async def test_an_answer_is_not_late_because_its_token_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api(patience=1.5) as (api, client):
        id = (await client.post(f"{BASE}/tasks", json={"task": "a"})).json()["id"]
        headers = await api.token("read")
        store = api.app._clients.store
        real = store.documents

        async def slow(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(1.2)
            return await real(*args, **options)

        async def silent(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(store, "documents", slow)
        monkeypatch.setattr(api.server.service.client().reader, "one", silent)
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await client.get(f"{BASE}/tasks/{id}", headers=headers)
        problem(answer, 503, "broker-away")
        assert clock() - began < 2.5  # 3 seconds, if the token had its time and the read its own
