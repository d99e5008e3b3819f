"""Workers: what they say of themselves, and orders."""

from __future__ import annotations

from tests.api.routes.site import Caller, Site


async def test_workers_tell_what_they_run(s: Site, operator: Caller) -> None:
    details = {"held": 2, "settled": 10, "now": [["id-1", "mail.send"]], "quiet": False}
    await s.worker("w1", host="h", pid=7, queues=("a",), concurrency=4, running=1, details=details)
    await s.worker("w2", concurrency=2, tasks=("b", "a"))
    found = await operator.get("/workers")
    assert (found["running"], found["concurrency"]) == (1, 6)
    one = found["workers"][0]
    assert (one["id"], one["host"], one["pid"], one["state"]) == ("w1", "h", 7, "working")
    assert one["now"] == [{"id": "id-1", "name": "mail.send"}]
    assert (one["held"], one["settled"]) == (2, 10)
    assert (await operator.get("/workers/w2"))["tasks"] == ["a", "b"]
    await operator.problem(404, "GET", "/workers/w3")
    first = await operator.get("/workers", limit=1)
    assert first["cursor"] == "w1"
    assert (await operator.get("/workers", limit=1, cursor="w1"))["workers"][0]["id"] == "w2"


async def test_details_of_a_worker_may_be_anything(s: Site, operator: Caller) -> None:
    await s.worker("w1", details={"now": "x", "held": "y", "settled": None, "fenced": [1]})
    await s.worker("w2", details={"now": [1, ["x"], [None, 2]]})
    one, two = (await operator.get("/workers"))["workers"]
    assert (one["now"], one["held"], two["now"]) == ([], 0, [{"id": "None", "name": "2"}])


async def test_a_worker_says_that_it_stops_or_takes_nothing_new(s: Site, operator: Caller) -> None:
    await s.worker("w1", details={"state": "stopping", "quiet": True})
    await s.worker("w2", details={"state": "quiet", "quiet": True})
    await s.worker("w3", details={"state": "working", "quiet": False})
    await s.worker("w4", details={"state": "paused", "quiet": True})  # resumed, but not heard yet
    states = [each["state"] for each in (await operator.get("/workers"))["workers"]]
    assert states == ["stopping", "quiet", "working", "working"]


async def test_workers_are_ordered_to_pause_resume_and_stop(s: Site, operator: Caller) -> None:
    await s.worker("w1", host="h", pid=7)
    for order, state in (("pause", "pausing"), ("resume", "working"), ("stop", "stopping")):
        answer = await operator.call("POST", f"/workers/w1/{order}")
        assert (answer.status_code, answer.json()) == (202, {"id": "w1", "order": order})
        assert (await operator.get("/workers/w1"))["state"] == state
        await operator.problem(404, "POST", f"/workers/nobody/{order}")
    assert (await s.store.beat("w1")).order == "stop"
    actions = [each["action"] for each in (await operator.get("/audit"))["entries"]]
    assert actions == ["worker.stop", "worker.resume", "worker.pause"]


async def test_workers_are_not_for_tenants(s: Site, acme: Caller) -> None:
    await s.worker("w1", details={"now": [["big:1", "secret"]]})
    await acme.problem(403, "GET", "/workers")
    await acme.problem(403, "GET", "/workers/w1")
    for order in ("pause", "resume", "stop"):
        await acme.problem(403, "POST", f"/workers/w1/{order}")
    assert (await s.store.beat("w1")).order == ""
