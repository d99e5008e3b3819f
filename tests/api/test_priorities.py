"""Priorities of an app with labels of its own, over HTTP."""

from __future__ import annotations

import asyncio

from fairlead import Fairlead
from tests.api.app import Api, open_api, problem

TASKS = "/api/v1/tasks"
SIX = {"critical": 0, "p5": 1, "p4": 2, "p3": 3, "p2": 4, "p1": 5}


async def test_labels_and_numbers_are_taken_and_labels_shown() -> None:
    app = Fairlead("memory://", priorities=SIX)
    app.task(name="job")(lambda: None)
    async with open_api(app=app) as (_, client):
        made = []
        for priority in ("p1", 4, "p5"):
            new = {"task": "job", "priority": priority, "delay": 60}
            made.append((await client.post(TASKS, json=new)).json()["id"])
        shown = [(await client.get(f"{TASKS}/{id}")).json()["priority"] for id in made]
        assert shown == ["p1", "p2", "p5"]
        listed = (await client.get(TASKS)).json()["tasks"]
        assert {each["id"]: each["priority"] for each in listed} == dict(
            zip(made, shown, strict=True)
        )
        for priority, label in (("p4", "p4"), (0, "critical"), ("level-5", "p1")):
            answer = await client.patch(f"{TASKS}/{made[1]}", json={"priority": priority})
            assert answer.status_code == 200
            assert (await client.get(f"{TASKS}/{made[1]}")).json()["priority"] == label
        answer = await client.patch(f"{TASKS}/{made[0]}", json={"priority": "high"})
        assert "critical, p5, p4" in problem(answer, 422, "invalid")["rule"]
        body = {"action": "prioritize", "priority": "p3", "filter": {"queue": "default"}}
        answer = await client.post(f"{TASKS}/act", json=body)
        assert (answer.status_code, answer.json()["changed"]) == (200, 3)


async def test_who_does_not_know_the_app_sees_levels() -> None:
    app = Fairlead("memory://", priorities=SIX)
    job = app.task(name="job")(lambda: None)
    handle = await job.using(priority="p1", delay=60).aenqueue()
    api = Api(Fairlead(store=app._clients.store))
    async with api.caller() as client:
        shown = (await client.get(f"{TASKS}/{handle.id}")).json()
        assert shown["priority"] == "level-5"


async def test_events_say_the_label_that_a_task_was_given() -> None:
    app = Fairlead("memory://", priorities=SIX)
    job = app.task(name="job")(lambda: None)
    handle = await job.using(delay=60).aenqueue()
    assert (await handle.ainfo()).priority == "p3", "the middle one"
    async with open_api(app=app) as (_, client):
        for priority in ("p5", 5):
            await client.patch(f"{TASKS}/{handle.id}", json={"priority": priority})
        async with asyncio.timeout(10):
            heard = []
            async for event in app.events("task.prioritized", after="oldest"):
                heard.append(event.reason)
                if len(heard) == 2:
                    break
    assert heard == ["p5", "p1"]
