"""What the first document of a queue manager promises, one promise after the other.

It describes a manager between PostgreSQL and Redis: an elected leader that promotes scheduled rows
and recovers stuck ones, queues that are spread over two servers by priority, caveats about locks
and about the gap between push and update, and four tests to run. Each docstring says which of these
the test shows. Servers, managers and workers are real, and are really killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fairlead import Ambiguous, Fairlead, Unreachable
from fairlead.ledger.statements import statement
from tests.acceptance.ledger_site import LedgerSite, ledger_opened
from tests.support.servers import Running, server

TTL = 10.0  # seconds of the leader's lease
FAILOVER = 12.0  # seconds after which another manager must lead
BATCH = 500  # rows that are claimed at a time, at most


@pytest.fixture
def valkey() -> Iterator[Running]:
    """A server with its file: what it had is there again after a restart."""
    with server(aof=True) as running:
        yield running


@pytest.fixture
async def site(valkey: Running, ledger_dsn: str, tmp_path: Path) -> AsyncIterator[LedgerSite]:
    async with ledger_opened(valkey.url, ledger_dsn, tmp_path) as made:
        yield made


# -- Key responsibilities ----------------------------------------------------------------------


async def test_a_task_is_pushed_by_queue_payload_and_priority(valkey: Running) -> None:
    """Task dispatching: who pushes has no handler, and gets an error in the place of False."""
    ran: list[int] = []
    async with Fairlead(valkey.url) as api, Fairlead(valkey.url) as consumer:
        push = api.named("otp").using(queue="codes", enqueue_timeout="500ms")
        await push.using(priority="low").aenqueue({"task_id": 1})
        pushed = await push.using(priority="high").aenqueue({"task_id": 2})
        info = await pushed.ainfo(arguments=True)
        assert (info.queue, info.priority, info.args) == ("codes", "high", ({"task_id": 2},))

        @consumer.task(name="otp")
        async def otp(payload: dict[str, int]) -> None:
            ran.append(payload["task_id"])

        assert await consumer.drain(queues=["codes"]) == 2
        valkey.kill()
        with pytest.raises((Ambiguous, Unreachable)):
            await push.aenqueue({"task_id": 3})
    assert ran == [2, 1]


# -- 1. Leader election -----------------------------------------------------------------------


@pytest.mark.slow
async def test_one_leads_under_a_lease_of_ten_seconds_and_hands_over_when_it_stops(
    site: LedgerSite,
) -> None:
    """Leader election: one of several is active, by a key with a TTL of 10 s that is renewed."""
    site.manager()
    site.manager()
    first = await site.leader()
    seen = await site.leadership()
    assert seen.holder.split(":")[1] == str(first.pid)
    assert 0 < seen.until - seen.now <= TTL

    async def renewed() -> bool:
        return (await site.leadership()).until > seen.until

    await site.until(renewed, "the lease to be renewed", seconds=TTL)
    assert (await site.leadership()).term == seen.term, "a renewal is no new term"

    before = time.monotonic()
    assert first.stop() == 0
    second = await site.leader(but=first.pid)
    assert second.pid != first.pid
    assert time.monotonic() - before < TTL, "a clean stop should not cost the whole lease"
    assert (await site.leadership()).term > seen.term


@pytest.mark.slow
@pytest.mark.long(12)
async def test_another_leads_within_twelve_seconds_of_a_kill(site: LedgerSite) -> None:
    """Failover: a crashed leader's key ends with its TTL, and a standby leads and schedules."""
    site.manager()
    site.manager()
    first = await site.leader()
    before = time.monotonic()
    first.kill()
    ids = await site.enqueue(50)  # due while nobody leads
    second = await site.leader(but=first.pid, seconds=FAILOVER)
    took = time.monotonic() - before
    assert second.pid != first.pid
    assert took < FAILOVER
    events = await site.pushed(ids)
    assert len(events) == len(ids)


