"""One task over HTTP: submitted, looked at, waited for, acted on."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from fairlead import Fairlead
from fairlead.api.views.audit import AUDIT, AuditLine
from fairlead.api.views.tasks import CUT
from fairlead.broker import connect
from fairlead.model.errors import Unreachable
from tests.api.app import Api, open_api, problem

TASKS = "/api/v1/tasks"


async def submitted(client: httpx.AsyncClient, **task: Any) -> str:
    answer = await client.post(TASKS, json={"task": "echo", **task})
    assert answer.status_code == 201, answer.text
    id: str = answer.json()["id"]
    return id


def with_echo(api: Api) -> Api:
    @api.app.task(name="echo")
    async def echo(*args: Any, **kwargs: Any) -> Any:
        return {"args": args, "kwargs": kwargs}

    @api.app.task(name="fail", max_retries=0)
    async def fail(*args: Any) -> None:
        raise ValueError("no mailbox")

    return api


async def test_a_task_is_submitted_run_and_its_result_read() -> None:
    async with open_api() as (api, client):
        with_echo(api)
        answer = await client.post(
            TASKS, json={"task": "echo", "args": [1, "ä"], "kwargs": {"x": [None, 1.5]}}
        )
        assert answer.status_code == 201
        made = answer.json()
        assert made["state"] == "queued"
        assert made["duplicate"] is False
        path = f"{TASKS}/{made['id']}"
        seen = (await client.get(path)).json()
        assert (seen["task"], seen["queue"], seen["tenant"]) == ("echo", "default", "default")
        assert (seen["state"], seen["priority"]) == ("queued", "normal")
        assert seen["enqueued_at"].endswith("Z")
        assert seen["payload"]["value"] == {"args": [1, "ä"], "kwargs": {"x": [None, 1.5]}}
        answer = await client.get(f"{path}/result")
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        await api.app.drain()
        answer = await client.get(f"{path}/result?wait=5")
        assert answer.status_code == 200
        assert answer.json()["result"] == {"args": [1, "ä"], "kwargs": {"x": [None, 1.5]}}
        seen = (await client.get(path)).json()
        assert seen["state"] == "completed"
        assert seen["result"]["value"] == answer.json()["result"]
        assert seen["finished_at"] >= seen["enqueued_at"]


async def test_all_options_of_a_task_are_taken() -> None:
    async with open_api() as (_, client):
        first = await submitted(client, id="first", tenant="acme")
        task = {
            "queue": "mail",
            "tenant": "acme",
            "priority": "high",
            "deadline": "1h",
            "id": "order-7",
            "unique": "k",
            "unique_until": "started",
            "depends_on": [first],
            "on_dependency_failure": "run",
            "correlation_id": "trace-1",
            "cost": 2.5,
            "limiters": ["smtp"],
            "max_retries": 3,
            "timeout": 30,
            "retention": "1d",
        }
        id = await submitted(client, **task)
        assert id == "acme:order-7"
        seen = (await client.get(f"{TASKS}/{id}")).json()
        assert (seen["queue"], seen["tenant"], seen["priority"]) == ("mail", "acme", "high")
        assert (seen["state"], seen["waiting_for"]) == ("deferred", [first])
        assert seen["correlation_id"] == "trace-1"
        assert (await client.get(f"{TASKS}/order-7?tenant=acme")).json() == seen
        problem(await client.get(f"{TASKS}/order-7"), 404, "not-found")
        id = await submitted(client, delay=60)
        seen = (await client.get(f"{TASKS}/{id}")).json()
        assert (seen["state"], seen["correlation_id"]) == ("scheduled", id)


async def test_an_idempotency_key_is_the_id_of_the_task() -> None:
    async with open_api() as (_, client):
        headers = {"Idempotency-Key": "order-7"}
        first = await client.post(TASKS, json={"task": "echo"}, headers=headers)
        assert (first.status_code, first.json()["id"]) == (201, "default:order-7")
        for key in ("order-7", '"order-7"'):
            again = await client.post(
                TASKS, json={"task": "echo"}, headers={"Idempotency-Key": key}
            )
            assert (again.status_code, again.json()["duplicate"]) == (200, True)
            assert again.json()["id"] == first.json()["id"]
        other = await client.post(TASKS, json={"task": "other"}, headers=headers)
        assert problem(other, 409, "conflict")["ids"] == ["default:order-7"]
        twice = await client.post(TASKS, json={"task": "echo", "id": "x"}, headers=headers)
        assert problem(twice, 422, "invalid")["field"] == "Idempotency-Key"
        odd = await client.post(TASKS, json={"task": "echo"}, headers={"Idempotency-Key": "a b"})
        assert problem(odd, 422, "invalid")["field"] == "id"


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"task": "9 lives"}, "task", "9 lives"),
        ({"task": 9}, "task", "9"),
        ({"queue": "a b"}, "queue", "a b"),
        ({"tenant": ""}, "tenant", ""),
        ({"tenant": "a\u202eb"}, "tenant", None),
        ({"priority": "urgent"}, "priority", "urgent"),
        ({"delay": -1}, "delay", "-1"),
        ({"delay": "soon"}, "delay", "soon"),
        ({"deadline": 1e300}, "deadline", None),
        ({"id": "a:b"}, "id", "a:b"),
        ({"unique_until": "never"}, "unique_until", "never"),
        ({"depends_on": "x"}, "depends_on", "x"),
        ({"depends_on": ["0123"]}, "depends_on", "default:0123"),
        ({"cost": 0}, "cost", "0.0"),
        ({"limiters": ["a", "b", "c", "d", "e"]}, None, None),
        ({"max_retries": 1001}, "max_retries", "1001"),
        ({"timeout": 0}, "timeout", "0"),
        ({"args": {}}, "args", None),
        ({"args": [2**70]}, "argument 0", None),
        ({"kwargs": {"x": {"y": 2**70}}}, "argument 'x'", None),
        ({"colour": "red"}, "colour", "colour"),
    ],
)
async def test_bad_input_is_told_by_field_value_and_rule(
    change: dict[str, Any], field: str | None, value: str | None
) -> None:
    async with open_api() as (_, client):
        answer = await client.post(TASKS, json={"task": "echo", **change})
        assert answer.status_code in (413, 422), answer.text
        body = answer.json()
        if field is not None:
            assert body["field"] == field
            assert body["rule"]
        if value is not None:
            assert body["value"] == value
        assert (await client.get(TASKS)).json()["tasks"] == []


@pytest.mark.parametrize(
    ("data", "status", "slug"),
    [
        (b"", 400, "bad-request"),
        (b"{", 400, "bad-request"),
        (b"\xff\xfe", 400, "bad-request"),
        (b'{"task": "\xff"}', 400, "bad-request"),
        (b"null", 422, "invalid"),
        (b"[]", 422, "invalid"),
        (b"{}", 422, "invalid"),
        (b'{"task":"t","args":[NaN]}', 422, "invalid"),
        (b'{"task":"t","args":[-Infinity]}', 422, "invalid"),
        (b'{"task":"t","args":[1e999]}', 422, "invalid"),
        (b'{"task":"t","args":[1180591620717411303424]}', 422, "invalid"),
        (b'{"task":"t","args":' + b"[" * 66 + b"]" * 66 + b"}", 413, "too-large"),
        (b'{"task":"t","args":' + b"[" * 9999 + b"]" * 9999 + b"}", 413, "too-large"),
    ],
)
async def test_what_is_no_task_is_refused(data: bytes, status: int, slug: str) -> None:
    async with open_api() as (_, client):
        answer = await client.post(
            TASKS, content=data, headers={"content-type": "application/json"}
        )
        problem(answer, status, slug)
        assert (await client.get(TASKS)).json()["tasks"] == []


async def test_arguments_are_never_repeated_in_a_problem() -> None:
    async with open_api() as (_, client):
        planted = "a secret of a payload"
        for task in (
            {"task": "t", "args": planted},
            {"task": "t", "kwargs": [planted]},
            {"task": "t", "args": [{planted: 2**70}]},
        ):
            answer = await client.post(TASKS, json=task)
            problem(answer, 422, "invalid")
            assert planted not in answer.text


async def test_a_full_queue_is_told_when_to_come_again() -> None:
    async with open_api() as (api, client):
        await api.app.aconfigure_queue("default", max_waiting=1)
        await submitted(client)
        answer = await client.post(TASKS, json={"task": "echo"})
        body = problem(answer, 429, "queue-full")
        assert body["field"] == "max_waiting"
        assert int(answer.headers["retry-after"]) >= 1
        await api.app.aconfigure_queue("default", max_waiting=None, max_tenant_waiting=1)
        answer = await client.post(TASKS, json={"task": "echo"})
        assert problem(answer, 429, "queue-full")["field"] == "max_tenant_waiting"


async def test_payload_and_result_take_their_own_scope() -> None:
    async with open_api() as (api, client):
        with_echo(api)
        id = await submitted(client, args=["a secret"])
        await api.app.drain()
        async with api.caller(await api.token("read")) as reader:
            seen = await reader.get(f"{TASKS}/{id}")
            assert seen.json()["payload"] is None
            assert seen.json()["result"] is None
            assert "a secret" not in seen.text
            assert "a secret" not in (await reader.get(TASKS)).text
            problem(await reader.get(f"{TASKS}/{id}/payload"), 403, "forbidden")
            problem(await reader.get(f"{TASKS}/{id}/result"), 403, "forbidden")
        full = (await client.get(f"{TASKS}/{id}/payload")).json()
        assert full == {"args": ["a secret"], "kwargs": {}}


async def test_a_long_payload_is_cut_and_can_be_had_in_full() -> None:
    async with open_api() as (api, client):
        with_echo(api)
        id = await submitted(client, args=["ä" * CUT])
        await api.app.drain()
        seen = (await client.get(f"{TASKS}/{id}")).json()
        for part in (seen["payload"], seen["result"]):
            assert part["truncated"] is True
            assert part["value"] is None
            assert part["size"] > CUT
            assert len(part["text"].encode()) <= CUT
        full = (await client.get(f"{TASKS}/{id}/payload")).json()
        assert full["args"] == ["ä" * CUT]
        result = (await client.get(f"{TASKS}/{id}/result")).json()["result"]
        assert result["args"] == ["ä" * CUT]


async def test_redacted_fields_are_shown_to_nobody() -> None:
    async with open_api(redact=("password", "card.number", "args.1")) as (api, client):
        with_echo(api)
        secret = {
            "password": "p1",
            "card": {"number": "p2", "kind": "visa"},
            "deep": [{"password": 1}],
        }
        id = await submitted(client, args=["shown", "p3"], kwargs=secret)
        await api.app.drain()
        for path in ("", "/payload", "/result"):
            answer = await client.get(f"{TASKS}/{id}{path}")
            assert answer.status_code == 200
            assert "visa" in answer.text
            for planted in ("p1", "p2"):
                assert planted not in answer.text


async def test_a_dead_task_says_why_and_can_be_put_back() -> None:
    async with open_api() as (api, client):
        with_echo(api)
        id = (await client.post(TASKS, json={"task": "fail"})).json()["id"]
        await api.app.drain()
        seen = (await client.get(f"{TASKS}/{id}")).json()
        assert (seen["state"], seen["reason"]) == ("dead", "exhausted")
        assert (seen["error"]["type"], seen["error"]["message"]) == ("ValueError", "no mailbox")
        assert "in fail" in seen["error"]["traceback"]
        result = await client.get(f"{TASKS}/{id}/result")
        assert (result.status_code, result.json()["state"]) == (200, "dead")
        assert result.json()["error"]["message"] == "no mailbox"
        answer = await client.post(f"{TASKS}/{id}/retry")
        assert (answer.status_code, answer.json()["code"]) == (200, "done")
        again = await client.post(f"{TASKS}/{id}/retry")
        assert problem(again, 409, "conflict")["value"] == "queued"


async def test_orders_are_done_once_and_noted() -> None:
    async with open_api() as (api, client):
        id = await submitted(client, id="order-7", tenant="acme")
        answer = await client.post(f"{TASKS}/{id}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        problem(await client.post(f"{TASKS}/{id}/cancel"), 409, "conflict")
        assert (await client.delete(f"{TASKS}/{id}")).status_code == 204
        problem(await client.delete(f"{TASKS}/{id}"), 404, "not-found")
        later = await submitted(client, delay=60)
        answer = await client.patch(f"{TASKS}/{later}", json={"priority": "high"})
        assert (answer.status_code, answer.json()["code"]) == (200, "done")
        assert (await client.get(f"{TASKS}/{later}")).json()["priority"] == "high"
        answer = await client.patch(f"{TASKS}/{later}", json={"priority": "urgent"})
        assert problem(answer, 422, "invalid")["field"] == "priority"
        answer = await client.post(f"{TASKS}/{later}/run")
        assert (answer.status_code, answer.json()["state"]) == (200, "queued")
        problem(await client.post(f"{TASKS}/{later}/run"), 409, "conflict")
        notes = await api.server.service.client().store.notes(AUDIT)
        lines = [msgspec.json.decode(note.value, type=AuditLine) for note in notes]
        assert [(line.action, line.target) for line in lines] == [
            ("task.run", later),
            ("task.prioritize", later),
            ("task.delete", "acme:order-7"),
            ("task.cancel", "acme:order-7"),
        ]
        assert all(line.token and line.peer == "127.0.0.1" for line in lines)


async def test_a_change_that_cannot_be_noted_is_told_as_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_api() as (api, client):
        id = await submitted(client)

        async def note(*args: Any, **more: Any) -> None:
            raise Unreachable("away")

        monkeypatch.setattr(api.server.service.client(), "note", note)
        answer = await client.post(f"{TASKS}/{id}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
        assert f"task.cancel of {id}" in caplog.text


async def test_a_task_is_explained() -> None:
    async with open_api() as (_, client):
        id = await submitted(client, delay=60)
        seen = (await client.get(f"{TASKS}/{id}/explain")).json()
        assert seen["state"] == "scheduled"
        assert seen["reasons"][0]["code"] == "scheduled"
        assert seen["reasons"][0]["text"]
        problem(await client.get(f"{TASKS}/nothing/explain"), 404, "not-found")


async def test_a_long_poll_ends_with_the_task() -> None:
    async with open_api() as (api, client):
        with_echo(api)
        id = await submitted(client)
        waiting = asyncio.create_task(client.get(f"{TASKS}/{id}/result?wait=30"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await api.app.drain()
        answer = await asyncio.wait_for(waiting, 5)
        assert (answer.status_code, answer.json()["state"]) == (200, "completed")


async def test_a_long_poll_ends_with_its_time_and_with_the_server() -> None:
    async with open_api() as (api, client):
        id = await submitted(client)
        answer = await client.get(f"{TASKS}/{id}/result?wait=0.05")
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        waiting = asyncio.create_task(client.get(f"{TASKS}/{id}/result?wait=60"))
        await asyncio.sleep(0.05)
        api.server.drain()
        answer = await asyncio.wait_for(waiting, 5)
        assert answer.status_code == 202
        assert answer.headers["retry-after"] == "1"
        for wait in ("61", "-1", "nan", "x"):
            answer = await client.get(f"{TASKS}/{id}/result?wait={wait}")
            assert problem(answer, 422, "invalid")["field"] == "wait"


async def test_what_belongs_to_another_tenant_does_not_exist() -> None:
    async with open_api() as (api, client):
        chosen = await submitted(client, id="order-7", tenant="acme")
        made = await submitted(client, tenant="acme")
        async with api.caller(await api.token(tenant="globex")) as stranger:
            for id in (chosen, made, "order-7"):
                for method, tail in (
                    ("GET", ""),
                    ("GET", "/payload"),
                    ("GET", "/result"),
                    ("GET", "/explain"),
                    ("POST", "/cancel"),
                    ("POST", "/retry"),
                    ("DELETE", ""),
                ):
                    for query in ("", "?tenant=acme", "?tenant=globex"):
                        path = f"{TASKS}/{id}{tail}{query}"
                        problem(await stranger.request(method, path), 404, "not-found")
            assert (await stranger.get(TASKS)).json()["tasks"] == []
            problem(await stranger.get(f"{TASKS}?tenant=acme"), 404, "not-found")
            answer = await stranger.post(TASKS, json={"task": "echo", "tenant": "acme"})
            problem(answer, 404, "not-found")
            answer = await stranger.post(TASKS, json={"task": "echo", "depends_on": [made]})
            assert problem(answer, 422, "invalid")["field"] == "depends_on"
            own = await submitted(stranger)
            assert (await stranger.get(f"{TASKS}/{own}")).json()["tenant"] == "globex"
        assert (await client.get(f"{TASKS}/{chosen}")).json()["state"] == "queued"
        assert (await client.get(f"{TASKS}/{made}")).json()["state"] == "queued"


async def test_a_tenant_does_not_decide_about_the_share_of_others() -> None:
    api = Api()
    async with api.caller(await api.token("submit", tenant="acme")) as client:
        for option in ({"cost": 0.001}, {"limiters": ["smtp"]}):
            answer = await client.post(TASKS, json={"task": "echo", **option})
            assert problem(answer, 403, "forbidden")["field"] in option
    async with api.caller(await api.token("submit", "manage", tenant="acme")) as client:
        await submitted(client, cost=2)
    await api.server.service.close()


async def test_arguments_are_checked_by_what_workers_tell() -> None:
    """Another app has the code: here only its worker is known."""
    store = connect("memory://")
    shop = Fairlead(store=store)

    @shop.task(name="shop.pay", queue="payments", max_retries=7)
    async def pay(amount: int, currency: str = "EUR") -> None: ...

    api = Api(Fairlead(store=store))
    async with shop.worker(queues=["other"]), api.caller() as client:
        id = await submitted(client, task="shop.pay", args=[5])
        assert (await client.get(f"{TASKS}/{id}")).json()["queue"] == "payments"
        answer = await client.post(TASKS, json={"task": "shop.pay", "args": ["planted secret"]})
        body = problem(answer, 422, "invalid")
        assert "amount" in body["field"]
        assert body["rule"] == "a whole number"
        assert "planted" not in answer.text
        answer = await client.post(TASKS, json={"task": "shop.pay"})
        assert "amount" in problem(answer, 422, "invalid")["field"]
        answer = await client.post(TASKS, json={"task": "shop.pya", "args": [5]})
        body = problem(answer, 422, "invalid")
        assert (body["field"], body["value"]) == ("task", "shop.pya")
        assert "shop.pay" in body["detail"]
        await submitted(client, task="shop.pya", strict=False)
    await api.server.service.close()


async def test_a_name_that_nobody_has_is_taken_while_no_worker_is_known() -> None:
    async with open_api() as (_, client):
        await submitted(client, task="somebody.has.it")
        answer = await client.post(TASKS, json={"task": "somebody.has.it", "strict": True})
        problem(answer, 422, "invalid")


async def test_a_worker_that_came_is_known_to_all_calls_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.client.catalog.DOUBTED", 0.0)
    store = connect("memory://")
    shop, api = Fairlead(store=store), Api(Fairlead(store=store))

    @shop.task(name="pay", queue="payments")
    async def pay() -> None: ...

    async with api.caller() as client:
        strict = {"task": "pay", "strict": True}
        problem(await client.post(TASKS, json=strict), 422, "invalid")  # nobody is there
        async with shop.worker(queues=["other"]):
            async with asyncio.timeout(20):  # until the worker has told of it
                while (await client.post(TASKS, json=strict)).status_code != 201:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            id = await submitted(client, task="pay")
            assert (await client.get(f"{TASKS}/{id}")).json()["queue"] == "payments"
    await api.server.service.close()


async def test_tasks_of_the_app_are_known_without_a_worker() -> None:
    async with open_api() as (api, client):

        @api.app.task(name="mail", queue="mails", tenant="acme")
        async def mail(to: str) -> None: ...

        id = await submitted(client, task="mail", args=["a@x"])
        seen = (await client.get(f"{TASKS}/{id}")).json()
        assert (seen["queue"], seen["tenant"]) == ("mails", "acme")
        problem(await client.post(TASKS, json={"task": "mail", "args": []}), 422, "invalid")


async def test_ids_with_odd_characters_are_just_unknown() -> None:
    async with open_api() as (_, client):
        for id in (
            "%2F",
            "a%2Fb",
            "..%2f..",
            "%00",
            "a%0d%0ab",
            "%7B",
            "*",
            "x" * 500,
            "%E2%80%AE",
        ):
            for path in (f"{TASKS}/{id}", f"{TASKS}/{id}/result"):
                problem(await client.get(path), 404, "not-found")
        problem(await client.get(f"{TASKS}/%ff"), 400, "bad-request")


async def test_large_arguments_hold_no_other_request_up() -> None:
    async with open_api() as (_, client):
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        data = b'{"task":"a","args":[' + b"[]," * 300_000 + b"[]]}"
        headers = {"content-type": "application/json"}
        beside = asyncio.ensure_future(others())
        try:
            made = await client.post(TASKS, content=data, headers=headers)
        finally:
            beside.cancel()
        assert made.status_code == 201, made.text
        assert turns >= 10  # there were two or three
