"""What an earlier release has stored is read, run and ended by this one; see ``old_store``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import redis

from fairlead import Fairlead, TaskFailed
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import TenantChange
from fairlead.model.lifecycle import FINAL, State
from tests.broker.redis.old_store import restore, tasks
from tests.broker.redis.sample import fill
from tests.support.servers import Running, shared
from tests.support.store import NOW, Client, completed

FLOWS = ("flow-done", "flow-staged", "flow-whole", "flow-wide", "flow-laying")


@contextlib.asynccontextmanager
async def opened(running: Running) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(running.url, test_clock=True, event_bytes=4096)
    try:
        yield broker
    finally:
        await broker.close()


async def seen(broker: RedisBroker) -> dict[str, object]:
    """All that the broker tells of what it holds."""
    found: dict[str, object] = {"counts": await broker.snapshot(now=NOW)}
    for state in State:
        tasks, cursor = [], None
        while True:
            page = await broker.page(state=state, cursor=cursor, limit=1000, now=NOW)
            tasks += page.tasks
            cursor = page.cursor
            if cursor is None:
                break
        found[state] = sorted(tasks, key=lambda task: task.message.id)
        ids = [task.message.id for task in tasks]
        found[f"{state}, whole"] = await broker.find(sorted(ids), parts="all", now=NOW)
    found["schedules"] = await broker.schedules()
    found["settings"] = await broker.settings()
    found["tokens"] = await broker.documents("token", now=NOW)
    found["notes"] = await broker.notes("audit", now=NOW)
    found["flows"] = await broker.flows(FLOWS, now=NOW)
    found["members"] = [await broker.graph(id, now=NOW) for id in FLOWS]
    events = (await broker.events(limit=500)).events
    found["events"] = [(each.kind, each.at, each.task, each.state, each.token) for each in events]
    return found


async def test_all_of_it_is_seen_as_if_this_release_had_written_it(valkey: Running) -> None:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        restore(client, "sample")
    async with opened(valkey) as broker:
        assert await broker.audit(now=NOW) == []
        before = await seen(broker)
    with shared() as other:
        async with opened(other) as broker:
            await fill(broker)
            today = await seen(broker)
    assert before.keys() == today.keys()
    for what in today:
        assert before[what] == today[what], what


async def test_all_of_it_runs_and_ends(valkey: Running) -> None:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        restore(client, "sample")
    async with opened(valkey) as broker:
        c, now = Client(broker, "another-worker"), NOW + 10.0
        await c.configure(TenantChange(tenant="stopped", paused=False), now=now)
        queues = list((await broker.snapshot(now=now)).queues)
        left: list[str] = ["?"]
        ran: set[str] = set()
        for step in range(50):
            # First leases end, of workers that had the time to renew them. Then rates and breakers
            # let one more pass.
            now += 5.0 if step < 15 else 300.0
            for upkeep in (broker.sweep, broker.promote, broker.deliver):
                while (await upkeep(now=now)).more:
                    pass
            while leases := await c.fetch(128, queues, now=now):
                ran.update(lease.message.id for lease in leases)
                answers = await c.settle(*map(completed, leases), now=now)
                assert set(answers) == {"applied"}
            left = await unfinished(broker, now)
            if not left:
                break
        assert not left
        assert {"running", "retrying", "scheduled", "low", "slow-two", "rated-two", "wide"} <= ran
        assert {"db-two", "for-api", "for-gpu", "user", "late", "child-0"} <= ran
        assert await broker.audit(now=now) == []


async def unfinished(broker: RedisBroker, now: float) -> list[str]:
    found = []
    for state in set(State) - FINAL:
        page = await broker.page(state=state, limit=1000, now=now)
        assert page.cursor is None
        found += [task.message.id for task in page.tasks]
    return found


async def test_an_app_goes_on_with_it(valkey: Running) -> None:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        restore(client, "app")
    app = Fairlead(valkey.url)
    tasks(app)
    store = RedisBroker(valkey.url)
    try:
        assert await store.audit() == []
        assert await app.handle("done").aresult() == 5
        assert (await app.handle("dead").ainfo()).state == "dead"
        with pytest.raises(TaskFailed, match="broken for good"):
            await app.handle("dead").aresult()
        assert (await app.handle("leased").ainfo()).state == "running"
        assert "ValueError" in str((await app.handle("retrying", "acme").ainfo()).error)
        assert await app.handle("later").acancel()
        assert [each.name for each in await app.schedules.alist()] == ["hourly"]
        assert (await app.atenant_settings("acme"))["weight"] == 2.0
        again = await app.named("add").using(unique="once", tenant="acme").aenqueue(0, 0)
        assert (again.duplicate, again.id) == (True, "acme:only")
        async with app.worker():
            for id, result in {"queued": 3, "first": 15, "limited": "limited at last"}.items():
                assert await app.handle(id).aresult(120) == result
            assert await app.handle("only", "acme").aresult(120) == 11
            assert await app.handle("retrying", "acme").aresult(120) == "flaky at last"
            assert await app.handle("leased").aresult(120) == "held after all"
            assert await app.handle("both").aresult(120) == 33
            assert (await app.flow("flow").ainfo()).completed == 3
            fired = await app.schedules.arun_now("hourly")
            assert await fired.aresult(120) == 101
        async for event in app.events("dead", after="oldest"):
            assert (event.task_id, event.task) == ("default:dead", "broken")
            break
        assert await store.audit() == []
    finally:
        await store.close()
        await app.aclose()
