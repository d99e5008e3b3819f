"""Many tasks in one request: arrays and lines."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fairlead.broker.requests import Receipt, Submission
from fairlead.model.errors import Ambiguous, Refused, TooLarge, Unreachable
from tests.api.app import Api, open_api, problem

BATCH = "/api/v1/tasks/batch"
LINES = {"content-type": "application/x-ndjson"}


def lines_of(*tasks: Any) -> bytes:
    return b"".join(json.dumps(task).encode() + b"\n" for task in tasks)


def answers(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_an_array_is_answered_task_by_task() -> None:
    async with open_api() as (_, client):
        tasks = [{"task": "a", "id": "x"}, {"task": "a", "id": "x"}, {"task": "b", "id": "x"}]
        answer = await client.post(BATCH, json=tasks)
        assert answer.status_code == 207
        body = answer.json()
        assert [each["code"] for each in body["results"]] == ["accepted", "duplicate", "refused"]
        assert body["results"][2]["problem"]["type"] == "/problems/conflict"
        counts = {name: body[name] for name in ("accepted", "duplicates", "refused", "in_doubt")}
        assert counts == {"accepted": 1, "duplicates": 1, "refused": 1, "in_doubt": 0}
        answer = await client.post(BATCH, json=[{"task": "a"}] * 3)
        assert (answer.status_code, answer.json()["accepted"]) == (200, 3)
        assert (await client.post(BATCH, json=[])).json()["results"] == []


async def test_an_array_with_a_bad_task_enqueues_nothing() -> None:
    async with open_api() as (_, client):
        answer = await client.post(BATCH, json=[{"task": "a"}, {"task": "a", "queue": "a b"}])
        assert problem(answer, 422, "invalid")["field"] == "[1].queue"
        answer = await client.post(BATCH, json=[{"task": "a"}, {"task": "a", "delay": []}])
        assert problem(answer, 422, "invalid")["field"].startswith("[1].delay")
        answer = await client.post(BATCH, json=[{"task": "a"}] * 5_001)
        problem(answer, 413, "too-large")
        assert (await client.get("/api/v1/tasks")).json()["tasks"] == []


async def test_tasks_of_an_array_may_depend_on_each_other() -> None:
    async with open_api() as (_, client):
        tasks = [{"task": "b", "id": "b", "depends_on": ["a"]}, {"task": "a", "id": "a"}]
        answer = await client.post(BATCH, json=tasks)
        assert answer.status_code == 200, answer.text
        states = {
            each["id"]: each["state"]
            for each in (await client.get("/api/v1/tasks")).json()["tasks"]
        }
        assert states == {"default:a": "queued", "default:b": "deferred"}
        cycle = [
            {"task": "c", "id": "c", "depends_on": ["d"]},
            {"task": "d", "id": "d", "depends_on": ["c"]},
        ]
        answer = await client.post(BATCH, json=cycle)
        assert [each["code"] for each in answer.json()["results"]] == ["refused", "refused"]


async def test_lines_are_answered_in_order_and_a_bad_one_stops_no_other() -> None:
    async with open_api() as (_, client):
        data = lines_of({"task": "a", "id": "a"})
        data += b"not json\n\n" + lines_of({"task": "b", "colour": 1}, {"task": "a", "id": "a"})
        data += b'{"task":"t","args":[NaN]}\r\n' + b'{"task":"last"}'
        answer = await client.post(BATCH, content=data, headers=LINES)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        *found, end = answers(answer.text)
        assert [(each["index"], each["code"]) for each in found] == [
            (0, "accepted"), (1, "refused"), (2, "refused"), (3, "duplicate"), (4, "refused"),
            (5, "accepted"),
        ]  # fmt: skip
        assert [each["problem"]["status"] for each in found if "problem" in each] == [400, 422, 422]
        assert found[2]["problem"]["field"] == "colour"
        assert end == {
            "code": "end", "lines": 6, "accepted": 2, "spooled": 0, "duplicates": 1, "refused": 3,
            "in_doubt": 0,
        }  # fmt: skip


async def test_only_what_was_not_accepted_is_answered_if_the_caller_likes() -> None:
    async with open_api() as (_, client):
        data = lines_of({"task": "a"}) * 1_500 + b"{}\n"
        answer = await client.post(f"{BATCH}?answers=refused", content=data, headers=LINES)
        bad, end = answers(answer.text)
        assert (bad["index"], bad["code"]) == (1_500, "refused")
        assert (end["accepted"], end["lines"]) == (1_500, 1_501)


async def test_lines_may_come_in_any_pieces() -> None:
    async with open_api() as (_, client):
        data = lines_of(*({"task": "t", "args": ["ä", at]} for at in range(50)))

        async def bit_by_bit() -> AsyncIterator[bytes]:
            for at in range(0, len(data), 7):
                yield data[at : at + 7]

        answer = await client.post(BATCH, content=bit_by_bit(), headers=LINES)
        *found, end = answers(answer.text)
        assert [each["index"] for each in found] == list(range(50))
        assert end["accepted"] == 50


async def test_a_line_without_an_end_is_not_kept() -> None:
    async with open_api() as (_, client):

        async def endless() -> AsyncIterator[bytes]:
            yield lines_of({"task": "a"})
            while True:
                yield b"x" * 65_536

        answer = await client.post(BATCH, content=endless(), headers=LINES)
        found = answers(answer.text)
        assert [each["code"] for each in found] == ["accepted", "stopped", "end"]
        assert found[1]["problem"]["status"] == 413


async def test_what_belongs_to_others_is_refused_line_by_line() -> None:
    async with open_api() as (api, client):
        foreign = (await client.post("/api/v1/tasks", json={"task": "a", "tenant": "x"})).json()
        async with api.caller(await api.token("submit", tenant="acme")) as own:
            data = lines_of(
                {"task": "a"},
                {"task": "a", "tenant": "x"},
                {"task": "a", "depends_on": [foreign["id"]]},
                {"task": "b", "depends_on": [foreign["id"]]},
                {"task": "a", "tenant": "acme"},
            )
            found = answers((await own.post(BATCH, content=data, headers=LINES)).text)
            codes = [each["code"] for each in found]
            assert codes == ["accepted", "refused", "refused", "refused", "accepted", "end"]
            assert found[1]["problem"]["status"] == 404
            assert found[2]["problem"]["status"] == 422


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Ambiguous("no reply"), "in_doubt"),
        (Unreachable("no way"), "refused"),
        (Refused("oom", "out of memory"), "refused"),
    ],
)
async def test_a_broker_that_fails_in_the_middle_ends_the_batch_and_leaves_no_lie(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    async with open_api() as (api, client):
        real = api.app._clients.store.enqueue
        calls = 0

        async def enqueue(
            call: Any, submissions: Sequence[Submission], **more: Any
        ) -> list[Receipt]:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise error
            return await real(call, submissions, **more)

        monkeypatch.setattr(api.app._clients.store, "enqueue", enqueue)
        api.server.service.client().limit = 0.05
        api.server.service.client()._caller.limit = 0.05
        data = lines_of(*({"task": "t", "args": [at]} for at in range(1_600)))
        found = answers((await client.post(BATCH, content=data, headers=LINES)).text)
        codes = [each["code"] for each in found]
        assert codes[:500] == ["accepted"] * 500
        assert codes[500:1000] == [code] * 500
        assert codes[1000:] == ["stopped", "end"]
        assert found[1000]["index"] == 1_000
        assert all(each["id"] for each in found[500:1000])
        assert {each["problem"]["status"] for each in found[500:1000]} == {503}


async def test_lines_stop_when_the_server_drains() -> None:
    async with open_api() as (api, client):

        async def slowly() -> AsyncIterator[bytes]:
            yield lines_of({"task": "a"})
            yield lines_of({"task": "a"})
            api.server.drain()
            yield lines_of({"task": "a"})
            yield lines_of({"task": "a"})

        found = answers((await client.post(BATCH, content=slowly(), headers=LINES)).text)
        codes = [each["code"] for each in found]
        assert codes[-2:] == ["stopped", "end"]
        assert found[-1]["accepted"] == codes.count("accepted") < 4


async def test_other_kinds_of_bodies_are_refused() -> None:
    api = Api()
    async with api.caller() as client:
        answer = await client.post(BATCH, content=b"[]", headers={"content-type": "text/csv"})
        rule = problem(answer, 415, "unsupported-media-type")["rule"]
        assert rule == "application/json or application/x-ndjson"
    await api.server.service.close()


async def test_a_broker_that_cannot_say_what_is_known_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api(patience=0.2) as (api, client):
        asked = 0

        async def workers(**options: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()  # as a broker that does not answer

        monkeypatch.setattr(api.app._clients.store, "workers", workers)
        answer = await client.post(BATCH, json=[{"task": "a"}] * 50)
        assert problem(answer, 503, "broker-away")["retry_after"] == 2.0
        data = lines_of(*[{"task": "a"}] * 50)
        found = answers((await client.post(BATCH, content=data, headers=LINES)).text)
        assert [each["code"] for each in found] == ["stopped", "end"]
        assert (found[0]["index"], found[0]["problem"]["status"]) == (0, 503)
        assert asked == 2


async def test_what_was_sent_one_by_one_is_answered_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api(patience=0.2) as (api, client):
        real, calls = api.app._clients.store.enqueue, 0

        async def enqueue(call: Any, submissions: Any, **more: Any) -> list[Receipt]:
            nonlocal calls
            calls += 1
            if len(submissions) > 1:
                raise TooLarge("one of them", 2, 1)  # and spoils the others
            if submissions[0].message.id == "default:b":
                raise TooLarge("this one", 2, 1)
            if submissions[0].message.id == "default:d":
                raise Refused("oom", "no memory")
            return await real(call, submissions, **more)

        monkeypatch.setattr(api.app._clients.store, "enqueue", enqueue)
        tasks = [{"task": "t", "id": id} for id in "abcde"]
        body = (await client.post(BATCH, json=tasks)).json()
        codes = [each["code"] for each in body["results"]]
        assert codes == ["accepted", "refused", "accepted", "refused", "refused"]
        assert [each["problem"]["status"] for each in body["results"][3:]] == [503, 503]


async def test_a_body_that_is_refused_is_not_unfolded_to_say_why() -> None:
    async with open_api() as (_, client):
        headers = {"content-type": "application/json"}
        for end in (b"[]]", b"[]"):
            data = b"[" + b"[]," * 1_300_000 + end
            tracemalloc.start()
            try:
                answer = await client.post(BATCH, content=data, headers=headers)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer.status_code == 422
            assert peak < 4 * len(data)  # it was 25 times as much
        answer = await client.post(BATCH, content=b"[" + b" " * 2**22 + b"]", headers=headers)
        problem(answer, 413, "too-large")


async def test_a_broker_without_memory_is_told_from_one_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_api() as (api, client):

        async def enqueue(*_: Any, **__: Any) -> Any:
            raise Refused("oom", "the server at 10.0.0.1 is out of memory")

        monkeypatch.setattr(api.app._clients.store, "enqueue", enqueue)
        answer = await client.post("/api/v1/tasks", json={"task": "t"})
        found = problem(answer, 503, "broker-full")
        assert "out of memory" in found["detail"]
        assert "10.0.0.1" not in answer.text
        assert answer.headers["retry-after"] == "2"
        answer = await client.post(BATCH, json=[{"task": "t"}])
        assert problem(answer, 503, "broker-full")["retry_after"] == 2.0
