"""Limiters and their breakers."""

from __future__ import annotations

import pytest

from fairlead.broker.requests import LimiterChange
from fairlead.model.lifecycle import State
from fairlead.model.message import ErrorInfo
from tests.api.routes.site import Caller, Site


async def test_limiters_tell_how_they_stand(s: Site, operator: Caller) -> None:
    await operator.ok("PATCH", "/limiters/gpu", {"concurrency": 1})
    await s.enqueue(2, limiters=("gpu",))
    await s.fetch(2)
    (found,) = (await operator.get("/limiters"))["limiters"]
    assert (found["name"], found["used"], found["waiting"]) == ("gpu", 1, 1)
    assert found["breaker"] is None
    assert (found["concurrency"], found["burst"]) == (1, 1)
    assert await operator.get("/limiters/gpu") == found
    await operator.problem(404, "GET", "/limiters/nothing")


async def test_a_breaker_is_closed_by_hand(s: Site, operator: Caller) -> None:
    change = {"failures": 2, "cooldown": 600, "probes": 3, "concurrency": 9}
    await operator.ok("PATCH", "/limiters/api", change)
    await s.enqueue(3, limiters=("api",))
    await s.settle(await s.fetch(2), State.DEAD, ErrorInfo("OSError", "down"))
    opened = await operator.get("/limiters/api")
    assert (opened["breaker"]["state"], opened["breaker"]["failed"]) == ("open", 2)
    assert opened["breaker"]["open_until"] is not None
    assert await s.fetch() == []
    closed = await operator.ok("POST", "/limiters/api/close")
    assert (closed["breaker"]["state"], closed["breaker"]["failed"]) == ("closed", 0)
    assert closed == await operator.get("/limiters/api")
    breaker = closed["breaker"]
    assert (breaker["failures"], breaker["cooldown"], breaker["probes"]) == (2, 600, 3)
    assert len(await s.fetch()) == 1
    again = await s.enqueue(2, limiters=("api",))
    await s.settle(await s.fetch(2), State.DEAD, ErrorInfo("OSError", "down"))
    assert (await operator.get("/limiters/api"))["breaker"]["state"] == "open", again


async def test_only_a_breaker_can_be_closed(s: Site, operator: Caller) -> None:
    await s.configure(LimiterChange(name="gpu", concurrency=1))
    await operator.problem(409, "POST", "/limiters/gpu/close")
    await operator.problem(404, "POST", "/limiters/nothing/close")


@pytest.mark.parametrize(
    "change", [{"failures": 0}, {"cooldown": 0}, {"probes": 2**70}, {"concurrency": -1}]
)
async def test_what_is_out_of_bounds_changes_nothing(
    s: Site, operator: Caller, change: dict[str, int]
) -> None:
    await operator.problem(422, "PATCH", "/limiters/gpu", {"rate": 5, **change})
    await operator.problem(404, "GET", "/limiters/gpu")


async def test_limiters_are_not_for_tenants(s: Site, acme: Caller) -> None:
    await s.configure(LimiterChange(name="gpu", concurrency=1))
    await acme.problem(403, "GET", "/limiters")
    await acme.problem(403, "GET", "/limiters/gpu")
    await acme.problem(403, "GET", "/limiters/nothing")
    await acme.problem(403, "PATCH", "/limiters/gpu", {"concurrency": 9})
    await acme.problem(403, "POST", "/limiters/gpu/close")
