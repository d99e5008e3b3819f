"""Dead letters: listed, grouped by what they died of, requeued and deleted."""

from __future__ import annotations

import json

import pytest

from fairlead.client.error_groups import normalized
from fairlead.model.lifecycle import State
from tests.api.routes.site import Caller, Site


async def test_dead_letters_tell_what_they_died_of(s: Site, operator: Caller) -> None:
    (id,) = await s.dead(error=("OSError", "no route\nto host"), task="mail.send", args=["secret"])
    await s.enqueue()
    answer = await operator.call("GET", "/dead-letters")
    (found,) = answer.json()["dead_letters"]
    assert (found["id"], found["task"], found["reason"]) == (id, "mail.send", "exhausted")
    assert (found["error_type"], found["error_message"]) == ("OSError", "no route to host")
    assert found["dead_at"] is not None
    assert "secret" not in answer.text


async def test_dead_letters_are_filtered_and_come_in_pages(s: Site, operator: Caller) -> None:
    await s.dead(5, task="a.x", error=("OSError", "down"))
    await s.dead(4, task="b", error=("KeyError", "k"), tenant="big", queue="mail")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await operator.get("/dead-letters", limit=2, **cursor)
        assert len(page["dead_letters"]) <= 2
        seen += [each["id"] for each in page["dead_letters"]]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert len(seen) == len(set(seen)) == 9
    for query, count in (
        ({"queue": "mail"}, 4),
        ({"tenant": "acme"}, 5),
        ({"name": "a.*"}, 5),
        ({"name": "b"}, 4),
        ({"error": "KeyError"}, 4),
        ({"error": "nothing"}, 0),
    ):
        assert len((await operator.get("/dead-letters", **query))["dead_letters"]) == count, query
    await operator.problem(422, "GET", "/dead-letters", cursor="nonsense")
    await operator.problem(422, "GET", "/dead-letters", limit=201)


async def test_groups_have_what_errors_have_in_common(s: Site, operator: Caller) -> None:
    await s.dead(3, error=("OSError", "host 10.0.0.1:80 is down\nmore"))
    s.clock.go_on(5.0)
    (newest,) = await s.dead(1, error=("OSError", "host 10.0.0.77:8080 is down"))
    await s.dead(2, error=("OSError", "host is up"))
    await s.dead(1, error=("OSError", "host 1 is down"), task="other")
    found = await operator.get("/dead-letters/groups")
    assert [(each["task"], each["message"], each["count"]) for each in found["groups"][:2]] == [
        ("work", "host # is down", 4),
        ("work", "host is up", 2),
    ]
    assert found["groups"][0]["sample"] == newest
    assert (found["examined"], found["cursor"], len(found["groups"])) == (7, None, 3)
    group = found["groups"][0]["group"]
    assert len((await operator.get("/dead-letters", group=group))["dead_letters"]) == 4


async def test_a_group_is_requeued_and_nothing_else(s: Site, operator: Caller) -> None:
    ours = await s.dead(3, error=("OSError", "host 1 is down"))
    others = await s.dead(2, error=("OSError", "other"))
    groups = (await operator.get("/dead-letters/groups"))["groups"]
    body = {"group": groups[0]["group"]}
    tried = await operator.ok("POST", "/dead-letters/requeue", {**body, "dry_run": True})
    assert (tried["matched"], tried["changed"], tried["cursor"]) == (3, 0, None)
    assert set(await s.states(ours)) == {State.DEAD}
    done = await operator.ok("POST", "/dead-letters/requeue", body)
    assert (done["matched"], done["changed"]) == (3, 3)
    assert set(await s.states(ours)) == {State.QUEUED}
    assert set(await s.states(others)) == {State.DEAD}


async def test_some_are_deleted_by_their_ids(s: Site, operator: Caller) -> None:
    one, two, three = await s.dead(3)
    (waiting,) = await s.enqueue()
    done = await operator.ok("POST", "/dead-letters/delete", {"ids": [one, two, waiting, "x"]})
    assert (done["examined"], done["matched"], done["changed"]) == (4, 2, 2)
    assert await s.states([one, two, three, waiting]) == [None, None, State.DEAD, State.QUEUED]


