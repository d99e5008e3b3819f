"""What breaks the rules is refused as a whole, and what was answered stays as it was."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.broker import Store
from fairlead.broker.records import Page, WorkerRecord
from fairlead.broker.requests import Alter, Call, Fetch, Firing, LeaseRef, QueueChange, Write
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from tests.support.store import (
    NOW,
    Client,
    codes,
    completed,
    dead,
    events,
    failed,
    ids,
    record,
    states,
    submit,
)


async def everything(broker: Store) -> tuple[Any, ...]:
    """What can be seen of tasks without changing anything."""
    page: Page = await broker.page(limit=1_000, now=NOW)
    return await broker.snapshot(now=NOW), page.tasks, await events(broker)


# -- orders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["requeued", "remove", "Cancel", "", None])
@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind good ones"])
async def test_an_unknown_action_raises_and_changes_nothing(
    broker: Store, c: Client, action: Any, behind: bool
) -> None:
    done, gone, _ = await c.run(submit("done"), submit("gone"), submit("held"))
    await c.settle(completed(done), dead(gone))
    await c.enqueue(submit("waits"))
    good = [
        Alter(id="waits", action="cancel"),
        Alter(id="held", action="cancel"),
        Alter(id="gone", action="requeue"),
        Alter(id="done", action="delete"),
    ]
    before = await everything(broker)

    for id in ("done", "gone", "held", "waits", "unknown"):
        orders = [*(good if behind else ()), Alter(id=id, action=action)]
        with pytest.raises(InvalidInput):
            await c.alter(*orders)

    assert await everything(broker) == before
    assert await broker.collect("w1", 0, 0.0) == []  # nobody was told to stop
    call = Call(c.incarnation, c.number)  # a call that raised leaves its number free
    answers = await broker.alter(call, good, now=NOW)
    assert [answer.code for answer in answers] == ["done", "requested", "done", "done"]


# -- settlements ------------------------------------------------------------------------------

WRONG: dict[str, dict[str, Any]] = {
    "keep NaN": {"keep": math.nan},
    "keep infinite": {"keep": math.inf},
    "keep minus infinite": {"keep": -math.inf},
    "keep negative": {"keep": -1.0},
    "error a string": {"error": "it did not work"},
    "error an exception": {"error": ValueError("it did not work")},
    "error a tuple": {"error": ("ValueError", "it did not work", "")},
    "result a string": {"result": "text"},
    "result a bytearray": {"result": bytearray(b"text")},
    "result a number": {"result": 0},
    "delay NaN": {"to": State.RETRYING, "delay": math.nan},
    "delay infinite": {"to": State.SCHEDULED, "delay": math.inf},
    "delay negative": {"to": State.RETRYING, "delay": -1.0},
    "run time NaN": {"run_time": math.nan},
    "run time infinite": {"run_time": math.inf},
    "to deferred": {"to": State.DEFERRED},
    "to running": {"to": State.RUNNING},
    "to nothing": {"to": None},
}


@pytest.mark.parametrize("place", ["alone", "behind good ones", "before good ones"])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_wrong_settlement_raises_and_changes_nothing(
    broker: Store, c: Client, wrong: dict[str, Any], place: str
) -> None:
    leases = await c.run(*(submit(f"t{i}") for i in range(4)))
    await c.enqueue(submit("child", after=["t0"]), submit("next"))
    good = [completed(leases[0]), failed(leases[1]), dead(leases[2])]
    bad = replace(completed(leases[3]), **wrong)
    batch = {
        "alone": [bad],
        "behind good ones": [*good, bad],
        "before good ones": [bad, *good],
    }[place]
    before = await everything(broker)

    with pytest.raises(InvalidInput):
        await c.exchange(
            batch,
            started=[c.ref(leases[0])],
            fetch=Fetch(queues=("default",), max=5),
        )

    assert await everything(broker) == before
    call = Call(c.incarnation, c.number)
    reply = await broker.exchange(call, [*good, completed(leases[3])], now=NOW)
    assert reply.settled == ["applied"] * 4


async def test_a_wrong_settlement_raises_even_if_the_task_is_unknown(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t"))
    ghost = replace(completed(lease, keep=math.nan), id="ghost")

    with pytest.raises(InvalidInput):
        await c.settle(completed(lease), ghost)
    assert await states(broker, "t") == [State.RUNNING]


@pytest.mark.parametrize("keep", [0.0, 0, 5, 1e9])
async def test_a_keep_of_zero_or_more_seconds_is_taken(
    broker: Store, c: Client, keep: float
) -> None:
    (lease,) = await c.run(submit("t"))
    assert await c.settle(completed(lease, b"", keep=keep)) == ["applied"]
    assert await states(broker, "t") == [State.COMPLETED if keep else None]


# -- heartbeats -------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [math.inf, math.nan, 0.0, -1.0, -math.inf])
async def test_a_beat_with_a_lease_that_is_no_time_raises_and_changes_nothing(
    broker: Store, c: Client, lease: float
) -> None:
    await c.run(submit("t"))
    with pytest.raises(InvalidInput):
        await broker.beat("w1", worker=WorkerRecord(incarnation="w1"), lease=lease, now=NOW + 5)

    assert await broker.workers(now=NOW + 5) == []
    assert [(await broker.sweep(now=NOW + at)).count for at in (12, 21, 29)] == [0, 0, 0]
    assert (await broker.sweep(now=NOW + 31)).count == 1  # as if nobody had been heard
    assert await states(broker, "t") == [State.QUEUED]


# -- ids of cancelled tasks -------------------------------------------------------------------


async def cancel_waiting(c: Client) -> None:
    await c.cancel("t")


async def cancel_running(c: Client) -> None:
    (lease,) = await c.fetch(1)
    await c.cancel("t")
    await c.settle(failed(lease))


async def purge(c: Client) -> None:
    await c.purge()


CANCELLED: dict[str, Callable[[Client], Awaitable[None]]] = {
    "waiting": cancel_waiting,
    "running": cancel_running,
    "purged": purge,
}
OTHER: dict[str, dict[str, Any]] = {
    "body": {"body": b"other"},
    "empty body": {"body": b""},
    "queue": {"queue": "other"},
    "tenant": {"tenant": "b"},
    "level": {"level": 1},
    "cost": {"cost": 2.0},
    "limiters": {"limiters": ("gpu",)},
    "everything": {"body": b"other", "queue": "other", "tenant": "b", "level": 0},
}


@pytest.mark.parametrize("cancel", CANCELLED.values(), ids=CANCELLED)
@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
async def test_the_id_of_a_cancelled_task_with_other_content_is_a_conflict(
    broker: Store, c: Client, cancel: Callable[[Client], Awaitable[None]], other: dict[str, Any]
) -> None:
    await c.enqueue(submit("t"))
    await cancel(c)
    before = await everything(broker)

    (receipt,) = await c.enqueue(submit("t", **other))

    assert (receipt.code, receipt.id, receipt.state) == ("conflict", "t", State.CANCELLED)
    assert await everything(broker) == before
    assert await c.fetch(5, ["default", "other"]) == []


@pytest.mark.parametrize("body", [b"", b"x" * 1000], ids=["empty", "long"])
@pytest.mark.parametrize("cancel", CANCELLED.values(), ids=CANCELLED)
async def test_the_id_of_a_cancelled_task_with_the_same_content_is_a_duplicate(
    broker: Store, c: Client, cancel: Callable[[Client], Awaitable[None]], body: bytes
) -> None:
    await c.enqueue(submit("t", body=body, trace=b"one"))
    await cancel(c)
    assert (await record(broker, "t")).message.body == b""  # dropped, and known all the same

    receipts = await c.enqueue(
        submit("t", body=body, trace=b"two"), submit("t", body=body + b"!"), submit("t", body=body)
    )

    assert codes(receipts) == ["duplicate", "conflict", "duplicate"]
    assert {receipt.state for receipt in receipts} == {State.CANCELLED}


# -- schedules --------------------------------------------------------------------------------


def firing(id: str, slot: float, revision: int, body: bytes = b"x") -> Firing:
    return Firing(
        schedule="nightly",
        slot=slot,
        submission=submit(id, body=body),
        revision=revision,
        next_at=slot + 1,
    )


async def test_a_slot_whose_firing_is_a_conflict_is_not_repeated_for_ever(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("t0", body=b"other"))
    r = await c.planned("nightly")

    assert codes(await c.fire(firing("t0", NOW, r))) == ["conflict"]
    assert codes(await c.fire(firing("t0", NOW, r), firing("t1", NOW, r))) == ["stale", "stale"]
    assert codes(await c.fire(firing("t2", NOW + 60, r))) == ["accepted"]
    assert await states(broker, "t0", "t1", "t2") == [State.QUEUED, None, State.QUEUED]


async def test_a_slot_that_found_no_room_may_be_fired_again(c: Client) -> None:
    r = await c.planned("nightly")
    await c.configure(QueueChange(queue="default", max_waiting=0))
    assert codes(await c.fire(firing("t0", NOW, r))) == ["queue_full"]
    await c.configure(QueueChange(queue="default", max_waiting=1))
    assert codes(await c.fire(firing("t0", NOW, r))) == ["accepted"]


# -- answers ----------------------------------------------------------------------------------


async def test_receipts_may_be_changed_by_the_caller(broker: Store) -> None:
    revision = await Client(broker, "planner").planned("nightly")
    for verb in ("enqueue", "fire"):
        call = Call(verb, 1)

        async def again(verb: str = verb, call: Call = call) -> list[Any]:
            if verb == "enqueue":
                return await broker.enqueue(call, [submit("t"), submit("t")], now=NOW)
            return await broker.fire(call, [firing("f", NOW, revision)], now=NOW)

        first = await again()
        kept = list(first)
        first.clear()
        second = await again()
        assert second == kept
        second.reverse()
        second.append(second[0])
        assert await again() == kept


async def test_answers_to_orders_and_writes_may_be_changed_by_the_caller(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t"))
    written = Write(lease=c.ref(lease), kind="progress", value=b"1")
    for _ in range(2):
        answers = await broker.write(Call("w1", 10), [written], now=NOW)
        assert answers == ["applied"]
        answers.clear()
    for _ in range(2):
        altered = await broker.alter(Call("op", 1), [Alter(id="t", action="cancel")], now=NOW)
        assert [answer.code for answer in altered] == ["requested"]
        altered.clear()


async def test_answers_to_an_exchange_may_be_changed_by_the_caller(
    broker: Store, c: Client
) -> None:
    done, held = await c.run(submit("done"), submit("held"))
    await c.enqueue(submit("next"))
    marks = [c.ref(held), LeaseRef("ghost", "w1", 1)]

    for _ in range(3):
        reply = await broker.exchange(
            Call("w1", 10),
            [completed(done), replace(completed(done), id="ghost")],
            started=marks,
            fetch=Fetch(queues=("default",), max=5),
            now=NOW,
        )
        assert reply.settled == ["applied", "unknown"]
        assert reply.started == ["applied", "unknown"]
        assert ids(reply.leased) == ["next"]
        reply.settled.clear()
        reply.started.reverse()
        reply.leased.clear()


async def test_mail_and_events_may_be_changed_by_the_caller(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await broker.watch("me", ["t"], now=NOW)
    await c.settle(completed(lease))

    for _ in range(2):
        mail = await broker.collect("me", 0, 0.0)
        assert [letter.id for letter in mail] == ["t"]
        mail.clear()
        page = await broker.events()
        assert [event.kind for event in page.events] == ["enqueued", "started", "completed"]
        page.events.clear()


# -- waiting ----------------------------------------------------------------------------------


async def test_a_queue_may_be_named_twice_by_who_waits(broker: Store, c: Client) -> None:
    queues = ["default", "other", "default"]
    for number in range(3):
        assert await broker.wait(queues, 0.01) is False
        waiter = asyncio.ensure_future(broker.wait(queues, 10.0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiter.done()
        await c.enqueue(submit(f"t{number}"))
        assert await asyncio.wait_for(waiter, 5.0) is True
        assert await broker.wait(queues, 0.01) is True
        assert ids(await c.fetch(5, queues)) == [f"t{number}"]


async def test_whoever_leaves_takes_none_of_the_others_along(broker: Store, c: Client) -> None:
    queues = ["default", "default"]
    first = asyncio.ensure_future(broker.wait(queues, 10.0))
    second = asyncio.ensure_future(broker.wait(queues, 10.0))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await c.enqueue(submit("t"))

    assert await asyncio.wait_for(second, 5.0) is True
