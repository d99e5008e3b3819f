"""The dispatcher's statements: claim, confirm, put back, refuse, release."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.ledger.ledger import Ledger
from fairlead.model.ledger_errors import LostLeadership
from tests.ledger.rows import enqueue_at, given, query, record


async def leading(ledger: Ledger, term: int) -> int:
    await ledger.take_leadership(term=term, holder=f"manager {term}")
    return term


async def test_due_rows_are_claimed_in_their_order(ledger: Ledger, ledger_dsn: str) -> None:
    term = await leading(ledger, 7)
    enqueue_at(ledger_dsn, given("b"), given("a"), given("later", delay=60), given("c"))
    claimed = await ledger.claim_tasks(term=term, limit=2)
    assert [each.id for each in claimed] == ["b", "a"]
    assert (claimed[0].submission, claimed[0].pushes, claimed[0].deadline) == (
        b"body of b",
        1,
        None,
    )
    assert claimed[0].late >= 0
    assert [each.id for each in await ledger.claim_tasks(term=term, limit=9)] == ["c"]
    assert await ledger.claim_tasks(term=term, limit=9) == []
    assert await ledger.states_of(ids=["a", "later", "nobody"]) == {
        "a": "claimed",
        "later": "pending",
    }
    assert 50 < (await ledger.next_due() or 0) < 60


async def test_a_flood_of_one_tenant_does_not_hold_up_the_others(
    ledger: Ledger, ledger_dsn: str
) -> None:
    term = await leading(ledger, 7)
    enqueue_at(ledger_dsn, *(given(f"f{number:03}", tenant="flood") for number in range(100)))
    enqueue_at(ledger_dsn, *(given(f"g{number}", tenant="another") for number in range(40)))
    enqueue_at(ledger_dsn, given("quiet", tenant="quiet"), given("not yet", tenant="x", delay=60))
    claimed = [each.id for each in await ledger.claim_tasks(term=term, limit=20)]
    assert len(claimed) == 20
    # Half of it by age, half in equal parts; what the quiet one does not use goes by age.
    assert claimed == [f"f{number:03}" for number in range(16)] + ["g0", "g1", "g2", "quiet"]
    seen = set(claimed)
    while more := {each.id for each in await ledger.claim_tasks(term=term, limit=20)}:
        assert not more & seen
        seen |= more
    assert len(seen) == 141


async def test_of_more_tenants_than_fit_each_has_its_turn(ledger: Ledger, ledger_dsn: str) -> None:
    term = await leading(ledger, 7)
    batch = [given(f"t{n}-{m}", tenant=f"tenant {n}") for n in range(30) for m in range(3)]
    enqueue_at(ledger_dsn, *batch)
    sizes = []
    while claimed := await ledger.claim_tasks(term=term, limit=10):
        sizes.append(len(claimed))
    assert sizes == [10] * 9


async def test_a_batch_is_limited_by_its_size_too(ledger: Ledger, ledger_dsn: str) -> None:
    term = await leading(ledger, 7)
    large = base64.b64encode(os.urandom(5 * 2**20)).decode()
    for number in range(7):
        enqueue_at(ledger_dsn, given(f"f{number}", tenant="flood", submission=large))
    enqueue_at(ledger_dsn, given("quiet", tenant="quiet"))
    claimed = [each.id for each in await ledger.claim_tasks(term=term, limit=6)]
    assert claimed == ["f0", "f1", "f2", "f3", "quiet"]
    assert len(await ledger.claim_tasks(term=term, limit=6)) == 3


async def test_two_who_claim_at_once_get_different_rows(ledger: Ledger, ledger_dsn: str) -> None:
    term = await leading(ledger, 7)
    enqueue_at(ledger_dsn, *(given(f"t{number}") for number in range(60)))
    parts = await asyncio.gather(*(ledger.claim_tasks(term=term, limit=10) for _ in range(6)))
    ids = [each.id for part in parts for each in part]
    assert len(ids) == len(set(ids))
    rest = await ledger.claim_tasks(term=term, limit=60)  # what was locked just then is not lost
    assert len(ids) + len(rest) == 60


async def test_what_the_broker_said_is_written(ledger: Ledger, ledger_dsn: str) -> None:
    term = await leading(ledger, 7)
    enqueue_at(ledger_dsn, *(given(id) for id in ("taken", "done", "full", "double")))
    await ledger.claim_tasks(term=term, limit=9)
    assert await ledger.confirm_tasks(term=term, ids=["taken"], state="queued") == 1
    assert await ledger.confirm_tasks(term=term, ids=["done"], state="completed") == 1
    assert await ledger.put_back_tasks(
        term=term, ids=["full"], delays=[30.0], reasons=["queue_full"]
    ) == ["full"]
    assert await ledger.refuse_tasks(
        term=term, ids=["double"], reasons=["duplicate"], stands_for=["first"]
    ) == ["double"]
    assert await ledger.states_of(ids=["taken", "done", "full", "double"]) == {
        "taken": "queued",
        "done": "completed",
        "full": "pending",
        "double": "refused",
    }
    refused = await ledger.task(id="double")
    assert refused is not None
    assert (refused.reason, refused.stands_for) == ("duplicate", "first")
    assert 20 < (await ledger.next_due() or 0) <= 30
    # Nothing is claimed any more: the same again finds nothing to change, and says so.
    assert await ledger.confirm_tasks(term=term, ids=["full"], state="queued") == 0
    assert await ledger.confirm_tasks(term=term, ids=[], state="queued") == 0


async def test_a_row_that_the_recorder_moved_on_is_not_set_back(
    ledger: Ledger, ledger_dsn: str
) -> None:
    term = await leading(ledger, 7)
    enqueue_at(ledger_dsn, given("a"))
    await ledger.claim_tasks(term=term, limit=9)
    await record(ledger, "a", states="running", started=1_700_000_000.0)
    assert await ledger.confirm_tasks(term=term, ids=["a"], state="queued") == 0
    assert await ledger.states_of(ids=["a"]) == {"a": "running"}


async def test_an_effect_of_an_older_term_changes_nothing(ledger: Ledger, ledger_dsn: str) -> None:
    old = await leading(ledger, 7)
    enqueue_at(ledger_dsn, given("a"), given("b"))
    await ledger.claim_tasks(term=old, limit=1)
    new = await leading(ledger, 8)
    before = query(ledger_dsn, "select * from fairlead.tasks order by seq")
    ids: dict[str, Any] = {"term": old, "ids": ["a"]}
    events: dict[str, Any] = {**ids, "entries": [0], "indexes": [-1]}
    follow: dict[str, Any] = {
        "attempts": [0],
        "started": [None],
        "finished": [None],
        "reasons": [""],
    }
    effects: list[Callable[[], Awaitable[object]]] = [
        lambda: ledger.claim_tasks(term=old, limit=9),
        lambda: ledger.confirm_tasks(**ids, state="queued"),
        lambda: ledger.put_back_tasks(**ids, delays=[0.0], reasons=[""]),
        lambda: ledger.refuse_tasks(**ids, reasons=["no"], stands_for=[""]),
        lambda: ledger.release_claims(term=old, limit=9),
        lambda: ledger.send_again(**events),
        lambda: ledger.recover_tasks(**events),
        lambda: ledger.follow_tasks(
            **events, **follow, states=["dead"], error_types=[""], errors=[""]
        ),
        lambda: ledger.delete_old_tasks(term=old, keep=0.0, limit=9),
        lambda: ledger.delete_old_flows(term=old, keep=0.0, limit=9),
        lambda: ledger.claim_flow(term=old),
        lambda: ledger.release_flow_claims(term=old),
        lambda: ledger.end_flow_push(term=old, id="f", state="running"),
        lambda: ledger.follow_flow(term=old, id="f", state="dead"),
        lambda: ledger.move_place(term=old, shard="s", generation="g", entry=1, index=0),
        lambda: ledger.take_leadership(term=old, holder="late"),
    ]
    for effect in effects:
        with pytest.raises(LostLeadership) as lost:
            await effect()
        assert (lost.value.term, lost.value.found) == (old, new)
    assert query(ledger_dsn, "select * from fairlead.tasks order by seq") == before
    assert await ledger.places() == {}


async def test_an_older_status_does_not_cover_a_newer_one(ledger: Ledger) -> None:
    await leading(ledger, 8)
    await ledger.write_status(role="dispatcher", term=8, counts={"sent": 3})
    with pytest.raises(LostLeadership):
        await ledger.write_status(role="dispatcher", term=7, counts={"sent": 99})
    found = await ledger.status()
    assert (found["dispatcher"].counts, found["dispatcher"].term) == ({"sent": 3}, 8)


async def test_claims_that_nobody_has_in_hand_are_released(ledger: Ledger, ledger_dsn: str) -> None:
    old = await leading(ledger, 7)
    enqueue_at(ledger_dsn, *(given(id) for id in "abc"))
    await ledger.claim_tasks(term=old, limit=2)
    new = await leading(ledger, 8)
    lost_sight_of = await ledger.claim_tasks(term=new, limit=1)
    assert [each.id for each in lost_sight_of] == ["c"]
    with pytest.raises(LostLeadership):
        await ledger.release_claims(term=old, limit=9)
    first = await ledger.release_claims(term=new, limit=1)
    rest = await ledger.release_claims(term=new, limit=9)
    assert (len(first), sorted(first + rest)) == (1, ["a", "b", "c"])
    assert await ledger.release_claims(term=new, limit=9) == []
    again = await ledger.claim_tasks(term=new, limit=9)
    assert [(each.id, each.pushes) for each in again] == [("a", 2), ("b", 2), ("c", 2)]
    assert (await ledger.lag()).claimed == 3


async def test_the_lag_is_what_is_due_and_not_sent(ledger: Ledger, ledger_dsn: str) -> None:
    assert (await ledger.lag()).due == 0
    enqueue_at(ledger_dsn, given("a"), given("b"), given("later", delay=60))
    found = await ledger.lag()
    assert (found.due, found.claimed) == (2, 0)
    assert found.oldest_seconds is not None
    assert found.oldest_seconds >= 0


async def test_a_flow_is_claimed_sent_and_followed(ledger: Ledger, ledger_dsn: str) -> None:
    term = await leading(ledger, 7)
    text = '{"id": "%s", "tenant": "acme", "name": "n", "draft": "Ym9keQ==", "members": 2}'
    for id in ("f", "g"):
        query(ledger_dsn, "select fairlead.enqueue_flow(%s::json)", text % id)
    first = await ledger.claim_flow(term=term)
    assert first is not None
    assert (first.id, first.draft, first.pushes) == ("f", b"body", 1)
    assert await ledger.end_flow_push(term=term, id="f", state="running")
    assert not await ledger.end_flow_push(term=term, id="f", state="running")
    second = await ledger.claim_flow(term=term)
    assert second is not None
    assert second.id == "g"
    assert await ledger.claim_flow(term=term) is None
    later = await leading(ledger, 8)
    assert await ledger.release_flow_claims(term=later) == ["g"]
    assert await ledger.unchecked_flows(older=0.0, limit=9) == ["f"]
    assert await ledger.follow_flow(term=later, id="f", state="completed")
    assert not await ledger.follow_flow(term=later, id="f", state="completed")
    assert await ledger.delete_old_flows(term=later, keep=3600.0, limit=9) == 0
    assert await ledger.delete_old_flows(term=later, keep=0.0, limit=9) == 1
