"""The history through the API: pages and attempts, for those who may see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from fairlead import Fairlead, Reject
from fairlead.api.route_table import BASE
from fairlead.ledger.ledger import Ledger
from fairlead.manager.counts import Counts
from fairlead.manager.recorder import Recorder
from tests.api.app import Api, problem
from tests.ledger.rows import enqueue_at, given
from tests.telemetry.exposed import samples

TERM = 5


@pytest.fixture
async def app(ledger: Ledger, ledger_dsn: str) -> AsyncIterator[Fairlead]:
    """An app with a ledger that has recorded what its two tasks came to."""
    await ledger.take_leadership(term=TERM, holder="test")
    app = Fairlead("memory://", ledger=ledger_dsn)

    @app.task(name="well")
    async def well(word: str) -> str:
        return word

    @app.task(name="badly")
    async def badly(word: str) -> None:
        raise Reject("it is of no use")

    await well.using(tenant="acme").aenqueue("planted")
    await badly.using(tenant="globex").aenqueue("planted")
    await app.drain()
    term = cast(Any, SimpleNamespace(number=TERM))
    await Recorder(app._clients.store, ledger, term, Counts("recorder")).catch_up()
    yield app
    await app.aclose()


@asynccontextmanager
async def caller_of(
    app: Fairlead, tenant: str | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    api = Api(app, **settings)
    async with api.caller(await api.token("read", tenant=tenant)) as caller:
        yield caller
    await api.server.service.close()


async def test_pages_and_tasks_tell_what_happened(app: Fairlead) -> None:
    async with caller_of(app) as caller:
        answer = await caller.get(f"{BASE}/history")
        page = answer.json()
        assert (page["source"], page["cursor"]) == ("ledger", None)
        assert [task["task"] for task in page["tasks"]] == ["badly", "well"]
        assert "planted" not in answer.text
        found = (await caller.get(f"{BASE}/history?state=dead&error=Reject")).json()["tasks"]
        assert [(task["error_type"], task["error"]) for task in found] == [
            ("Reject", "it is of no use")
        ]
        id = found[0]["id"]
        told = (await caller.get(f"{BASE}/tasks/{id}/history")).json()
        (attempt,) = told["attempts"]
        assert (attempt["number"], attempt["outcome"]) == (1, "failed")
        assert attempt["worker"]
        assert [change["kind"] for change in told["changes"]] == ["enqueued", "started", "dead"]
        assert told["task"]["id"] == id
        first = (await caller.get(f"{BASE}/history?limit=1")).json()
        rest = await caller.get(f"{BASE}/history?limit=1&cursor={first['cursor']}")
        assert [task["task"] for task in rest.json()["tasks"]] == ["well"]
        problem(await caller.get(f"{BASE}/history?cursor=nowhere"), 422, "invalid")
        problem(await caller.get(f"{BASE}/history?state=lost"), 422, "invalid")
        problem(await caller.get(f"{BASE}/tasks/unheard-of/history"), 404, "not-found")


async def test_a_tenant_sees_its_own_and_no_workers(app: Fairlead) -> None:
    async with caller_of(app) as operator:
        tasks = (await operator.get(f"{BASE}/history")).json()["tasks"]
    ids = {task["tenant"]: task["id"] for task in tasks}
    async with caller_of(app, "acme") as acme:
        page = (await acme.get(f"{BASE}/history")).json()
        assert [(task["tenant"], task["worker"]) for task in page["tasks"]] == [("acme", "")]
        problem(await acme.get(f"{BASE}/history?tenant=globex"), 404, "not-found")
        own = (await acme.get(f"{BASE}/tasks/{ids['acme']}/history")).json()
        (attempt,) = own["attempts"]
        assert (attempt["worker"], attempt["host"], attempt["pid"]) == ("", "", 0)
        for query in ("", "?tenant=globex"):
            foreign = await acme.get(f"{BASE}/tasks/{ids['globex']}/history{query}")
            problem(foreign, 404, "not-found")


async def test_without_a_ledger_the_broker_answers_and_it_is_said() -> None:
    async with Fairlead("memory://") as app:

        @app.task(name="well")
        async def well() -> None: ...

        await well.aenqueue()
        async with caller_of(app) as caller:
            page = (await caller.get(f"{BASE}/history")).json()
            assert (page["source"], len(page["tasks"])) == ("broker", 1)
            id = page["tasks"][0]["id"]
            told = (await caller.get(f"{BASE}/tasks/{id}/history")).json()
            assert (told["source"], told["attempts"]) == ("broker", [])


async def test_a_ledger_that_is_away_is_said_to_be() -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    async with Fairlead("memory://", ledger=nowhere) as app, caller_of(app) as caller:
        away = problem(await caller.get(f"{BASE}/history"), 503, "ledger-away")
        assert "127.0.0.1" not in str(away)
        shown = samples((await caller.get("/metrics")).text)
        assert shown["fairlead_scrape_success", frozenset({("part", "ledger")})] == 0
        assert ("fairlead_ledger_due", frozenset()) not in shown
        assert shown["fairlead_broker_up", frozenset()] == 1


async def test_metrics_tell_how_far_ledger_and_broker_are_apart(
    app: Fairlead, ledger_dsn: str
) -> None:
    async with caller_of(app) as caller:
        shown = samples((await caller.get("/metrics")).text)
        none: frozenset[tuple[str, str]] = frozenset()
        assert shown["fairlead_scrape_success", frozenset({("part", "ledger")})] == 1
        assert shown["fairlead_ledger_due", none] == 0
        assert shown["fairlead_ledger_oldest_seconds", none] == 0
        assert shown["fairlead_recorder_lag_seconds", none] == 0
    enqueue_at(ledger_dsn, given("a"), given("b"))
    await app.named("well").aenqueue("more")
    async with caller_of(app) as caller:
        shown = samples((await caller.get("/metrics")).text)
        assert shown["fairlead_ledger_due", none] == 2
        assert shown["fairlead_ledger_oldest_seconds", none] > 0
        assert shown["fairlead_recorder_lag_seconds", none] > 0