@pytest.mark.slow
@pytest.mark.long(12)
async def test_a_leader_that_stood_still_does_no_harm(site: LedgerSite) -> None:
    """Leader election: never two that schedule the same task, even if one only seemed dead."""
    site.manager()
    site.manager()
    first = await site.leader()
    await site.pushed(await site.enqueue(20))
    first.signal(signal.SIGSTOP)
    second = await site.leader(but=first.pid, seconds=FAILOVER)
    ids = await site.enqueue(300)
    await asyncio.sleep(0.02)
    first.signal(signal.SIGCONT)  # in the middle of the other's work
    events = await site.pushed(ids)
    await site.reach(ids, "queued")
    assert (await site.leader()).pid == second.pid
    assert first.running, "it stands by from now on"
    assert len(events) == len(ids)
    assert await site.sql("select max(pushes) from fairlead.tasks") == [(1,)]


# -- 2. The scheduler loop --------------------------------------------------------------------


async def test_due_rows_are_pushed_in_bounded_batches_ordered_by_due_time(
    site: LedgerSite,
) -> None:
    """Scheduler: what is due goes out in order of its time, a bounded batch at a time; no more."""
    count = 1_300
    ids = await site.enqueue(count)
    later = await site.enqueue(20, delay=3600.0)
    # Each another time in the past, in an order that is not the one in which they came.
    offsets = list(range(1, count + 1))
    random.Random(1).shuffle(offsets)
    await site.sql(
        "update fairlead.tasks t set due_at = clock_timestamp() - make_interval(secs => g.secs)"
        " from unnest(%s::text[], %s::int[]) as g(id, secs) where t.id = g.id",
        *(ids, offsets),
    )
    site.manager()
    events = await site.pushed(ids)
    by_due = [id for _, id in sorted(zip(offsets, ids, strict=True), reverse=True)]
    assert [event.task for event in events] == by_due
    sizes = Counter(event.id.entry for event in events)
    assert max(sizes.values()) <= BATCH
    assert len(sizes) >= count / BATCH
    await site.reach(ids, "queued")
    assert await site.states(later) == {"pending": 20}


async def test_a_scheduled_task_runs_when_its_time_has_come(site: LedgerSite) -> None:
    """Scheduler: SCHEDULED becomes visible to workers at its time, from the commit to the end."""
    ids = await site.enqueue(5, delay=1.5)
    site.manager()
    site.broker.worker("-c", "10")
    await site.reach(ids, "completed")
    due: dict[str, float] = dict(
        await site.sql("select id, extract(epoch from due_at)::float8 from fairlead.tasks")
    )
    begun = {record.id: record.at for record in site.broker.records("begin")}
    assert begun.keys() == set(ids)
    assert all(begun[id] >= due[id] for id in ids), "none runs before its time"


@pytest.mark.slow
async def test_delayed_tasks_of_the_broker_are_promoted_once_by_several_workers(
    site: LedgerSite,
) -> None:
    """Scheduler: the same for tasks that no row stands for; two workers, and each runs once."""
    ids = await site.broker.enqueue("nap", 300, 0.0, delay=0.5)
    for host in ("one", "another"):
        site.broker.worker("-c", "10", host=host)
    await site.broker.stream.ended(ids)
    assert Counter(record.id for record in site.broker.records("begin")) == Counter(ids)
    enqueued = {event.task: event.at for event in site.broker.stream.of(ids, "enqueued")}
    assert all(record.at >= enqueued[record.id] + 0.5 for record in site.broker.records("begin"))


@pytest.mark.slow
@pytest.mark.long(12)
async def test_only_what_was_pushed_is_marked_as_queued(site: LedgerSite) -> None:
    """Scheduler: rows whose push failed stay pending, with a backoff; the rest goes."""
    await site.broker.app.aconfigure_queue("narrow", max_waiting=3)
    refused = await site.enqueue(10, queue="narrow")
    taken = await site.enqueue(50)
    site.manager()
    await site.reach(taken, "queued")

    async def split() -> bool:
        return await site.states(refused) == {"queued": 3, "pending": 7}

    await site.until(split, "seven of ten to stay pending")
    [(later,)] = await site.sql(
        "select bool_and(due_at > updated_at) from fairlead.tasks where state = 'pending'"
    )
    assert later, "they are tried again after a while, not at once"
    await site.broker.app.aconfigure_queue("narrow", max_waiting=None)
    await site.reach(refused, "queued")
    assert len(await site.pushed(refused)) == len(refused)


