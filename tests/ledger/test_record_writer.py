"""The recorder's, the auditor's and the janitor's statements."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairlead.ledger.ledger import Ledger
from fairlead.model.ledger_errors import LedgerRefused, LostLeadership
from tests.ledger.rows import enqueue_at, given, query, record

TERM = 5
NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
async def leader(ledger: Ledger) -> None:
    await ledger.take_leadership(term=TERM, holder="manager")


async def test_tasks_come_in_and_older_events_never_cover_newer_ones(ledger: Ledger) -> None:
    assert await record(ledger, "a", "b") == 2
    running: dict[str, Any] = {"states": "running", "started": NOW, "workers": "w", "logs": b"2"}
    assert await record(ledger, "a", **running, entries=3) == 1
    assert await record(ledger, "a", states="queued", entries=2, logs=b"x") == 0
    assert await record(ledger, "a", states="queued", entries=3, logs=b"x") == 0  # the same again
    ended: dict[str, Any] = {"states": "completed", "finished": NOW + 9, "attempts": 1}
    assert await record(ledger, "a", **ended, entries=3, indexes=1, logs=b"3") == 1
    found = await ledger.task(id="a")
    assert found is not None
    assert (found.state, found.worker, found.attempts, found.log) == ("completed", "w", 1, b"23")
    assert (found.started_at, found.finished_at, found.created_at) == (NOW, NOW + 9, NOW)
    assert [each.id for each in await ledger.last_events(ids=["a", "c"])] == ["a"]
    assert await ledger.task(id="c") is None


async def test_what_the_caller_enqueued_is_kept_beside_what_happened(
    ledger: Ledger, ledger_dsn: str
) -> None:
    enqueue_at(ledger_dsn, given("a"))
    await ledger.claim_tasks(term=TERM, limit=9)
    await record(ledger, "a", states="dead", finished=NOW, errors="boom", submissions=None)
    [(body, state)] = query(ledger_dsn, "select submission, state from fairlead.tasks")
    assert (bytes(body), state) == (b"body of a", "dead")


async def test_a_log_does_not_grow_without_end(ledger: Ledger, ledger_dsn: str) -> None:
    await record(ledger, "a", logs=b"x" * 65_536)
    await record(ledger, "a", logs=b"y" * 10, entries=2)
    assert query(ledger_dsn, "select octet_length(log) from fairlead.tasks") == [(65_536,)]


async def test_rows_and_the_place_are_written_together_or_not_at_all(ledger: Ledger) -> None:
    async def move(id: str, term: int = TERM, **was: Any) -> None:
        async with ledger.transaction() as work:
            await record(work, id)
            await work.move_place(
                term=term, shard="s", generation="g", entry=5 if id == "a" else 9, index=2, **was
            )

    async def fail() -> None:
        async with ledger.transaction() as work:
            await record(work, "b")
            raise ZeroDivisionError

    await move("a")
    place = (await ledger.places())["s"]
    assert (place.generation, place.entry, place.index) == ("g", 5, 2)
    with pytest.raises(LedgerRefused, match="moved by another") as refused:
        await move("b", was_generation="g", was_entry=4, was_index=2)
    assert refused.value.cause == "place"
    with pytest.raises(LostLeadership):
        await move("b", TERM - 1, was_generation="g", was_entry=5, was_index=2)
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert set(await ledger.states_of(ids=["a", "b"])) == {"a"}
    assert (await ledger.places())["s"] == place
    await move("b", was_generation="g", was_entry=5, was_index=2)
    assert set(await ledger.states_of(ids=["a", "b"])) == {"a", "b"}


async def test_workers_are_remembered(ledger: Ledger, ledger_dsn: str) -> None:
    await ledger.record_workers(incarnations=["w"], hosts=["h"], pids=[4], started=[NOW])
    await ledger.record_workers(incarnations=["w"], hosts=[""], pids=[0], started=[None])
    await ledger.record_workers(incarnations=[], hosts=[], pids=[], started=[])
    ask = "select host, pid, extract(epoch from started_at)::float8 from fairlead.workers"
    assert query(ledger_dsn, ask) == [("h", 4, NOW)]


async def test_unfinished_rows_are_found_page_by_page(ledger: Ledger) -> None:
    await record(ledger, "waits")
    await record(ledger, "runs", states="running", started=NOW)
    await record(ledger, "ended", states="dead", finished=NOW)
    await record(ledger, "waits-too")
    [new, old] = await ledger.unfinished_tasks(state="queued", limit=9)
    assert (old.id, old.last_entry, old.flow) == ("waits", 1, "")
    behind: dict[str, Any] = {"before": new.created_at, "before_seq": new.seq}
    assert await ledger.unfinished_tasks(state="queued", limit=9, **behind) == [old]
    age = time.time() - NOW
    assert await ledger.unfinished_tasks(state="queued", limit=9, older=age - 60.0) == [new, old]
    assert await ledger.unfinished_tasks(state="queued", limit=9, older=age + 60.0) == []
    [runs] = await ledger.stuck_tasks(older=0.0, limit=9)
    assert runs.id == "runs"
    place: dict[str, Any] = {"before": runs.created_at, "before_seq": runs.seq}
    assert await ledger.stuck_tasks(older=0.0, limit=9, **place) == []
    assert await ledger.stuck_tasks(older=age + 60.0, limit=9) == []


async def test_what_the_broker_lost_is_sent_again_or_is_dead(ledger: Ledger) -> None:
    await record(ledger, "kept")
    await record(ledger, "gone", submissions=None)
    await record(ledger, "moved", entries=2)
    moved = await ledger.send_again(
        term=TERM, ids=["kept", "gone", "moved"], entries=[1, 1, 1], indexes=[0, 0, 0]
    )
    assert {each.id: each.state for each in moved} == {"kept": "pending", "gone": "dead"}
    assert await ledger.send_again(term=TERM, ids=[], entries=[], indexes=[]) == []
    gone = await ledger.task(id="gone")
    assert gone is not None
    assert gone.reason == "lost"


async def test_rows_follow_the_broker_where_they_know_nothing_newer(ledger: Ledger) -> None:
    await record(ledger, "a", "b")
    await record(ledger, "b", entries=2)
    two: dict[str, Any] = {
        "attempts": [1, 1],
        "reasons": ["", ""],
        "error_types": ["E", ""],
        "errors": ["x", ""],
    }
    times: dict[str, Any] = {"started": [NOW, None], "finished": [NOW + 1, None]}
    followed = await ledger.follow_tasks(
        term=TERM, ids=["a", "b"], states=["dead", "running"], entries=[1, 1], indexes=[0, 0],
        **two, **times,
    )  # fmt: skip
    assert followed == ["a"]
    found = await ledger.task(id="a")
    assert found is not None
    assert (found.state, found.error, found.finished_at) == ("dead", "x", NOW + 1)


async def test_a_lost_run_is_sent_again_three_times_and_then_dead(ledger: Ledger) -> None:
    states = []
    for entry in range(1, 5):
        await record(ledger, "a", states="running", started=NOW, entries=entry)
        [stuck] = await ledger.stuck_tasks(older=0.0, limit=9)
        assert (stuck.id, stuck.last_entry) == ("a", entry)
        assert await ledger.recover_tasks(term=TERM, ids=["a"], entries=[99], indexes=[0]) == []
        [moved] = await ledger.recover_tasks(
            term=TERM, ids=["a"], entries=[stuck.last_entry], indexes=[stuck.last_index]
        )
        states.append(moved.state)
    assert states == ["pending", "pending", "pending", "dead"]
    assert await ledger.stuck_tasks(older=0.0, limit=9) == []


async def test_old_rows_are_deleted_in_batches(ledger: Ledger) -> None:
    await record(ledger, *"abc", states="completed", finished=NOW)
    await record(ledger, "open")
    month = 30 * 86_400.0
    assert await ledger.delete_old_tasks(term=TERM, keep=month, limit=2) == 2
    assert await ledger.delete_old_tasks(term=TERM, keep=month, limit=2) == 1
    assert await ledger.delete_old_tasks(term=TERM, keep=month, limit=2) == 0
    assert await ledger.states_of(ids=["a", "open"]) == {"open": "queued"}


async def test_pages_are_newest_first_and_by_every_condition(ledger: Ledger) -> None:
    for number in range(5):
        await record(ledger, f"m{number}", at=NOW + number)
    await record(
        ledger, "d", queues="other", tenants="t", names="n", states="dead", finished=NOW,
        error_types="OSError", errors="connection refused by host", at=NOW + 9,
    )  # fmt: skip
    first = await ledger.list_tasks(limit=3)
    assert [row.id for row in first] == ["d", "m4", "m3"]
    rest = await ledger.list_tasks(limit=9, before=first[-1].created_at, before_seq=first[-1].seq)
    assert [row.id for row in rest] == ["m2", "m1", "m0"]
    for condition in (
        {"state": "dead"}, {"queue": "other"}, {"tenant": "t"}, {"name": "n"},
        {"error": "Refused connection"}, {"error": "oserror"}, {"since": NOW + 9},
    ):  # fmt: skip
        assert [row.id for row in await ledger.list_tasks(**condition)] == ["d"]
    both = await ledger.list_tasks(since=NOW + 1, until=NOW + 3, queue="mail")
    assert [row.id for row in both] == ["m2", "m1"]
    assert await ledger.list_tasks(error="timeout") == []
