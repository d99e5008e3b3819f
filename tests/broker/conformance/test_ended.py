"""A submission that has ended already: it ran where it was enqueued, while the broker was away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Call, LeaseRef, QueueChange, Submission
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.options import Dependency, Unique
from tests.support.store import (
    ERROR,
    NOW,
    Client,
    codes,
    completed,
    drain,
    events,
    failed,
    ids,
    record,
    states,
    submit,
)


def ended(
    id: str,
    tenant: str = "a",
    queue: str = "default",
    *,
    to: State = State.COMPLETED,
    result: bytes | None = None,
    body: bytes = b"x",
    **end: Any,
) -> Submission:
    """A task that ran elsewhere: completed there, or dead."""
    if to is State.DEAD:
        end = {"reason": "exhausted", "error": ERROR} | end
    else:
        end = {"reason": "local"} | end
    settlement = Settlement(id=id, token=0, to=to, result=result, **end)
    plain = submit(id, tenant, queue, body=body)
    return msgspec.structs.replace(plain, ended=settlement)


async def test_it_is_completed_with_its_result_and_never_lent(broker: Store, c: Client) -> None:
    (receipt,) = await c.enqueue(ended("t1", result=b"r", run_time=0.5))
    assert (receipt.id, receipt.code, receipt.state) == ("t1", "accepted", State.COMPLETED)
    assert await c.fetch(5) == []

    found = await record(broker, "t1")
    assert (found.state, found.reason, found.result) == (State.COMPLETED, "local", b"r")
    assert (found.attempts, found.finished_at, found.enqueued_at) == (1, NOW, NOW)
    assert [(e.kind, e.task, e.state, e.attempt, e.reason) for e in await events(broker)] == [
        ("enqueued", "t1", State.COMPLETED, 0, ""),
        ("completed", "t1", State.COMPLETED, 1, "local"),
    ]


async def test_it_is_dead_with_its_error_and_can_be_requeued(broker: Store, c: Client) -> None:
    assert codes(await c.enqueue(ended("t1", to=State.DEAD))) == ["accepted"]
    found = await record(broker, "t1")
    assert (found.state, found.reason, found.error) == (State.DEAD, "exhausted", ERROR)

    assert (await c.requeue("t1")).code == "done"
    assert ids(await c.fetch(5)) == ["t1"]


async def test_it_stands_among_others_of_a_batch(broker: Store, c: Client) -> None:
    receipts = await c.enqueue(
        submit("t1"),
        ended("t2", result=b"two"),
        ended("t3", "b", to=State.DEAD),
        submit("t4", delay=5.0),
        ended("t5", queue="other"),
        submit("t6"),
    )
    assert [(each.id, each.code) for each in receipts] == [
        (f"t{n}", "accepted") for n in range(1, 7)
    ]
    assert await states(broker, *(f"t{n}" for n in range(1, 7))) == [
        State.QUEUED,
        State.COMPLETED,
        State.DEAD,
        State.SCHEDULED,
        State.COMPLETED,
        State.QUEUED,
    ]


async def test_the_last_number_again_gets_the_same_answer(broker: Store, c: Client) -> None:
    first = await c.enqueue(ended("t1"), submit("t2"))
    again = await broker.enqueue(
        Call(c.incarnation, c.number), [ended("t1"), submit("t2")], now=NOW
    )
    assert again == first
    assert len(await events(broker, "completed")) == 1


async def test_the_same_end_again_is_a_duplicate(broker: Store, c: Client) -> None:
    await c.enqueue(ended("t1", result=b"r"))
    (receipt,) = await c.enqueue(ended("t1", result=b"r"))
    assert (receipt.id, receipt.code, receipt.state) == ("t1", "duplicate", State.COMPLETED)
    assert len(await events(broker, "completed")) == 1
    assert codes(await c.enqueue(submit("t1"))) == ["duplicate"]
    assert await c.fetch(5) == []


async def test_other_content_of_the_same_id_is_a_conflict(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    assert codes(await c.enqueue(ended("t1", body=b"y"))) == ["conflict"]
    assert await states(broker, "t1") == [State.QUEUED]


@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_one_that_waits_is_ended_and_never_lent(
    broker: Store, c: Client, delay: float
) -> None:
    await c.enqueue(submit("t1", delay=delay), submit("t2"))
    (receipt,) = await c.enqueue(ended("t1", result=b"r"))
    assert (receipt.code, receipt.state) == ("accepted", State.COMPLETED)
    assert ids(await c.fetch(5, now=NOW + 100)) == ["t2"]
    assert (await record(broker, "t1", now=NOW + 100)).result == b"r"


async def test_one_that_waits_for_its_retry_is_ended(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(failed(lease))
    assert codes(await c.enqueue(ended("t1", to=State.DEAD))) == ["accepted"]
    found = await record(broker, "t1")
    assert (found.state, found.attempts) == (State.DEAD, 2)
    assert await c.fetch(5, now=NOW + 100) == []


async def test_one_that_waits_behind_another_is_ended(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2", after=["t1"]))
    assert codes(await c.enqueue(ended("t2"))) == ["accepted"]
    (lease,) = await c.fetch(5)
    assert await c.settle(completed(lease)) == ["applied"]
    await drain(broker)
    assert await states(broker, "t1", "t2") == [State.COMPLETED, State.COMPLETED]
    assert await c.fetch(5) == []


async def test_what_a_worker_runs_or_ran_stands(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    assert codes(await c.enqueue(ended("t1", result=b"here"))) == ["fenced"]
    assert await c.settle(completed(lease, b"worker")) == ["applied"]
    assert codes(await c.enqueue(ended("t1", result=b"here"))) == ["fenced"]
    found = await record(broker, "t1")
    assert (found.state, found.result, found.attempts) == (State.COMPLETED, b"worker", 1)
    assert len(await events(broker, "fenced")) == 2
    assert (await broker.stats(now=NOW)).queues["default"].fenced == 2


async def test_dependents_go_on(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"), submit("t2", after=["t1"]))
    await c.enqueue(ended("t1"))
    await drain(broker)
    assert ids(await c.fetch(5)) == ["t2"]


async def test_a_task_may_depend_on_it_and_read_its_result(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0))
    parent = Dependency("t1", known=True)
    await c.enqueue(submit("t1"), submit("t2", after=[parent], uses=True))
    await c.enqueue(ended("t1", result=b"r"))
    await drain(broker)
    assert ids(await c.fetch(5)) == ["t2"]
    assert (await record(broker, "t1")).result == b"r", "it is pinned"


async def test_those_who_watch_it_are_told(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    (watched,) = await broker.watch("client", ["t1"], now=NOW)
    assert watched.state is State.QUEUED
    await c.enqueue(ended("t1"))
    (mail,) = await broker.collect("client", 0, 1.0)
    assert (mail.kind, mail.id, mail.state) == ("finished", "t1", State.COMPLETED)


async def test_it_takes_no_room_of_those_that_wait(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_waiting=1, max_tenant_bytes=300))
    assert codes(await c.enqueue(submit("t1"), submit("t2"))) == ["accepted", "queue_full"]
    large = ended("t3", body=b"x" * 1_000)
    assert codes(await c.enqueue(large, ended("t4"))) == ["accepted", "accepted"]
    counts = await broker.snapshot(now=NOW)
    assert (counts.ready, counts.completed) == (1, 2)


async def test_it_is_kept_as_long_as_any_other(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=10.0, keep_completed_count=2))
    for n in (1, 2, 3):
        await c.enqueue(ended(f"t{n}"), now=NOW + n)
    found = await states(broker, "t1", "t2", "t3", now=NOW + 3)
    assert found == [None, State.COMPLETED, State.COMPLETED]
    assert await states(broker, "t2", "t3", now=NOW + 12.5) == [None, State.COMPLETED]
    await broker.tidy(now=NOW + 100)
    assert (await broker.snapshot(now=NOW + 100)).completed == 0


async def test_its_own_retention_goes_before_that_of_the_queue(broker: Store, c: Client) -> None:
    await c.enqueue(ended("t1", keep=0.0), ended("t2", keep=5.0))
    assert await states(broker, "t1", "t2") == [None, State.COMPLETED]
    assert await states(broker, "t2", now=NOW + 6) == [None]
    assert codes(await c.enqueue(ended("t2"), now=NOW + 6)) == ["accepted"], "it makes room"


async def test_it_is_counted_like_any_other(broker: Store, c: Client) -> None:
    await c.enqueue(ended("t1", run_time=2.0), ended("t2", to=State.DEAD))
    counted = (await broker.stats(now=NOW)).queues["default"]
    assert (counted.enqueued, counted.completed, counted.dead, counted.failed) == (2, 1, 1, 1)
    assert (counted.started, counted.run.count) == (0, 0), "these are of what the broker lent"


async def test_one_that_waits_gives_back_its_unique_key(broker: Store, c: Client) -> None:
    key = Unique(key="k", until="done")
    await c.enqueue(submit("t1", unique=key))
    await c.enqueue(ended("t1"))
    assert codes(await c.enqueue(submit("t2", unique=key))) == ["accepted"]


@pytest.mark.parametrize(
    "asked",
    [
        {"delay": 1.0},
        {"depends_on": (Dependency("t0"),)},
        {"unique": Unique(key="k", until="done")},
        {"fence": LeaseRef("t0", "w1", 1)},
    ],
)
async def test_one_that_asked_for_something_special_cannot_have_ended(
    c: Client, asked: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="cannot have ended already"):
        await c.enqueue(msgspec.structs.replace(ended("t1"), **asked))


async def test_an_end_is_that_of_its_task_and_final(broker: Store, c: Client) -> None:
    for end in (
        Settlement(id="other", token=0, to=State.COMPLETED),
        Settlement(id="t1", token=0, to=State.RETRYING),
        Settlement(id="t1", token=0, to=State.CANCELLED),
    ):
        with pytest.raises(InvalidInput, match="cannot have ended already"):
            await c.enqueue(msgspec.structs.replace(submit("t1"), ended=end))
    with pytest.raises(InvalidOption):
        await c.enqueue(ended("t1", run_time=float("nan")))
    assert await states(broker, "t1") == [None]
