"""Orders about single tasks: cancel, requeue, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Alter, Altered, Call, Seen
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.support.store import (
    ERROR,
    NOW,
    Client,
    cancelled,
    completed,
    dead,
    events,
    failed,
    ids,
    record,
    released,
    snoozed,
    states,
    submit,
)

WAITING = [State.QUEUED, State.SCHEDULED, State.DEFERRED, State.RETRYING]
FINISHED = [State.COMPLETED, State.DEAD, State.CANCELLED]


async def bring(c: Client, id: str, state: State) -> None:
    """Make a task that is in this state, with a body of its own."""
    if state is State.DEFERRED:
        await c.enqueue(submit(f"{id}-parent", "other", "elsewhere"))
        await c.enqueue(submit(id, body=b"work", after=[f"{id}-parent"]))
    else:
        await c.enqueue(submit(id, body=b"work", delay=60 if state is State.SCHEDULED else 0))
    if state in {State.RUNNING, State.RETRYING, State.COMPLETED, State.DEAD}:
        (lease,) = await c.fetch(1)
        if state is State.RETRYING:
            await c.settle(failed(lease, 60))
        elif state is State.COMPLETED:
            await c.settle(completed(lease, b"result"))
        elif state is State.DEAD:
            await c.settle(dead(lease))
    if state is State.CANCELLED:
        await c.cancel(id)
    assert await states(c.broker, id) == [state]


# -- cancel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WAITING)
async def test_cancel_of_a_waiting_task_ends_it_at_once_and_drops_its_body(
    broker: Store, c: Client, state: State
) -> None:
    await bring(c, "t1", state)

    assert await c.cancel("t1", now=NOW + 1) == Altered(id="t1", code="done", state=State.CANCELLED)
    found = await record(broker, "t1")
    assert (found.state, found.finished_at) == (State.CANCELLED, NOW + 1)
    assert (found.message.id, found.message.body) == ("t1", b"")
    assert (found.due_at, found.waiting_for) == (None, ())

    assert await c.fetch(10, now=NOW + 100) == []
    assert (await broker.snapshot(now=NOW + 100)).queues["default"].depth == 0


async def test_cancel_of_a_running_task_is_requested_and_its_worker_told(
    broker: Store, c: Client
) -> None:
    (lease, _) = await c.run(submit("t1"), submit("t2"))

    assert await Client(broker, "operator").cancel("t1") == Altered(
        id="t1", code="requested", state=State.RUNNING
    )
    found = await record(broker, "t1")
    assert (found.state, found.cancelling, found.message.body) == (State.RUNNING, True, b"x")
    assert (await record(broker, "t2")).cancelling is False

    (mail,) = await broker.collect("w1", 0, 0.0)
    assert (mail.kind, mail.id, mail.token) == ("cancel", "t1", lease.token)
    assert (await broker.beat("w1", now=NOW)).cancelled == [c.ref(lease)]
    (event,) = await events(broker, "cancelling")
    assert (event.task, event.token) == ("t1", lease.token)


@pytest.mark.parametrize("outcome", [failed, dead, released, cancelled])
async def test_if_cancel_was_asked_for_anything_but_success_becomes_cancelled(
    broker: Store, c: Client, outcome: Callable[[Leased], Settlement]
) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.cancel("t1")

    assert await c.settle(outcome(lease)) == ["applied"]
    found = await record(broker, "t1")
    assert (found.state, found.cancelling, found.due_at) == (State.CANCELLED, False, None)
    assert await c.fetch(10, now=NOW + 100) == []


async def test_if_cancel_was_asked_for_success_stands(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.cancel("t1")

    await c.settle(completed(lease, b"result"))
    found = await record(broker, "t1")
    assert (found.state, found.result, found.cancelling) == (State.COMPLETED, b"result", False)


async def test_a_snooze_after_cancel_becomes_cancelled(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.cancel("t1")
    await c.settle(snoozed(lease, 60))
    assert await states(broker, "t1") == [State.CANCELLED]


async def test_cancel_of_a_running_task_again_is_requested_again(broker: Store, c: Client) -> None:
    await c.run(submit("t1"))
    await c.cancel("t1")
    assert (await c.cancel("t1")).code == "requested"
    assert len((await broker.beat("w1", now=NOW)).cancelled) == 1


@pytest.mark.parametrize("state", FINISHED)
async def test_cancel_of_a_finished_task_is_unchanged(
    broker: Store, c: Client, state: State
) -> None:
    await bring(c, "t1", state)
    before = await record(broker, "t1")
    assert await c.cancel("t1", now=NOW + 1) == Altered(id="t1", code="unchanged", state=state)
    assert await record(broker, "t1") == before


# -- requeue ----------------------------------------------------------------------------------


async def test_requeue_puts_a_dead_task_back_with_a_new_generation_and_no_attempts(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1", body=b"work"))
    await c.settle(failed(lease, 0))
    (lease,) = await c.fetch(1)
    assert (lease.attempt, lease.generation) == (2, 0)
    await c.settle(dead(lease))
    found = await record(broker, "t1")
    assert (found.state, found.attempts, found.error) == (State.DEAD, 2, ERROR)

    assert await c.requeue("t1", now=NOW + 5) == Altered(id="t1", code="done", state=State.QUEUED)
    found = await record(broker, "t1")
    assert (found.state, found.attempts, found.generation) == (State.QUEUED, 0, 1)
    assert found.finished_at is None

    (again,) = await c.fetch(1, now=NOW + 5)
    assert (again.attempt, again.generation, again.message.body) == (1, 1, b"work")
    assert again.token > lease.token


async def test_requeue_puts_a_dead_task_back_with_no_crashes(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    for _ in range(3):
        assert len(await c.fetch(1)) == 1
        await broker.give_back("w1", now=NOW)
    found = await record(broker, "t1")
    assert (found.state, found.reason, found.crashes) == (State.DEAD, "poison", 3)

    await c.requeue("t1")
    found = await record(broker, "t1")
    assert (found.state, found.crashes, found.attempts) == (State.QUEUED, 0, 0)
    (lease,) = await c.fetch(1)
    assert lease.crashes == 0


async def test_requeue_puts_an_expired_task_back_with_no_deadline(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1", deadline=3))
    await broker.promote(now=NOW + 5)

    assert (await c.requeue("t1", now=NOW + 5)).code == "done"
    assert (await record(broker, "t1")).deadline_at is None
    assert ids(await c.fetch(1, now=NOW + 1000)) == ["t1"]


async def test_requeue_does_not_take_the_unique_key_again(broker: Store, c: Client) -> None:
    unique = Unique(key="k")
    (lease,) = await c.run(submit("t1", unique=unique))
    await c.settle(dead(lease))
    await c.requeue("t1")

    (receipt,) = await c.enqueue(submit("t2", unique=unique))
    assert (receipt.id, receipt.code) == ("t2", "accepted")
    assert await states(broker, "t1", "t2") == [State.QUEUED, State.QUEUED]


async def test_each_requeue_raises_the_generation(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    for generation in range(3):
        (lease,) = await c.fetch(1)
        assert lease.generation == generation
        await c.settle(dead(lease))
        await c.requeue("t1")
    assert (await record(broker, "t1")).generation == 3


async def test_requeue_again_is_unchanged(c: Client) -> None:
    await bring(c, "t1", State.DEAD)
    await c.requeue("t1")
    assert await c.requeue("t1") == Altered(id="t1", code="unchanged", state=State.QUEUED)
    assert ids(await c.fetch(10)) == ["t1"]


@pytest.mark.parametrize(
    "state", [*WAITING, State.RUNNING, State.COMPLETED, State.CANCELLED], ids=str
)
async def test_requeue_of_a_task_that_is_not_dead_is_unchanged(
    broker: Store, c: Client, state: State
) -> None:
    await bring(c, "t1", state)
    before = await record(broker, "t1")
    assert await c.requeue("t1") == Altered(id="t1", code="unchanged", state=state)
    assert await record(broker, "t1") == before


async def test_a_lease_from_before_a_requeue_is_over(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(dead(lease))
    await c.requeue("t1")
    await c.fetch(1)
    assert await c.settle(completed(lease)) == ["fenced"]
    assert await states(broker, "t1") == [State.RUNNING]


# -- delete -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", FINISHED)
async def test_delete_forgets_a_finished_task(broker: Store, c: Client, state: State) -> None:
    await bring(c, "t1", state)
    answer = await c.delete("t1")
    assert (answer.id, answer.code) == ("t1", "done")

    assert await states(broker, "t1") == [None]
    assert (await broker.page(now=NOW)).tasks == []
    assert (await c.delete("t1")).code == "unknown"
    assert (await c.enqueue(submit("t1", body=b"new")))[0].code == "accepted"


@pytest.mark.parametrize("state", [*WAITING, State.RUNNING])
async def test_delete_of_an_unfinished_task_is_unchanged(
    broker: Store, c: Client, state: State
) -> None:
    await bring(c, "t1", state)
    before = await record(broker, "t1")
    assert await c.delete("t1") == Altered(id="t1", code="unchanged", state=state)
    assert await record(broker, "t1") == before


# -- any order --------------------------------------------------------------------------------

Action = Literal["cancel", "requeue", "delete"]
ORDERS = pytest.mark.parametrize("action", ["cancel", "requeue", "delete"])


@ORDERS
async def test_an_order_about_an_id_that_is_not_known_is_unknown(c: Client, action: Action) -> None:
    order = Alter(id="ghost", action=action)
    assert await c.alter(order) == [Altered(id="ghost", code="unknown", state=None)]


@ORDERS
@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.DEAD])
async def test_a_task_of_another_tenant_than_the_order_names_is_unknown(
    broker: Store, c: Client, action: Action, state: State
) -> None:
    await bring(c, "t1", state)
    before = await record(broker, "t1")
    known = await events(broker)

    order = Alter(id="t1", action=action, tenant="b")
    assert await c.alter(order) == [Altered(id="t1", code="unknown", state=None)]
    assert await record(broker, "t1") == before
    assert await events(broker) == known


async def test_an_order_that_names_the_tasks_own_tenant_is_carried_out(c: Client) -> None:
    await bring(c, "t1", State.DEAD)
    assert (await c.requeue("t1", tenant="a")).code == "done"
    assert (await c.cancel("t1", tenant="a")).code == "done"
    assert (await c.delete("t1", tenant="a")).code == "done"


async def test_there_is_one_answer_per_order_in_order(c: Client) -> None:
    await bring(c, "dead", State.DEAD)
    await bring(c, "running", State.RUNNING)
    await bring(c, "queued", State.QUEUED)

    answers = await c.alter(
        Alter(id="queued", action="cancel"),
        Alter(id="queued", action="cancel"),
        Alter(id="ghost", action="delete"),
        Alter(id="running", action="cancel"),
        Alter(id="dead", action="requeue"),
        Alter(id="dead", action="cancel"),
        Alter(id="dead", action="delete"),
        Alter(id="dead", action="delete"),
    )
    assert [(answer.id, answer.code) for answer in answers] == [
        ("queued", "done"),
        ("queued", "unchanged"),
        ("ghost", "unknown"),
        ("running", "requested"),
        ("dead", "done"),
        ("dead", "done"),
        ("dead", "done"),
        ("dead", "unknown"),
    ]


async def test_no_orders_have_no_answers(broker: Store, c: Client) -> None:
    assert await c.alter() == []
    assert await events(broker) == []


async def test_up_to_a_step_of_tasks_is_altered(broker: Store, c: Client) -> None:
    names = [f"t{i}" for i in range(MAX_STEP)]
    await c.enqueue(*map(submit, names))
    answers = await c.alter(*(Alter(id=id, action="cancel") for id in names))
    assert [answer.code for answer in answers] == ["done"] * MAX_STEP
    assert (await broker.snapshot(now=NOW)).depth == 0


async def test_more_orders_than_a_step_raise_and_change_nothing(broker: Store, c: Client) -> None:
    names = [f"t{i}" for i in range(MAX_STEP + 1)]
    await c.enqueue(*map(submit, names))
    with pytest.raises(InvalidInput):
        await c.alter(*(Alter(id=id, action="cancel") for id in names))
    assert (await broker.snapshot(now=NOW)).ready == len(names)


async def test_the_last_number_again_returns_the_same_answers_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    await bring(c, "t1", State.DEAD)
    orders = [Alter(id="t1", action="requeue")]
    first = await c.alter(*orders)

    again = Call(c.incarnation, c.number)
    assert await broker.alter(again, orders, now=NOW + 1) == first
    assert first[0].code == "done"
    assert (await record(broker, "t1")).generation == 1


@pytest.mark.parametrize("action", ["cancel", "requeue", "delete", "run", "prioritize"])
async def test_a_task_that_stands_otherwise_than_it_was_seen_is_left_alone(
    broker: Store, c: Client, action: Literal["cancel", "requeue", "delete", "run", "prioritize"]
) -> None:
    await bring(c, "t1", State.DEAD)
    before = await record(broker, "t1")
    seen = Seen(state=State.DEAD, generation=before.generation, attempts=before.attempts)
    for other in (
        msgspec.structs.replace(seen, state=State.QUEUED),
        msgspec.structs.replace(seen, generation=seen.generation + 1),
        msgspec.structs.replace(seen, attempts=seen.attempts + 1),
    ):
        (answer,) = await c.alter(Alter(id="t1", action=action, level=0, seen=other))
        assert (answer.code, answer.state) == ("unchanged", State.DEAD)
    assert await record(broker, "t1") == before


async def test_a_task_that_stands_as_it_was_seen_is_altered(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t1"))
    seen = Seen(state=State.QUEUED)
    (lease,) = await c.fetch()
    (answer,) = await c.alter(Alter(id="t1", action="cancel", seen=seen))
    assert (answer.code, answer.state) == ("unchanged", State.RUNNING)  # nor asked to stop
    assert not (await record(broker, "t1")).cancelling
    await c.settle(failed(lease))
    again = await record(broker, "t1")
    seen = Seen(state=again.state, generation=again.generation, attempts=again.attempts)
    (answer,) = await c.alter(Alter(id="t1", action="cancel", seen=seen))
    assert (answer.code, answer.state) == ("done", State.CANCELLED)