# -- 3. The recovery loop ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long(12)
async def test_what_a_crashed_worker_had_is_run_by_another(site: LedgerSite) -> None:
    """Recovery: IN_PROGRESS under a worker that crashed goes to another; the row tells of both."""
    site.manager()
    first = site.broker.worker("-c", "10")
    await first.ready()
    ids = await site.enqueue(10, 60.0, 0.0)
    await site.reach(ids, "running")
    first.kill_tree()
    site.broker.worker("-c", "10")
    await site.reach(ids, "completed", seconds=40.0)
    rows = await site.sql("select attempts, pushes from fairlead.tasks")
    assert rows == [(2, 1)] * 10, "tried twice, and sent to the broker once"


@pytest.mark.slow
@pytest.mark.long(12)
async def test_stuck_rows_are_retried_three_times_and_then_failed(site: LedgerSite) -> None:
    """Recovery: in progress for 5 minutes, known to nobody: retried 3 times, then failed."""
    ids = await site.enqueue(4)
    for recoveries, id in enumerate(ids):
        await site.sql(
            "update fairlead.tasks set state = 'running', recoveries = %s, attempts = 1,"
            " pushes = 1, started_at = now() - interval '6 min',"
            " updated_at = now() - interval '6 min' where id = %s",
            *(recoveries, id),
        )
    fresh = await site.enqueue(1)
    await site.sql(
        "update fairlead.tasks set state = 'running', attempts = 1, started_at = now(),"
        " updated_at = now() where id = %s",
        fresh[0],
    )
    site.manager()
    await site.reach(ids[:3], "queued", seconds=30.0)
    await site.reach(ids[3:], "dead", seconds=30.0)
    rows = await site.sql(
        "select recoveries, state, reason from fairlead.tasks where id = any(%s) order by seq", ids
    )
    assert [row[:2] for row in rows] == [(1, "queued"), (2, "queued"), (3, "queued"), (3, "dead")]
    assert rows[3][2] == "lost"
    assert '"level":"error"' in site.managers[0].tail(200), "an operator is told"
    assert len(await site.pushed(ids[:3])) == 3
    assert await site.states(fresh) == {"running": 1}, "five minutes are not over for this one"


@pytest.mark.slow
@pytest.mark.long(12)
async def test_a_task_that_still_runs_is_not_taken_for_stuck(site: LedgerSite) -> None:
    """Recovery: what is merely long is left to its worker, however old its row is."""
    first = site.manager()
    await site.broker.worker("-c", "10").ready()
    [id] = await site.enqueue(1, 10.0)
    await site.reach([id], "running")
    await site.sql(
        "update fairlead.tasks set updated_at = now() - interval '6 min' where id = %s",
        id,
    )
    assert first.stop() == 0
    site.manager()  # whoever begins to lead looks at once

    async def looked() -> bool:
        rows = await site.sql(
            "select 1 from fairlead.manager_status"
            " where role = 'janitor' and (counts ->> 'looked_at')::int > 0"
        )
        return bool(rows)

    await site.until(looked, "the janitor to look at the row")
    await site.reach([id], "completed", seconds=30.0)
    assert len(site.broker.records("begin")) == 1
    assert await site.sql("select recoveries, pushes from fairlead.tasks") == [(0, 1)]


# -- 4. Queue sharding ------------------------------------------------------------------------


@pytest.fixture
async def two(
    valkey: Running, ledger_dsn: str, tmp_path: Path
) -> AsyncIterator[tuple[LedgerSite, Running]]:
    """A site with a server of its own for low priorities, and that server."""
    with server() as bulk:
        routes = {"priority:low": bulk.url}
        async with ledger_opened(valkey.url, ledger_dsn, tmp_path, routes) as made:
            yield made, bulk


@pytest.mark.slow
@pytest.mark.long(12)
async def test_priorities_go_to_servers_of_their_own(two: tuple[LedgerSite, Running]) -> None:
    """Queue sharding: high and low on separate servers; a backlog of low blocks no high."""
    site, bulk = two
    site.manager()
    low = await site.enqueue(1_000, priority="low")
    await site.reach(low, "queued")
    high = await site.enqueue(5, priority="high")
    assert len(await site.pushed(high)) == 5, "on the first server"
    assert not site.broker.stream.count(low, "enqueued"), "and the low ones are not there"
    assert bulk.admin("DBSIZE") > 0, "they are on the other"


