"""Events that are lost: what ended unseen does not run again, and what was lost does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest

from fairlead.broker import Caller
from fairlead.broker.records import Hello
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Alter
from fairlead.ledger.ledger import Ledger
from fairlead.runtime.ids import new_id
from tests.manager.bench import Bench, submission
from tests.support.servers import Running


@pytest.fixture
async def small(valkey: Running, ledger: Ledger, ledger_dsn: str) -> AsyncIterator[Bench]:
    """A broker that keeps few events."""
    store = RedisBroker(valkey.url, event_bytes=4_000)
    yield Bench(store, ledger, ledger_dsn)
    await store.close()


async def forget(bench: Bench, *ids: str) -> None:
    orders = [Alter(id=id, action="delete") for id in ids]
    await Caller(new_id()).call(lambda call: bench.store.alter(call, orders))


async def lose_events(bench: Bench) -> None:
    """Let more happen than the broker keeps events of."""
    caller = Caller(new_id())
    for _ in range(100):
        await caller.call(partial(bench.store.enqueue, submissions=[submission(queue="other")]))
        await bench.complete(await bench.fetch(1, ["other"]))


async def sent_then_forgotten(bench: Bench, *, gap: bool) -> list[str]:
    """Send four tasks; two of them end and are forgotten, and nobody reads so."""
    ids = await bench.add(count=4)
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    await bench.recorder(term).catch_up()
    await bench.complete(await bench.fetch(2))
    await forget(bench, *ids[:2])
    if gap:
        await lose_events(bench)
    return ids


async def states_of(bench: Bench, ids: list[str]) -> list[tuple[str, str]]:
    rows = await bench.rows("state", "reason")
    return [rows[id] for id in ids]


async def test_what_ended_in_a_gap_and_was_forgotten_does_not_run_again(small: Bench) -> None:
    ids = await sent_then_forgotten(small, gap=True)
    term = await small.lead()
    assert (await small.recorder(term).record_once()).gap
    assert small.counts["forgotten"] == 2
    await small.age(301.0)
    await small.auditor(term).audit_once()
    await small.janitor(term).tend_once()
    await small.dispatcher(term).dispatch_all()
    ended, waiting = ("completed", "forgotten"), ("queued", "")
    assert await states_of(small, ids) == [ended, ended, waiting, waiting]
    assert await small.run_all() == ids[2:]


async def test_the_auditor_that_finds_the_gap_sends_nothing_again(small: Bench) -> None:
    ids = await sent_then_forgotten(small, gap=True)
    term = await small.lead()
    await small.age(61.0)
    await small.auditor(term).audit_once()
    assert small.counts["sent_again"] == 0
    assert [state for state, _ in await states_of(small, ids)] == ["completed"] * 2 + ["queued"] * 2


async def test_without_a_gap_the_end_is_known(small: Bench) -> None:
    ids = await sent_then_forgotten(small, gap=False)
    term = await small.lead()
    await small.age(61.0)
    await small.auditor(term).audit_once()
    assert (await states_of(small, ids))[:2] == [("completed", "")] * 2


async def test_after_a_gap_of_another_server_what_is_unknown_is_sent_again(small: Bench) -> None:
    ids = await sent_then_forgotten(small, gap=True)
    await small.sql("update fairlead.places set replication = 'of the server before'")
    term = await small.lead()
    auditor = small.auditor(term, wake=None)
    assert (await small.recorder(term).record_once()).gap
    assert small.counts["forgotten"] == 0
    while await auditor.audit_once():
        pass
    assert small.counts["full_audits"] == 1
    assert (await states_of(small, ids))[:2] == [("pending", "lost")] * 2
    # From now on this server is the one that rows were compared with.
    hello = await small.store.hello()
    assert await small.sql("select replication from fairlead.places") == [(hello.replication,)]
    await auditor.audit_once()
    assert small.counts["full_audits"] == 1


async def test_of_a_server_that_does_not_tell_what_it_is_nothing_counts_as_forgotten(
    small: Bench,
) -> None:
    real = small.store.hello

    async def silent() -> Hello:
        return msgspec.structs.replace(await real(), replication="")

    small.store.hello = silent  # type: ignore[method-assign]
    await sent_then_forgotten(small, gap=True)
    assert (await small.recorder(await small.lead()).record_once()).gap
    assert small.counts["forgotten"] == 0


async def test_in_another_generation_nothing_counts_as_forgotten_until_all_was_compared(
    small: Bench, valkey: Running
) -> None:
    ids = await small.add(count=2)
    term = await small.lead()
    await small.dispatcher(term).dispatch_all()
    await small.recorder(term).catch_up()
    valkey.admin("FLUSHALL")
    term = await small.lead()
    recorder = small.recorder(term)
    await lose_events(small)
    assert (await recorder.record_once()).gap  # another generation
    await lose_events(small)
    assert (await recorder.record_once()).gap  # of the same generation
    assert small.counts["forgotten"] == 0
    await small.auditor(term).audit_once()
    assert await states_of(small, ids) == [("pending", "lost")] * 2


async def test_a_flow_that_ended_in_a_gap_does_not_run_again(small: Bench) -> None:
    term = await small.lead()
    await small.recorder(term).catch_up()
    await lose_events(small)
    await small.recorder(term).catch_up()
    ids = await small.add_flow()
    await small.dispatcher(term).dispatch_all()
    assert await small.run_all() == ids
    [(flow,)] = await small.sql("select id from fairlead.flows")
    await small.sql("update fairlead.flows set id = 'unheard' where id = %s", flow)
    await lose_events(small)
    term = await small.lead()
    assert (await small.recorder(term).record_once()).gap
    found = await small.sql("select state, reason from fairlead.flows")
    assert found == [("completed", "forgotten")]


async def test_a_flow_that_ended_and_was_not_recorded_yet_is_not_sent_again(bench: Bench) -> None:
    ids = await bench.add_flow()
    term = await bench.lead()
    await bench.dispatcher(term).dispatch_all()
    assert await bench.run_all() == ids
    await bench.age(61.0)
    # As if the broker had forgotten it: members at once, the flow with them.
    real = bench.store.flows

    async def unknown(ids: list[str]) -> list[None]:
        return [None for _ in await real(ids)]

    bench.store.flows = unknown  # type: ignore[method-assign, assignment]
    await bench.auditor(term).audit_once()
    assert await bench.sql("select state from fairlead.flows") == [("completed",)]
