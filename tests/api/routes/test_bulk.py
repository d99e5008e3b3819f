"""Orders about all tasks that match a filter."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fairlead.broker.requests import Alter
from fairlead.model.errors import Unreachable
from fairlead.model.lifecycle import State
from fairlead.model.message import ErrorInfo
from tests.api.routes.site import Caller, Site


async def acted(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """The last step of an act that is carried out to its end."""
    while True:
        step: dict[str, Any] = await caller.ok("POST", "/tasks/act", body)
        if step["cursor"] is None:
            return step
        body = {**body, "cursor": step["cursor"]}


async def test_all_that_match_are_cancelled(s: Site, operator: Caller) -> None:
    ours = await s.enqueue(250, task="mail.send", tenant="acme")
    others = await s.enqueue(3, task="other", tenant="acme")
    body = {"action": "cancel", "filter": {"name": "mail.*", "state": "pending"}}
    dry = await acted(operator, {**body, "dry_run": True})
    assert (dry["total"]["matched"], dry["total"]["changed"]) == (250, 0)
    assert set(await s.states(ours)) == {State.QUEUED}
    done = await acted(operator, body)
    assert done["total"]["changed"] == 250
    assert set(await s.states(ours)) == {State.CANCELLED}
    assert set(await s.states(others)) == {State.QUEUED}


async def test_tasks_that_came_later_are_left_alone(s: Site, operator: Caller) -> None:
    await s.enqueue(300)
    body: dict[str, Any] = {"action": "cancel", "filter": {"queue": "default"}}
    first = await operator.ok("POST", "/tasks/act", body)
    s.clock.go_on(1.0)
    later = await s.enqueue(50)
    last = await acted(operator, {**body, "cursor": first["cursor"]})
    assert last["total"]["changed"] == 300
    assert set(await s.states(later)) == {State.QUEUED}


async def test_an_act_ends_while_new_tasks_come_in(s: Site, operator: Caller) -> None:
    await s.enqueue(300)
    body: dict[str, Any] = {"action": "cancel", "filter": {"tenant": "acme"}}
    steps = 0
    step: dict[str, Any] = {}
    while steps < 20:
        steps += 1
        step = await operator.ok("POST", "/tasks/act", body)
        if step["cursor"] is None:
            break
        body["cursor"] = step["cursor"]
        s.clock.go_on(0.001)
        for _ in range(3):  # faster than it goes
            await s.enqueue(500, tenant="acme")
    assert step["cursor"] is None
    assert step["total"]["changed"] == 300
    assert steps > 3


async def test_what_died_again_is_not_retried_twice(s: Site, operator: Caller) -> None:
    ids = [id for _ in range(3) for id in await s.dead(100)]
    body: dict[str, Any] = {"action": "retry", "filter": {"state": "dead_letter"}}
    first = await operator.ok("POST", "/tasks/act", body)
    assert first["changed"] == 200
    s.clock.go_on(1.0)
    await s.settle(await s.fetch(128), State.DEAD)
    done = await acted(operator, {**body, "cursor": first["cursor"]})
    assert done["total"]["changed"] == 300
    states = await s.states(ids)
    assert states.count(State.DEAD) == 128


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"action": "cancel"}, "filter"),
        ({"action": "explode", "all": True}, "action"),
        ({"action": "cancel", "filter": {"state": "dead"}}, "filter.state"),
        ({"action": "cancel", "filter": {"state": "blue"}}, "state"),
        ({"action": "prioritize", "all": True}, "priority"),
        ({"action": "cancel", "all": True, "priority": "low"}, "priority"),
        ({"action": "cancel", "all": True, "cursor": "nonsense"}, "cursor"),
        ({"action": "cancel", "filter": {"color": "red"}}, "color"),
        ({"action": "cancel", "filter": {"queue": "a b"}}, "queue"),
    ],
)
async def test_a_wrong_act_changes_nothing(
    s: Site, operator: Caller, body: dict[str, Any], field: str
) -> None:
    ids = await s.enqueue(2)
    problem = await operator.problem(422, "POST", "/tasks/act", body)
    assert field in problem.get("field", "") + problem["detail"]
    assert set(await s.states(ids)) == {State.QUEUED}


async def test_a_cursor_belongs_to_its_act(s: Site, operator: Caller) -> None:
    await s.enqueue(300)
    dry = {"action": "cancel", "all": True, "dry_run": True}
    cursor = (await operator.ok("POST", "/tasks/act", dry))["cursor"]
    problem = await operator.problem(
        422, "POST", "/tasks/act", {"action": "cancel", "all": True, "cursor": cursor}
    )
    assert problem["field"] == "cursor"


async def test_an_act_of_a_tenant_reaches_its_own_tasks(s: Site, acme: Caller) -> None:
    ours = await s.enqueue(5, tenant="acme")
    others = await s.enqueue(5, tenant="big")
    await acme.problem(404, "POST", "/tasks/act", {"action": "cancel", "filter": {"tenant": "big"}})
    done = await acme.ok("POST", "/tasks/act", {"action": "cancel", "all": True})
    assert (done["examined"], done["changed"]) == (5, 5)
    assert set(await s.states(ours)) == {State.CANCELLED}
    assert set(await s.states(others)) == {State.QUEUED}


async def test_all_steps_come_in_one_answer(s: Site, operator: Caller) -> None:
    await s.enqueue(450)
    body = {"action": "cancel", "filter": {"state": "queued"}}
    answer = await operator.call("POST", "/tasks/act", body, accept="application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["changed"] for line in lines if line["changed"]] == [200, 200, 50]
    assert lines[-1]["cursor"] is None


async def test_completed_tasks_are_deleted(s: Site, operator: Caller) -> None:
    done = await s.enqueue(3)
    await s.settle(await s.fetch(3), State.COMPLETED)
    waiting = await s.enqueue(2)
    step = await operator.ok("POST", "/tasks/act", {"action": "delete", "all": True})
    assert (step["matched"], step["changed"]) == (3, 3)
    assert await s.states([*done, *waiting]) == [None] * 3 + [State.QUEUED] * 2


async def test_it_takes_the_scope(s: Site) -> None:
    reader = await s.caller("read", "submit", "payload")
    await reader.problem(403, "POST", "/tasks/act", {"action": "cancel", "all": True})


async def test_scheduled_tasks_are_run_now(s: Site, operator: Caller) -> None:
    later = await s.enqueue(3, delay=600.0)
    step = await operator.ok("POST", "/tasks/act", {"action": "run", "all": True})
    assert step["changed"] == 3
    assert set(await s.states(later)) == {State.QUEUED}


async def test_waiting_tasks_get_another_priority(s: Site, operator: Caller) -> None:
    ids = await s.enqueue(3)
    body = {"action": "prioritize", "priority": "critical", "filter": {"queue": "default"}}
    assert (await operator.ok("POST", "/tasks/act", body))["changed"] == 3
    first = await s.enqueue(1, level=1)
    assert [lease.message.id for lease in await s.fetch(4)] == [*ids, *first]
    (entry,) = (await operator.get("/audit"))["entries"]
    assert entry["details"]["priority"] == "critical"


async def test_a_task_that_changed_since_it_was_read_is_left_alone(
    s: Site, operator: Caller
) -> None:
    (id,) = await s.enqueue()

    async def start() -> None:
        await s.fetch()

    s.interrupt(start)
    body = {"action": "cancel", "filter": {"state": "queued"}}
    step = await operator.ok("POST", "/tasks/act", body)
    assert (step["matched"], step["changed"]) == (1, 0)
    (record,) = await s.store.find([id])
    assert record is not None
    assert (record.state, record.cancelling) == (State.RUNNING, False)


async def test_a_dead_letter_that_died_of_something_else_is_left_alone(
    s: Site, operator: Caller
) -> None:
    (id,) = await s.dead(error=("OSError", "down"))
    group = (await operator.get("/dead-letters/groups"))["groups"][0]["group"]

    async def die_again() -> None:
        s.interrupt(None)
        await s.store.alter(s.call_id(), [Alter(id=id, action="requeue")])
        await s.settle(await s.fetch(), State.DEAD, ErrorInfo("KeyError", "other"))

    s.interrupt(die_again)
    step = await operator.ok("POST", "/dead-letters/delete", {"group": group})
    assert (step["matched"], step["changed"]) == (1, 0)
    assert await s.states([id]) == [State.DEAD]


async def test_an_act_stops_when_its_caller_is_gone(s: Site, operator: Caller) -> None:
    await s.enqueue(500)
    await s.enqueue(500)
    body = json.dumps({"action": "cancel", "all": True}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    gone = asyncio.Event()
    lines: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):  # as servers do: what is sent to nobody is dropped
            lines.append(message["body"])
            gone.set()
            await asyncio.sleep(0)

    connection = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/tasks/act",
        "raw_path": b"/api/v1/tasks/act",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"authorization", f"Bearer {operator.token}".encode()),
            (b"accept", b"application/x-ndjson"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
    }
    await s.server(connection, receive, send)
    assert len(lines) <= 2
    left = (await s.store.snapshot()).depth
    assert left >= 600
    entry, begun = (await operator.get("/audit"))["entries"]
    assert entry["details"]["changed"] == 1_000 - left
    assert begun["details"]["goes_on"]


async def test_a_stream_that_the_broker_fails_says_where_to_go_on(
    s: Site, operator: Caller
) -> None:
    ids = await s.enqueue(450)
    pages = 0

    async def fail() -> None:
        nonlocal pages
        pages += 1
        if pages == 2:
            raise Unreachable("the broker is away")

    s.interrupt(fail)
    body = {"action": "cancel", "filter": {"state": "queued"}}
    answer = await operator.call("POST", "/tasks/act", body, accept="application/x-ndjson")
    first, last = (json.loads(line) for line in answer.text.splitlines())
    assert (first["changed"], last["problem"]["type"]) == (200, "/problems/broker-away")
    done = await acted(operator, {**body, "cursor": last["cursor"]})
    assert done["total"]["changed"] == 450
    assert set(await s.states(ids)) == {State.CANCELLED}
