"""Who leads: one at a time, in terms that grow; what an earlier term does is refused everywhere."""

from __future__ import annotations

import asyncio
from functools import partial

import psycopg
import pytest

from fairlead.broker import connect
from fairlead.broker.redis.scripts import libraries
from fairlead.manager.leader import Leader
from fairlead.model.errors import Unreachable
from fairlead.model.ledger_errors import LedgerError, LostLeadership
from tests.manager.bench import Bench, submission
from tests.support.postgres import Postgres
from tests.support.servers import Running, server


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def test_one_leads_and_the_other_stands_by(bench: Bench) -> None:
    one, other = (Leader(bench.store, bench.ledger, name) for name in ("one", "other"))
    first = await one.take()
    assert first is not None
    assert await other.take() is None
    assert 9.0 < other.free_in <= 10.0
    assert other.pause() == 1.0  # a leader that stops gives it back long before
    await one.release()
    second = await other.take()
    assert second is not None
    assert second.number > first.number
    row = await bench.ledger.leadership()
    assert (row.term, row.holder) == (second.number, "other")
    with pytest.raises(LostLeadership):
        await one.renew(first)


async def test_what_an_earlier_term_does_is_refused_by_ledger_and_broker(bench: Bench) -> None:
    old = await bench.lead("old")
    await bench.add(count=3)
    new = await bench.lead("new")
    with pytest.raises(LostLeadership):
        await bench.dispatcher(old).dispatch_once()
    with pytest.raises(LostLeadership):
        await bench.ledger.claim_tasks(term=old.number, limit=10)
    with pytest.raises(LostLeadership):
        await old.call(partial(bench.store.enqueue, submissions=[submission()]))
    assert await bench.states() == {"pending": 3}
    assert (await bench.store.snapshot()).depth == 0
    assert await bench.dispatcher(new).dispatch_once() == 3


async def test_the_first_call_of_a_term_comes_before_anything_else(bench: Bench) -> None:
    """A call of an earlier term that was on its way meanwhile is not carried out."""
    old = await bench.lead("old")
    late = partial(bench.store.enqueue, submissions=[submission()])
    await bench.lead("new")
    with pytest.raises(LostLeadership):
        await old.call(late)
    assert (await bench.store.snapshot()).depth == 0


async def test_the_lease_ends_here_before_it_ends_at_the_broker(
    bench: Bench, valkey: Running
) -> None:
    clock = Clock()
    for script in libraries():
        valkey.admin("FUNCTION", "LOAD", "REPLACE", script.source)  # that takes time as well
    store = connect(f"{valkey.url}?timeout=0.3s")
    try:
        leader = Leader(store, bench.ledger, clock=clock)
        term = await leader.take()
        assert term is not None
        clock.now += 5.0
        assert await leader.renew(term)
        valkey.pause()
        clock.now += 7.9
        assert not await leader.renew(term)
        clock.now += 0.2  # 8.1 s since the last renewal was asked for: 1.9 s before the end there
        with pytest.raises(LostLeadership) as lost:
            await leader.renew(term)
        assert "renewed" in lost.value.__notes__[0]
    finally:
        valkey.resume()
        await store.close()


async def test_a_leader_that_cannot_tell_the_ledger_does_not_lead(
    bench: Bench, postgres: Postgres
) -> None:
    await bench.sql("update fairlead.leadership set term = 9000000000000000000")
    with pytest.raises(LedgerError):
        await Leader(bench.store, bench.ledger, "one").take()
    other = await bench.store.lead("manager", "other")  # given back at once
    assert other.holder == "other"


async def test_a_leader_without_a_broker_raises(bench: Bench) -> None:
    with server() as running:
        store = connect(f"{running.url}?timeout=0.2s")
        running.kill()
        with pytest.raises(Unreachable):
            await Leader(store, bench.ledger).take()
        await store.close()


async def test_a_leader_that_stands_still_in_a_transaction_holds_up_nobody(bench: Bench) -> None:
    """Its share of the row would keep every later term from being written."""
    await bench.lead("old")
    async with await psycopg.AsyncConnection.connect(bench.dsn) as still:
        await still.execute("select 1 from fairlead.leadership for share")
        async with asyncio.timeout(4):  # a lock is waited for five seconds
            term = await bench.lead("new")
        assert (await bench.ledger.leadership()).term == term.number
        with pytest.raises(psycopg.OperationalError):
            await still.execute("select 1")


async def test_a_term_that_is_over_ends_no_sessions(bench: Bench) -> None:
    old = await bench.lead("old")
    await bench.lead("new")
    async with await psycopg.AsyncConnection.connect(bench.dsn) as working:
        await working.execute("select 1 from fairlead.leadership for share")
        assert await bench.ledger.end_older_sessions(term=old.number) == 0
        await working.execute("select 1")
