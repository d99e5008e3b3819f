"""Every reason why a task may not run, said in a sentence; the most decisive first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.broker.explanation import Explanation, explain
from fairlead.broker.records import TaskRecord, WorkerRecord
from fairlead.broker.standing import MAX_AHEAD, Room, Standing, Waits
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, ErrorInfo, Message

NOW = 1_000.0
BODY = Body(task="send", arguments=b"", task_version=2).encode()
WORKER = WorkerRecord(
    incarnation="w1",
    host="box",
    pid=7,
    queues=("mail",),
    tasks=("send",),
    concurrency=2,
    details={"versions": {"send": 2}},
)


def standing(state: State = State.QUEUED, **fields: Any) -> Standing:
    own = {name: fields.pop(name) for name in list(fields) if name in TaskRecord.__struct_fields__}
    message = Message(id="t", queue="mail", tenant="acme", level=2, body=BODY)
    record = TaskRecord(message=message, state=state, **own)
    return Standing(now=NOW, record=record, **{"tenants_ready": 1, **fields})


def explained(found: Standing | None, *workers: WorkerRecord) -> Explanation:
    return explain("t", found, workers or (WORKER,))


def limiter(**fields: Any) -> Room:
    return Room(kind="limiter", name="gpu", **fields)


CASES: dict[str, tuple[Standing | None, str, str, float | None]] = {
    "unknown": (None, "unknown", "does not know it", None),
    "completed": (
        standing(State.COMPLETED, finished_at=NOW - 30),
        "completed",
        "it completed 30 s ago",
        None,
    ),
    "dead": (
        standing(
            State.DEAD,
            finished_at=NOW - 600,
            reason="exhausted",
            error=ErrorInfo("ValueError", "no\nluck"),
        ),
        "dead",
        "it is dead (exhausted) since 10 min: ValueError: no luck; requeue it",
        None,
    ),
    "cancelled": (
        standing(State.CANCELLED, finished_at=NOW - 1, reason="purged"),
        "cancelled",
        "it was cancelled (purged) 1 s ago",
        None,
    ),
    "running": (
        standing(State.RUNNING, incarnation="w1", started_at=NOW - 12),
        "running",
        "it runs since 12 s, by worker w1 on box",
        None,
    ),
    "running, by one that fell silent": (
        standing(State.RUNNING, incarnation="w9", started_at=NOW - 12),
        "running",
        "by worker w9, which was not heard of lately",
        None,
    ),
    "held": (
        standing(State.RUNNING, incarnation="w1", held=True),
        "held",
        "worker w1 on box has it in hand, but has not started it",
        None,
    ),
    "waits": (
        standing(
            State.DEFERRED,
            waiting_for=("p", "q", "r"),
            waits_for=(Waits("p", State.RUNNING), Waits("q", State.DEAD)),
        ),
        "waits",
        "it waits for q (dead) and 2 more",
        None,
    ),
    "waits for one of another place": (
        standing(State.DEFERRED, waiting_for=("p",), waits_for=(Waits("p", None),)),
        "waits",
        "it waits for p (not known here)",
        None,
    ),
    "scheduled": (standing(State.SCHEDULED, due_at=NOW + 90), "scheduled", "due in 90 s", None),
    "due": (standing(State.SCHEDULED, due_at=NOW - 1), "scheduled", "due now", None),
    "retrying": (
        standing(State.RETRYING, due_at=NOW + 8, attempts=2, error=ErrorInfo("OSError", "down")),
        "retrying",
        "attempt 3 is due in 8 s, after OSError: down",
        None,
    ),
    "queue paused": (standing(queue_paused=True), "queue_paused", "'mail' is paused", None),
    "tenant paused": (standing(tenant_paused=True), "tenant_paused", "'acme' is paused", None),
    "tenant full": (
        standing(rooms=(Room(kind="tenant", name="acme", used=3, concurrency=3),)),
        "tenant_full",
        "tenant 'acme' is at 3/3",
        None,
    ),
    "queue full": (
        standing(rooms=(Room(kind="queue", name="mail", used=5, concurrency=5),)),
        "queue_full",
        "queue 'mail' is at 5/5",
        None,
    ),
    "limiter full": (
        standing(rooms=(limiter(used=1, concurrency=1, needed=False),)),
        "limiter_full",
        "limiter 'gpu', which a task before it needs is at 1/1",
        None,
    ),
    "rate": (
        standing(rooms=(limiter(next_at=NOW + 0.375),)),
        "limiter_rate",
        "the rate of limiter 'gpu' has its next token in 375 ms",
        0.375,
    ),
    "breaker open": (
        standing(rooms=(limiter(circuit="open", open_until=NOW + 20),)),
        "breaker_open",
        "the breaker of limiter 'gpu' is open for another 20 s",
        20.0,
    ),
    "breaker half open": (
        standing(rooms=(limiter(circuit="half_open", probing=1, probes=1),)),
        "breaker_half_open",
        "is half open, and 1 probes run",
        None,
    ),
    "tenants ahead": (
        standing(tenants_ahead=3, tenants_ready=9, started_last_minute=30),
        "tenants_ahead",
        "3 tenants of 9 are served before its own",
        6.0,
    ),
    "tasks ahead": (
        standing(tasks_ahead=10, tenants_ready=2, started_last_minute=120),
        "tasks_ahead",
        "10 tasks of its own tenant go before it",
        10.0,
    ),
    "nobody knows how fast": (standing(tasks_ahead=1), "tasks_ahead", "1 task of its own", None),
    "too many to say": (
        standing(tasks_ahead=MAX_AHEAD, started_last_minute=60),
        "tasks_ahead",
        "at least 10,000 tasks",
        None,
    ),
    "next": (standing(), "next", "nothing stands in its way", 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_every_reason_is_said(case: str) -> None:
    found, code, text, estimate = CASES[case]
    said = explained(found)
    assert (said.code, said.estimate) == (code, estimate)
    assert text in said.text
    assert said.fields is said.reasons[0].fields
    msgspec.json.encode(said)


def codes(found: Explanation) -> list[str]:
    return [reason.code for reason in found.reasons]


def test_no_worker_serves_its_queue() -> None:
    other = msgspec.structs.replace(WORKER, queues=("other",))
    said = explained(standing(), other)
    assert (codes(said), said.fields["workers"]) == (["no_worker"], 1)
    assert codes(explain("t", standing(), ())) == ["no_worker"]


def test_workers_that_do_not_know_the_task_or_its_version() -> None:
    ignorant = msgspec.structs.replace(WORKER, tasks=("other",))
    older = msgspec.structs.replace(WORKER, details={})
    assert codes(explained(standing(), ignorant)) == ["unknown_task"]
    assert codes(explained(standing(), older, ignorant)) == ["unknown_version"]
    assert codes(explained(standing(), older, WORKER)) == ["next"]


def test_workers_that_are_all_busy() -> None:
    busy = msgspec.structs.replace(WORKER, running=2)
    said = explained(standing(started_last_minute=60), busy)
    assert (codes(said), said.estimate) == (["workers_busy"], None)
    assert codes(explained(standing(), busy, WORKER)) == ["next"]
    said = explained(standing(tasks_ahead=4, started_last_minute=60), busy)
    assert (codes(said), said.estimate) == (["tasks_ahead", "workers_busy"], 4.0)
    stuck = explained(standing(tasks_ahead=4), busy)
    assert stuck.estimate is None


def test_workers_that_are_quiet_take_nothing() -> None:
    quiet = msgspec.structs.replace(WORKER, details={**WORKER.details, "quiet": True})
    said = explained(standing(), quiet)
    assert (codes(said), said.estimate, said.fields["workers"]) == (["workers_quiet"], None, 1)
    assert codes(explained(standing(), quiet, WORKER)) == ["next"]
    busy = msgspec.structs.replace(WORKER, running=2)
    assert codes(explained(standing(), quiet, busy)) == ["workers_busy"]


def test_all_that_holds_is_said_and_the_most_decisive_is_the_first() -> None:
    found = standing(
        queue_paused=True,
        tenant_paused=True,
        rooms=(Room(kind="queue", name="mail", next_at=NOW + 1), limiter(used=2, concurrency=1)),
        tenants_ahead=1,
        tasks_ahead=2,
        deadline_at=NOW + 5,
        started_last_minute=60,
    )
    said = explain("t", found, ())
    assert codes(said) == [
        *("queue_paused", "tenant_paused", "no_worker", "queue_rate", "limiter_full"),
        *("tenants_ahead", "tasks_ahead", "deadline"),
    ]
    assert said.estimate is None
    assert said.reasons[-1].estimate == 5.0


def test_a_deadline_alone_does_not_keep_it() -> None:
    said = explained(standing(State.SCHEDULED, due_at=NOW + 3, deadline_at=NOW + 60))
    assert codes(said) == ["scheduled", "deadline"]
    assert (said.reasons[0].estimate, said.estimate) == (3.0, None)
    said = explained(standing(rooms=(limiter(next_at=NOW + 3),), deadline_at=NOW + 1))
    assert (codes(said), said.estimate) == (["limiter_rate", "deadline"], 3.0)


def test_a_rate_is_shared_with_the_tasks_that_go_before_it() -> None:
    def estimate(**fields: Any) -> float | None:
        room = Room(**{"kind": "tenant", "name": "acme", "rate": 1.0, **fields})
        ahead: dict[str, Any] = {
            "tasks_ahead": 40,
            "tenants_ahead": 2,
            "started_last_minute": 3_000,
        }
        return explained(standing(rooms=(room,), **ahead)).estimate

    quick = (2 + 40) / 50.0
    assert estimate(rate=None) == quick
    assert estimate(next_at=NOW + 0.5) == 40.5
    assert estimate(kind="queue", next_at=NOW + 0.5) == 42.5
    assert estimate(burst=10) == 31.0
    assert estimate(burst=100) == quick
    assert estimate(needed=False) == quick


def test_a_cancel_that_was_asked_for_is_said() -> None:
    found = standing(State.RUNNING, incarnation="w1", started_at=NOW, cancelling=True)
    assert codes(explained(found)) == ["running", "cancelling"]


def test_a_body_that_cannot_be_read_is_left_to_its_worker() -> None:
    found = standing()
    message = msgspec.structs.replace(found.record.message, body=b"\xc1")
    record = msgspec.structs.replace(found.record, message=message)
    assert codes(explained(msgspec.structs.replace(found, record=record))) == ["next"]