async def test_all_are_requeued_in_steps(s: Site, operator: Caller) -> None:
    ids = [id for _ in range(5) for id in await s.dead(100)]
    body: dict[str, object] = {"all": True}
    steps = []
    while True:
        step = await operator.ok("POST", "/dead-letters/requeue", body)
        assert step["changed"] <= 200
        steps.append(step)
        if step["cursor"] is None:
            break
        body = {"all": True, "cursor": step["cursor"]}
    assert len(steps) >= 3
    assert steps[-1]["total"]["changed"] == 500
    assert set(await s.states(ids)) == {State.QUEUED}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"all": True, "ids": ["a"]},
        {"group": "0" * 16, "all": True},
        {"group": "x"},
        {"ids": ["a"] * 201},
        {"ids": ["a"], "queue": "mail"},
    ],
)
async def test_an_order_says_which_ones_it_means(
    s: Site, operator: Caller, body: dict[str, object]
) -> None:
    await s.dead()
    await operator.problem(422, "POST", "/dead-letters/delete", body)
    assert (await s.store.snapshot()).dead == 1


async def test_tenants_reach_their_own_dead_letters_only(s: Site, acme: Caller) -> None:
    (own,) = await s.dead(tenant="acme", error=("OSError", "mine"))
    (other,) = await s.dead(tenant="big", error=("OSError", "secret of big"))
    answer = await acme.call("GET", "/dead-letters")
    assert [each["id"] for each in answer.json()["dead_letters"]] == [own]
    groups = await acme.call("GET", "/dead-letters/groups")
    assert [each["count"] for each in groups.json()["groups"]] == [1]
    assert "big" not in answer.text + groups.text
    await acme.problem(404, "GET", "/dead-letters", tenant="big")
    for action in ("requeue", "delete"):
        await acme.problem(404, "POST", f"/dead-letters/{action}", {"all": True, "tenant": "big"})
        by_id = await acme.ok("POST", f"/dead-letters/{action}", {"ids": [other]})
        assert (by_id["matched"], by_id["changed"]) == (0, 0)
    done = await acme.ok("POST", "/dead-letters/delete", {"all": True})
    assert done["changed"] == 1
    assert await s.states([own, other]) == [None, State.DEAD]


async def test_the_trail_has_orders_but_no_content(s: Site, operator: Caller) -> None:
    await s.dead(2, args=["planted-secret"], error=("OSError", "planted-secret"))
    await operator.ok("POST", "/dead-letters/requeue", {"all": True, "queue": "default"})
    answer = await operator.call("GET", "/audit")
    (entry,) = answer.json()["entries"]
    assert (entry["action"], entry["details"]["changed"]) == ("dead_letters.retry", 2)
    assert "planted-secret" not in answer.text


async def test_progress_comes_line_by_line(s: Site, operator: Caller) -> None:
    for _ in range(3):
        await s.dead(100)
    answer = await operator.call(
        "POST", "/dead-letters/delete", {"all": True}, accept="application/x-ndjson"
    )
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) >= 2
    assert [line["total"]["changed"] for line in lines][-1] == 300
    assert lines[-1]["cursor"] is None
    entries = (await operator.get("/audit"))["entries"]
    # The latest first: what it came to, and that it was begun.
    assert [each["details"]["changed"] for each in entries] == [300, lines[0]["changed"]]
    assert [each["details"].get("goes_on", False) for each in entries] == [False, True]


@pytest.mark.parametrize(
    ("message", "common"),
    [
        ("user 'bob' has no mail", "user '…' has no mail"),
        ("no task 0190f3c2aa7b7c1e8a11b2c3d4e5f607", "no task #"),
        ("at 0x7f3a: 12.5 s, 3 of 4", "at #: # s, # of #"),
        ("first\nsecond", "first"),
        ("the cafe is closed", "the cafe is closed"),
        ("'" * 5_000, "'…'" * 150),
    ],
)
def test_what_differs_from_task_to_task_is_left_out(message: str, common: str) -> None:
    assert normalized(message) == common[:300] + ("…" if len(common) > 300 else "")