@pytest.mark.slow
async def test_a_server_that_is_away_blocks_none_but_its_own_tasks(
    two: tuple[LedgerSite, Running],
) -> None:
    """Queue sharding: critical operations go on, even if the server of the others dies."""
    site, bulk = two
    site.manager()
    await site.reach(await site.enqueue(10, priority="low"), "queued")
    bulk.kill()
    waiting = await site.enqueue(20, priority="low")
    high = await site.enqueue(20, priority="high")
    await site.pushed(high)
    await site.reach(high, "queued")
    assert (await site.states(waiting)).keys() <= {"pending", "claimed"}
    bulk.start()
    await site.reach(waiting, "queued", seconds=40.0)


async def test_critical_work_is_not_blocked_by_a_backlog_on_one_server(valkey: Running) -> None:
    """Queue sharding: an OTP goes before thousands of reports, without a server of its own."""
    order: list[str] = []
    async with Fairlead(valkey.url) as app:

        @app.task(name="work")
        async def work(what: str) -> None:
            order.append(what)

        reports = work.using(priority="low").call
        await app.aenqueue_many([reports("report") for _ in range(2_000)])
        await work.using(priority="critical").aenqueue("otp")
        await app.drain()
    assert order == ["otp", *["report"] * 2_000]


# -- Caveats ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long(12)
async def test_no_lock_is_held_while_the_broker_is_spoken_to(
    site: LedgerSite, valkey: Running
) -> None:
    """Caveat 1, lock duration: a broker that hangs in mid-push keeps no row locked."""
    site.manager()
    await site.pushed(await site.enqueue(1))
    valkey.pause()
    try:
        ids = await site.enqueue(200)
        await site.reach(ids, "claimed")
        async with await psycopg.AsyncConnection.connect(site.dsn) as connection:
            cursor = await connection.execute("select id from fairlead.tasks for update nowait")
            assert len(await cursor.fetchall()) == 201
            await connection.rollback()
        await asyncio.sleep(1.1)
        assert await site.held() == [], "and no transaction is open"
    finally:
        valkey.resume()
    await site.reach(ids, "queued", seconds=40.0)
    assert len(await site.pushed(ids)) == len(ids), "what hung was not done twice"


@pytest.mark.slow
@pytest.mark.long(12)
@pytest.mark.parametrize("place", ["claimed", "pushed", "settled"])
async def test_a_manager_that_dies_between_push_and_update_sends_nothing_twice(
    site: LedgerSite, place: str
) -> None:
    """Caveat 2, the atomicity gap: dead between push and update, and each task exists once."""
    ids = await site.enqueue(700)
    first = site.manager(FAIRLEAD_FAULT=f"{place}:1:kill")
    assert await first.ended() == -signal.SIGKILL
    states = await site.states(ids)
    assert states.keys() <= {"pending", "claimed", "queued"}
    site.manager()
    await site.reach(ids, "queued", seconds=FAILOVER + 10)
    events = await site.pushed(ids)
    assert Counter(event.task for event in events) == Counter(ids)


@pytest.mark.slow
@pytest.mark.long(12)
async def test_counts_of_scanned_pushed_and_failed_are_shown(site: LedgerSite) -> None:
    """Suggested improvements, monitoring: counts of scanned, queued and push failures, and lag."""
    await site.broker.app.aconfigure_queue("narrow", max_waiting=1)
    site.manager()
    await site.leader()
    await site.reach(await site.enqueue(30), "queued")
    await site.enqueue(4, queue="narrow")

    async def shown() -> bool:
        counts = await _counts(site, "dispatcher")
        return (
            counts.get("scanned", 0) >= 34
            and counts.get("pushed", 0) == 31
            and counts.get("failed", 0) + counts.get("put_back", 0) >= 3
        )

    await site.until(shown, "the counts of the dispatcher")
    status = json.dumps(await site.status())
    assert '"scanned"' in status
    assert '"lag"' in status


async def _counts(site: LedgerSite, role: str) -> dict[str, int]:
    rows = await site.sql("select counts from fairlead.manager_status where role = %s", role)
    return dict(rows[0][0]) if rows else {}


