"""The API of an app with a fallback: it accepts tasks while the broker is away, and says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import Fairlead, Unreachable
from fairlead.api.auth.token_cache import _STALE, TokenCache
from fairlead.api.auth.token_store import revoke_token
from fairlead.api.http.problems import BrokerAway
from fairlead.api.service import Service
from fairlead.broker.records import Parts
from fairlead.client import Client
from fairlead.client.task_reader import TaskReader
from fairlead.fallback.fallback import Fallback
from tests.api.app import Api, problem
from tests.support.patience import patient
from tests.support.servers import Running, server
from tests.support.worker_process import until

BASE = "/api/v1"
LINES = {"content-type": "application/x-ndjson"}


class Site:
    """An API on a server of its own."""

    def __init__(self, valkey: Running, api: Api, caller: httpx.AsyncClient) -> None:
        self.valkey, self.api, self.caller = valkey, api, caller

    @property
    def fallback(self) -> Fallback:
        fallback = self.api.app._clients.fallback
        assert fallback is not None
        return fallback

    async def submit(self, status: int, **task: Any) -> dict[str, Any]:
        answer = await self.caller.post(f"{BASE}/tasks", json={"task": "job", **task})
        assert answer.status_code == status, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def away(self) -> None:
        """Kill the server, and let the API notice."""
        self.valkey.kill()
        assert (await self.submit(202))["durability"] == "spooled"

    async def back(self) -> None:
        self.valkey.start()
        await until(lambda: self.fallback.state == "healthy", "the spool to be sent")


@asynccontextmanager
async def opened(folder: Path, *, registered: bool = True, **limits: str) -> AsyncIterator[Site]:
    # Durable: the token is there again when the server is.
    durable = server(aof=True, config={"appendfsync": "always"})
    with durable as valkey, pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setenv(f"FAIRLEAD_SPOOL_{name.upper()}", value)
        app = Fairlead(valkey.url, fallback="spool", spool=folder / "spool")
        if registered:
            app.task(name="job")(_job)
        patient(app)
        api = Api(app, patience=3.0)
        try:
            await api.server.service.warm_up()
            async with api.caller() as caller:
                assert (await caller.get(f"{BASE}/queues")).status_code == 200  # the token is known
                yield Site(valkey, api, caller)
        finally:  # also after a failure: what looks for the broker would go on beside later tests
            await api.server.service.close()
            await app.aclose()


def _job(*args: int) -> None: ...


async def test_a_task_is_201_when_the_broker_has_it_and_202_when_the_disk_has_it(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as site:
        assert (await site.submit(201, id="one"))["durability"] == "committed"
        assert (await site.submit(200, id="one"))["durability"] == "committed"
        await site.away()
        body = await site.submit(202, id="two")
        assert body == {
            "id": "default:two",
            "tenant": "default",
            "state": None,
            "durability": "spooled",
            "duplicate": False,
        }
        answer = await site.caller.post(
            f"{BASE}/tasks", json={"task": "job", "durability": "committed"}
        )
        told = problem(answer, 503, "broker-away")
        assert "nothing was changed" in told["detail"]
        assert answer.headers["retry-after"] == "2"
        await site.back()
        assert (await site.submit(200, id="two"))["state"] == "queued"
        assert (await site.submit(201, durability="committed"))["durability"] == "committed"
        assert (await site.api.app.asnapshot()).ready == 4


async def test_a_task_that_is_sent_while_it_is_looked_up_is_not_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as site:
        await site.away()
        path = f"{BASE}/tasks/{(await site.submit(202))['id']}"

        async def asked_too_early(reader: TaskReader, id: str, parts: Parts) -> None:
            """The broker does not know it; it gets it before that is heard."""
            await site.back()

        with monkeypatch.context() as patch:
            patch.setattr(TaskReader, "one", asked_too_early)
            problem(await site.caller.get(path), 503, "spooled")
        assert (await site.caller.get(path)).status_code == 200


async def test_a_batch_tells_of_each_task_where_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        tasks: list[dict[str, Any]] = [{"task": "job", "id": f"t{each}"} for each in range(4)]
        answer = await site.caller.post(f"{BASE}/tasks/batch", json=tasks[:2])
        assert (answer.status_code, answer.json()["spooled"]) == (200, 0)
        assert {each["durability"] for each in answer.json()["results"]} == {"committed"}
        await site.away()
        answer = await site.caller.post(f"{BASE}/tasks/batch", json=tasks)
        assert (answer.status_code, answer.json()["accepted"], answer.json()["spooled"]) == (
            202, 4, 4,
        )  # fmt: skip
        tasks[1]["durability"] = "committed"
        answer = await site.caller.post(f"{BASE}/tasks/batch", json=tasks)
        assert answer.status_code == 207
        assert [each.get("durability") for each in answer.json()["results"]] == [
            "spooled", None, "spooled", "spooled",
        ]  # fmt: skip
        assert answer.json()["results"][1]["problem"]["type"] == "/problems/broker-away"
        lines = "".join(json.dumps(each) + "\n" for each in tasks).encode()
        answer = await site.caller.post(f"{BASE}/tasks/batch", content=lines, headers=LINES)
        *found, end = map(json.loads, answer.text.splitlines())
        assert [each["code"] for each in found] == ["accepted", "refused", "accepted", "accepted"]
        assert (end["accepted"], end["spooled"], end["refused"]) == (3, 3, 1)
        await site.back()
        assert (await site.api.app.asnapshot()).ready == 5  # t0 to t3, and that of away()


async def test_a_full_spool_is_429_with_a_time_to_come_again(tmp_path: Path) -> None:
    async with opened(tmp_path, max_count="2") as site:
        await site.away()
        await site.submit(202)
        answer = await site.caller.post(f"{BASE}/tasks", json={"task": "job"})
        told = problem(answer, 429, "spool-full")
        assert (told["field"], told["rule"]) == ("max_count", "2")
        assert answer.headers["retry-after"] == "2"
        answer = await site.caller.post(f"{BASE}/tasks/batch", json=[{"task": "job"}])
        problem(answer, 429, "spool-full")


async def test_a_disk_that_takes_nothing_is_503(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        (tmp_path / "spool").write_text("no folder")
        site.valkey.kill()
        await site.submit(503)  # it may have been on its way to the broker
        answer = await site.caller.post(f"{BASE}/tasks", json={"task": "job"})
        told = problem(answer, 503, "spool-failed")
        assert str(tmp_path) not in answer.text
        assert "nothing was changed" in told["detail"]


async def test_health_is_degraded_and_a_degraded_server_stays_ready(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        await site.submit(201)
        health = (await site.caller.get(f"{BASE}/health")).json()
        assert (health["broker"], health["status"] in ("ok", "warn")) == ("healthy", True)
        await site.away()
        for path in ("/livez", "/readyz"):
            answer = await site.caller.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "degraded"})
        health = (await site.caller.get(f"{BASE}/health")).json()
        assert (health["status"], health["broker"], health["now"]) == ("degraded", "spooling", None)
        assert [each["name"] for each in health["findings"]] == ["broker", "spool"]
        assert health["findings"][1]["text"].startswith("1 records")
        text = (await site.caller.get("/metrics")).text
        assert 'fairlead_broker_state{state="spooling"} 1.0' in text
        assert "fairlead_spool_depth 1.0" in text
        await site.back()
        for path in ("/livez", "/readyz"):
            assert (await site.caller.get(path)).json() == {"status": "ok"}


async def test_a_server_whose_broker_was_never_there_is_degraded_too(tmp_path: Path) -> None:
    app = Fairlead(f"unix://{tmp_path}/nowhere", fallback="spool", spool=tmp_path / "spool")
    api = Api(app, patience=0.2)
    async with api.caller({}) as caller:
        answer = await caller.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "degraded"})
    await app.aclose()


async def test_a_task_that_is_on_disk_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as site:
        monkeypatch.setattr(site.fallback, "is_spooled", lambda id: id == "default:mine")
        told = problem(await site.caller.get(f"{BASE}/tasks/mine"), 503, "spooled")
        assert told["ids"] == ["default:mine"]
        problem(await site.caller.get(f"{BASE}/tasks/other"), 404, "not-found")
        child = {"task": "job", "depends_on": ["mine"], "tenant": "default"}
        bound = await site.api.token(tenant="default")
        answer = await site.caller.post(f"{BASE}/tasks", json=child, headers=bound)
        assert problem(answer, 503, "spooled")["field"] == "depends_on"


async def test_names_that_were_known_before_are_known_while_the_broker_is_away(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, registered=False) as site:
        other = Fairlead(site.valkey.url)
        other.task(name="job", queue="mail")(_job)
        async with other, other.worker(queues=["mail"]):
            async with asyncio.timeout(20):
                new = {"task": "job", "strict": True}  # until the worker has told of it
                while (await site.caller.post(f"{BASE}/tasks", json=new)).status_code != 201:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await site.away()
        await site.submit(202, args=[1])
        answer = await site.caller.post(f"{BASE}/tasks", json={"task": "jbo"})
        told = problem(answer, 422, "invalid")
        assert "did you mean" in told["detail"]
        answer = await site.caller.post(f"{BASE}/tasks", json={"task": "jbo", "strict": False})
        assert answer.status_code == 202
        await site.back()
        queues = (await site.api.app.asnapshot()).queues
        assert queues["mail"].depth >= 2  # as its worker said


async def test_a_token_that_was_valid_before_the_outage_lets_tasks_in_but_nothing_else(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as site:
        await site.submit(201)
        unseen = await site.api.token()
        await site.away()
        cache = site.api.server.service._tokens
        cache._limit = 0.3
        for entry in cache._entries.values():
            entry.read_at -= 60.0
        await site.submit(202)
        problem(await site.caller.get(f"{BASE}/queues"), 503, "broker-away")
        answer = await site.caller.post(f"{BASE}/tasks", json={"task": "job"}, headers=unseen)
        problem(answer, 503, "broker-away")
        answer = await site.caller.post(
            f"{BASE}/tasks", json={"task": "job"}, headers={"authorization": "Bearer fl_no_no"}
        )
        assert answer.status_code in (401, 503)
        for entry in cache._entries.values():
            entry.read_at -= _STALE
        problem(await site.caller.post(f"{BASE}/tasks", json={"task": "job"}), 503, "broker-away")


async def test_what_is_known_of_a_token_from_before_the_outage_is_good_for_tasks_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as site:
        service = site.api.server.service
        other = await site.api.token()
        assert (await site.caller.get(f"{BASE}/queues", headers=other)).status_code == 200
        for id, entry in service._tokens._entries.items():
            assert await revoke_token(service.client(), id)
            entry.read_at -= 60.0
        monkeypatch.setattr(Service, "outage", 60.0)  # it is thought to be away, and answers
        assert (await site.caller.get(f"{BASE}/queues", headers=other)).status_code == 401
        assert (await site.caller.post(f"{BASE}/tasks", json={"task": "job"})).status_code == 201


async def test_a_token_lasts_as_long_as_the_outage_and_five_minutes_before_it() -> None:
    api = Api()
    text = (await api.token())["authorization"].removeprefix("Bearer ")
    now, outage, client = 0.0, 0.0, api.server.service.client()

    def current() -> Client:
        if outage:
            raise Unreachable("it is away")
        return client

    cache = TokenCache(current, clock=lambda: now, outage=lambda: outage)
    await cache.find(text, "peer", stale=True)
    now, outage = 10_000.0, 9_800.0
    access, _ = await cache.find(text, "peer", stale=True)
    assert access.may("submit")
    with pytest.raises(BrokerAway):
        await cache.find(text, "peer")
    outage = 9_600.0
    with pytest.raises(BrokerAway):
        await cache.find(text, "peer", stale=True)
    await cache.close()
    await api.app.aclose()
