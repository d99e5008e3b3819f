"""Flows: graphs with states, and orders about a flow as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from fairlead.broker.flows import FlowPart, Share
from fairlead.broker.requests import Submission
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, ErrorInfo, Message
from fairlead.model.options import Dependency
from fairlead.runtime.ids import new_id
from tests.api.routes.site import Caller, Site


def member(
    id: str, after: Sequence[str] = (), tenant: str = "acme", task: str = "work"
) -> Submission:
    body = Body(task=task, arguments=b"").encode()
    return Submission(
        message=Message(id=id, queue="default", tenant=tenant, body=body),
        depends_on=tuple(Dependency(each) for each in after),
    )


async def make(
    s: Site, *members: Submission, tenant: str = "acme", name: str = "", id: str = ""
) -> str:
    """A flow that is laid out; its id."""
    flow = id or new_id()
    shares = Counter((each.message.queue, each.message.tenant) for each in members)
    for number, start in enumerate(range(0, len(members), 500)):
        part = FlowPart(
            flow=flow,
            number=number,
            tenant=tenant,
            name=name,
            shares=tuple(Share(*key, count) for key, count in shares.items())
            if number == 0
            else (),
            members=members[start : start + 500],
        )
        assert (await s.store.stage(s.call_id(), part)).code == "staged"
    assert (await s.store.commit(s.call_id(), flow)).code == "committed"
    while (await s.store.deliver()).more:
        pass
    return flow


async def test_a_flow_shows_its_graph(s: Site, operator: Caller) -> None:
    a, b, z = new_id(), new_id(), new_id()
    flow = await make(
        s, member(a, task="load"), member(b, [a]), member(z, [a, b], task="sum"), name="nightly"
    )
    await s.settle(await s.fetch(1), State.COMPLETED)
    found = await operator.get(f"/flows/{flow}")
    assert (found["name"], found["state"], found["total"]) == ("nightly", "running", 3)
    assert found["progress"] == pytest.approx(1 / 3)
    assert [(each["id"], each["name"], each["state"]) for each in found["nodes"]] == [
        (a, "load", "completed"),
        (b, "work", "queued"),
        (z, "sum", "deferred"),
    ]
    assert found["edges"] == [
        {"from": a, "to": b},
        {"from": a, "to": z},
        {"from": b, "to": z},
    ]
    assert (found["cursor"], found["hidden"]) == (None, False)
    assert (await operator.get(f"/flows/{flow}", limit=0))["nodes"] == []
    await operator.problem(404, "GET", f"/flows/{new_id()}")
    await operator.problem(404, "GET", "/flows/a%2Fb")


async def test_a_large_graph_comes_in_pages(s: Site, operator: Caller) -> None:
    ids = [new_id() for _ in range(1_200)]
    flow = await make(s, *(member(id, ids[n - 1 : n]) for n, id in enumerate(ids)))
    first = await operator.get(f"/flows/{flow}")
    assert (len(first["nodes"]), first["cursor"]) == (1_000, 1_000)
    rest = await operator.get(f"/flows/{flow}", cursor=first["cursor"])
    assert (len(rest["nodes"]), rest["cursor"]) == (200, None)
    assert rest["edges"][0] == {"from": ids[999], "to": ids[1_000]}
    assert len(first["edges"]) + len(rest["edges"]) == 1_199
    await operator.problem(422, "GET", f"/flows/{flow}", limit=1_001)
    assert (await operator.get(f"/flows/{flow}", cursor=9_999))["nodes"] == []


async def test_a_chosen_id_belongs_to_a_tenant(s: Site, operator: Caller, acme: Caller) -> None:
    await make(s, member(new_id()), id="acme:nightly-1.x")
    assert (await acme.get("/flows/nightly-1.x"))["id"] == "acme:nightly-1.x"
    assert (await operator.get("/flows/nightly-1.x", tenant="acme"))["tenant"] == "acme"
    assert (await operator.get("/flows/acme%3Anightly-1.x"))["tenant"] == "acme"
    await operator.problem(404, "GET", "/flows/nightly-1.x")


async def test_a_flow_is_cancelled_and_retried(s: Site, operator: Caller) -> None:
    a, b = new_id(), new_id()
    flow = await make(s, member(a), member(b, [a]))
    await s.settle(await s.fetch(1), State.DEAD, ErrorInfo("OSError", "down"))
    assert (await operator.get(f"/flows/{flow}"))["state"] == "dead"
    again = await operator.ok("POST", f"/flows/{flow}/retry")
    assert (again["changed"], again["state"]) == (True, "running")
    assert await s.states([a, b]) == [State.QUEUED, State.DEFERRED]
    done = await operator.ok("POST", f"/flows/{flow}/cancel")
    assert (done["changed"], done["state"]) == (True, "cancelled")
    assert (await operator.ok("POST", f"/flows/{flow}/cancel"))["changed"] is False
    actions = [each["action"] for each in (await operator.get("/audit"))["entries"]]
    assert actions == ["flow.cancel", "flow.retry"]
    await operator.problem(404, "POST", f"/flows/{new_id()}/cancel")


async def test_a_flow_of_another_tenant_is_none(s: Site, acme: Caller) -> None:
    a = new_id()
    flow = await make(s, member(a, tenant="big"), tenant="big")
    await acme.problem(404, "GET", f"/flows/{flow}")
    await acme.problem(404, "POST", f"/flows/{flow}/cancel")
    await acme.problem(404, "POST", f"/flows/{flow}/retry")
    await acme.problem(404, "POST", f"/flows/{flow}/cancel", tenant="big")
    assert await s.states([a]) == [State.QUEUED]


async def test_members_of_other_tenants_are_hidden_and_out_of_reach(
    s: Site, operator: Caller, acme: Caller
) -> None:
    own, other, last = new_id(), new_id(), new_id()
    flow = await make(
        s,
        member(own),
        member(other, [own], tenant="big", task="secret"),
        member(last, [own, other]),
    )
    answer = await acme.call("GET", f"/flows/{flow}")
    found = answer.json()
    assert [each["id"] for each in found["nodes"]] == [own, last]
    assert found["edges"] == [{"from": own, "to": last}]
    assert found["hidden"] is True
    assert other not in answer.text
    assert "secret" not in answer.text
    for order in ("cancel", "retry"):
        await acme.problem(403, "POST", f"/flows/{flow}/{order}")
    assert await s.states([own, other, last]) == [State.QUEUED, State.DEFERRED, State.DEFERRED]
    assert (await operator.ok("POST", f"/flows/{flow}/cancel"))["changed"] is True


async def test_a_tenant_orders_its_own_flow(s: Site, acme: Caller) -> None:
    ids = [new_id() for _ in range(3)]
    flow = await make(s, *(member(id) for id in ids))
    assert (await acme.ok("POST", f"/flows/{flow}/cancel"))["changed"] is True
    assert set(await s.states(ids)) == {State.CANCELLED}