# -- Tests to run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count",
    [pytest.param(20_000, id="20k"), pytest.param(300_000, id="300k", marks=pytest.mark.slow)],
)
async def test_1_the_query_of_the_scheduler_uses_its_index(site: LedgerSite, count: int) -> None:
    """Tests to run, 1: many pending tasks, and EXPLAIN ANALYZE of the query shows the index."""
    await site.sql(
        "insert into fairlead.tasks (id, state, queue, tenant, submission, due_at)"
        " select 'task-' || n, 'pending', 'default', 'default', 'x',"
        " now() + make_interval(secs => (random() - 0.5) * 86400) from generate_series(1, %s) n",
        count,
    )
    await site.sql("analyze fairlead.tasks")
    query = statement("claim_tasks").text
    async with await psycopg.AsyncConnection.connect(site.dsn) as connection:
        await connection.execute("update fairlead.leadership set term = 7")
        cursor = await connection.execute(
            f"explain (analyze, format json) {query}".encode(), {"term": 7, "limit": BATCH}
        )
        [[plan]] = await cursor.fetchall()
        await connection.rollback()
    nodes = _nodes(plan[0]["Plan"])
    scans = [node for node in nodes if node.get("Relation Name") == "tasks"]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
    due = [node for node in scans if node.get("Index Name") == "tasks_due"]
    assert due
    # It looks at one batch, and whether there is one row more, however many are due.
    assert all(node["Actual Rows"] <= BATCH + 1 for node in due), due


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *itertools.chain.from_iterable(map(_nodes, plan.get("Plans", [])))]


@pytest.mark.parametrize("count", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_2_two_schedulers_queue_each_task_once(site: LedgerSite, count: int) -> None:
    """Tests to run, 2: two schedulers at once queue each task once, in Redis and in the rows."""
    ids: list[str] = []
    for start in range(0, count, 1_000):
        ids += await site.enqueue(min(1_000, count - start))
    site.manager()
    site.manager()
    events = await site.pushed(ids, seconds=40.0)
    await site.reach(ids, "queued")
    assert Counter(event.task for event in events) == Counter(ids)
    assert await site.sql("select pushes, count(*) from fairlead.tasks group by 1") == [(1, count)]
    queue = (await site.broker.store.snapshot()).queues["default"]
    assert queue.depth == count


@pytest.mark.slow
async def test_3_an_outage_of_the_broker_leaves_tasks_pending(
    site: LedgerSite, valkey: Running
) -> None:
    """Tests to run, 3: Redis is away: tasks stay pending, no lock is held; later all are pushed."""
    manager = site.manager()
    await site.reach(await site.enqueue(5), "queued")
    valkey.kill()
    ids = await site.enqueue(1_200)

    async def pending() -> bool:
        return await site.states(ids) == {"pending": 1_200}

    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:  # it tries and fails, and marks none as queued
        assert (await site.states(ids)).keys() <= {"pending", "claimed"}
        await asyncio.sleep(0.1)
    await site.until(pending, "all to be pending")
    async with await psycopg.AsyncConnection.connect(site.dsn) as connection:
        cursor = await connection.execute("select id from fairlead.tasks for update nowait")
        assert len(await cursor.fetchall()) == 1_205
        await connection.rollback()
    assert await site.held() == []
    assert manager.running
    valkey.start()
    await site.reach(ids, "queued", seconds=30.0)
    assert len(await site.pushed(ids)) == len(ids)


@pytest.mark.slow
async def test_4_the_latency_from_due_time_to_push_is_measured(
    site: LedgerSite, record_property: Callable[[str, object], None]
) -> None:
    """Tests to run, 4: the time from scheduled_at to the push: never before, and soon after."""
    site.manager()
    await site.leader()
    ids: list[str] = []
    for number in range(100):
        ids += await site.enqueue(1, delay=1.0 + number * 0.01)
    events = await site.pushed(ids)
    due: dict[str, float] = dict(
        await site.sql("select id, extract(epoch from due_at)::float8 from fairlead.tasks")
    )
    waits = sorted(event.at - due[event.task] for event in events)
    record_property("median_ms", round(statistics.median(waits) * 1_000, 1))
    record_property("largest_ms", round(waits[-1] * 1_000, 1))
    assert waits[0] >= -0.001, "one was pushed before its time"  # the broker counts milliseconds
    assert statistics.median(waits) < 1.0
    assert waits[-1] < 5.0, "the poll is the safety net, not the way"
