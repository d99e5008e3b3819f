"""Planted secrets: they are nowhere but where they belong."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.api.views.audit import AUDIT
from tests.api.app import Api

TASKS = "/api/v1/tasks"
ARGUMENT = "planted-argument"


async def test_neither_logs_nor_trail_nor_problems_have_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    api = Api()
    headers = await api.token()
    token = headers["authorization"].removeprefix("Bearer ")
    secret = token.split("_", 2)[2]
    said: list[str] = []

    async def ask(method: str, path: str, **more: Any) -> Any:
        answer = await client.request(method, path, **more)
        said.append(f"{answer.status_code} {answer.headers} {answer.text}")
        return answer

    async with api.caller(headers) as client:
        made = await ask("POST", TASKS, json={"task": "a", "args": [ARGUMENT], "delay": 60})
        id = made.json()["id"]
        await ask("POST", TASKS, json={"task": "a", "args": ARGUMENT})
        await ask("POST", TASKS, json={"task": "a", "kwargs": {"x": [ARGUMENT, 2**70]}})
        await ask("POST", TASKS, json={"task": "a", "args": [[ARGUMENT]], "queue": "a b"})
        data = f'{{"task":"a","args":["{ARGUMENT}"'.encode()
        await ask("POST", TASKS, content=data, headers={"content-type": "application/json"})
        await ask("POST", f"{TASKS}/batch", json=[{"task": "a", "args": [ARGUMENT], "id": "?"}])
        await ask("POST", f"{TASKS}/{id}/run")
        await ask("POST", f"{TASKS}/{id}/cancel")
        await ask("GET", f"{TASKS}?token={token}")
        wrong = {"authorization": f"Bearer fl_0123456789ab_{secret}"}
        await ask("GET", TASKS, headers=wrong)
    notes = [note.value.decode() for note in await api.server.service.client().store.notes(AUDIT)]
    assert len(notes) == 2
    logged = [record.getMessage() for record in caplog.records if record.name != "httpx"]
    everything = "\n".join([*logged, *notes, *said])
    assert ARGUMENT not in everything
    assert secret not in everything
    await api.server.service.close()


async def test_the_address_of_the_broker_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = Fairlead("redis://somebody:planted-password@127.0.0.1:9")
    api = Api(app, open_to_loopback=True, patience=0.1)
    async with api.caller({}) as client:
        for method, path in (("GET", "/readyz"), ("GET", TASKS), ("POST", TASKS)):
            answer = await client.request(method, path, json={"task": "a"})
            assert answer.status_code == 503
            assert "127.0.0.1" not in answer.text
            assert "planted" not in answer.text
        health = await client.get("/api/v1/health")  # away, and that is the answer
        assert (health.status_code, health.json()["status"]) == (200, "fail")
        assert "127.0.0.1" not in health.text
        assert "planted" not in health.text
    assert "planted-password" not in caplog.text
    await api.server.service.close()


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "a\r\nX-Injected: 1",
        "\x1b[31mred\x1b[0m",
        "=cmd|' /C calc'!A0",
        "\u202eevil",
        "\x00",
        "' OR 1=1 --",
        "{{7*7}}",
        "..%2f..%2fetc%2fpasswd",
        "\U0001f4a3" * 50,
    ],
)
async def test_hostile_texts_are_refused_or_come_back_as_they_went(text: str) -> None:
    api = Api()
    async with api.caller() as client:
        fields = ("task", "queue", "tenant", "priority", "id", "unique", "correlation_id")
        for field in fields:
            answer = await client.post(TASKS, json={"task": "a", field: text})
            assert answer.status_code in (201, 422), field
            assert "x-injected" not in answer.headers
            if answer.status_code == 201:
                seen = await client.get(f"{TASKS}/{answer.json()['id']}")
                assert seen.status_code == 200
                if field in ("tenant", "correlation_id"):
                    assert seen.json()[field] == text
        made = await client.post(TASKS, json={"task": "a", "args": [text], "kwargs": {text: 1}})
        seen = await client.get(f"{TASKS}/{made.json()['id']}")
        assert seen.json()["payload"]["value"] == {"args": [text], "kwargs": {text: 1}}
        assert seen.headers["content-type"] == "application/json"
        for name in ("state", "queue", "tenant", "name", "error", "cursor", "since"):
            answer = await client.get(TASKS, params={name: text})
            assert answer.status_code in (200, 422), name
        headers = {"idempotency-key": text.encode("utf-8", "ignore").hex()}
        assert (await client.post(TASKS, json={"task": "a"}, headers=headers)).status_code in (
            201,
            422,
        )
    await api.server.service.close()
