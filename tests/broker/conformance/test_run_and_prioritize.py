"""Operators let tasks run before they are due, and give those that wait another level."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import (
    MAX_MOVES,
    Alter,
    Altered,
    Call,
    LimiterChange,
    QueueChange,
    TenantChange,
)
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from fairlead.model.message import LEVEL_NAMES
from fairlead.model.options import Unique
from tests.support.flows import make
from tests.support.store import (
    NOW,
    Client,
    completed,
    dead,
    events,
    failed,
    ids,
    record,
    released,
    states,
    submit,
)

MADE = [f"{n:032x}" for n in range(1, 9)]  # as Fairlead makes them


async def run(c: Client, *names: str, now: float = NOW) -> list[Altered]:
    return await c.alter(*(Alter(id=id, action="run") for id in names), now=now)


async def prioritize(c: Client, id: str, level: int, *, now: float = NOW) -> Altered:
    (answer,) = await c.alter(Alter(id=id, action="prioritize", level=level), now=now)
    return answer


async def levels(broker: Store, *names: str) -> list[int]:
    found = await broker.find(names, now=NOW)
    return [each.message.level for each in found if each is not None]


# -- run -----------------------------------------------------------------------------------------


async def test_a_scheduled_task_is_queued_at_once(c: Client) -> None:
    await c.enqueue(submit("t1", delay=60.0), submit("t2", delay=30.0))
    assert await c.fetch(5, now=NOW + 1) == []
    assert await run(c, "t1", now=NOW + 2) == [Altered(id="t1", code="done", state=State.QUEUED)]
    (event,) = await events(c.broker, "queued")
    assert (event.task, event.reason, event.state) == ("t1", "run", "queued")
    assert ids(await c.fetch(5, now=NOW + 2)) == ["t1"]
    assert ids(await c.fetch(5, now=NOW + 30)) == ["t2"]
    assert await c.fetch(5, now=NOW + 60) == []


async def test_a_retrying_task_is_queued_at_once_and_keeps_its_attempts(c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.settle(failed(lease, delay=60.0))
    assert (await run(c, "t1", now=NOW + 1))[0].code == "done"
    (again,) = await c.fetch(1, now=NOW + 1)
    assert again.attempt == 2


async def test_a_task_that_is_run_has_waited_since_the_order(c: Client) -> None:
    await c.enqueue(submit("t1", delay=60.0))
    await run(c, "t1", now=NOW + 10)
    await c.fetch(1, now=NOW + 14)
    wait = (await c.broker.stats(now=NOW + 14)).queues["default"].wait
    assert wait.largest == pytest.approx(4.0)


async def test_a_task_that_is_due_already_has_waited_since_then(c: Client) -> None:
    await c.enqueue(submit("t1", delay=1.0))
    await run(c, "t1", now=NOW + 10)
    await c.fetch(1, now=NOW + 14)
    wait = (await c.broker.stats(now=NOW + 14)).queues["default"].wait
    assert wait.largest == pytest.approx(13.0)


async def test_what_run_has_no_use_for_is_unchanged(c: Client) -> None:
    _, done, gone = await c.run(submit("running"), submit("done"), submit("dead"))
    await c.settle(completed(done), dead(gone))
    await c.enqueue(submit("queued"), submit("deferred", after=["running"]))
    names = ["running", "done", "dead", "queued", "deferred"]
    before = await states(c.broker, *names)
    answers = await run(c, *names, "nobody")
    assert [answer.code for answer in answers] == ["unchanged"] * 5 + ["unknown"]
    assert [answer.state for answer in answers[:5]] == before
    assert await states(c.broker, *names) == before


async def test_run_of_another_tenants_task_is_unknown(c: Client) -> None:
    await c.enqueue(submit("t1", delay=60.0), submit("t2", level=2))
    for order in (
        Alter(id="t1", action="run", tenant="other"),
        Alter(id="t2", action="prioritize", level=0, tenant="other"),
    ):
        assert [each.code for each in await c.alter(order)] == ["unknown"]


async def test_a_task_past_its_deadline_that_is_run_expires(c: Client) -> None:
    await c.enqueue(submit("t1", delay=60.0, deadline=5.0))
    await run(c, "t1", now=NOW + 6)
    assert await c.fetch(1, now=NOW + 6) == []
    assert (await record(c.broker, "t1")).state is State.DEAD


async def test_many_are_run_in_the_order_of_the_orders(c: Client) -> None:
    await c.enqueue(*(submit(f"t{n}", delay=60.0 - n) for n in range(5)))
    await run(c, "t3", "t0", "t4")
    assert ids(await c.fetch(9)) == ["t3", "t0", "t4"]
    assert ids(await c.fetch(9, now=NOW + 60)) == ["t2", "t1"]


# -- prioritize ----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["t1", "t2", "t3"], MADE[:3]], ids=["chosen", "made"])
async def test_a_queued_task_goes_to_the_back_of_its_new_level(c: Client, names: list[str]) -> None:
    first, second, third = names
    await c.enqueue(submit(first, level=3), submit(second, level=3), submit(third, level=1))
    assert await prioritize(c, second, 1) == Altered(id=second, code="done", state=State.QUEUED)
    assert await levels(c.broker, *names) == [3, 1, 1]
    (event,) = await events(c.broker, "prioritized")
    assert (event.task, event.reason, event.state) == (second, "high", "queued")
    assert ids(await c.fetch(9)) == [third, second, first]


@pytest.mark.parametrize("names", [["t1", "t2", "t3"], MADE[:3]], ids=["chosen", "made"])
async def test_a_task_that_comes_back_to_a_level_is_at_its_back(
    c: Client, names: list[str]
) -> None:
    await c.enqueue(*(submit(id, level=2) for id in names))
    for level in (1, 2, 0, 2):
        await prioritize(c, names[0], level)
    assert ids(await c.fetch(9)) == [*names[1:], names[0]]


async def test_a_task_can_be_moved_so_often(c: Client) -> None:
    await c.enqueue(submit("t1", level=0), submit("t2", level=1))
    for n in range(1, MAX_MOVES + 1):
        assert (await prioritize(c, "t1", n % 2)).code == "done"
    answer = Altered(id="t1", code="unchanged", state=State.QUEUED)
    assert await prioritize(c, "t1", 0) == answer
    assert await levels(c.broker, "t1") == [1]
    assert ids(await c.fetch(9)) == ["t2", "t1"]
    assert await c.fetch(9) == []


async def test_each_task_that_waits_can_be_given_a_level(c: Client) -> None:
    parent, again = await c.run(submit("parent"), submit("again", level=3))
    await c.enqueue(
        submit("later", level=3, delay=10.0), submit("child", level=3, after=["parent"])
    )
    await c.settle(failed(again, delay=10.0))
    for id, state in (
        ("later", State.SCHEDULED),
        ("again", State.RETRYING),
        ("child", State.DEFERRED),
    ):
        assert await prioritize(c, id, 0) == Altered(id=id, code="done", state=state)
    await c.settle(completed(parent))
    await c.enqueue(submit("high", level=1), now=NOW + 10)
    assert await levels(c.broker, "later", "again", "child") == [0, 0, 0]
    found = ids(await c.fetch(9, now=NOW + 10))
    assert set(found[:3]) == {"later", "again", "child"}
    assert found[3:] == ["high"]


async def test_what_prioritize_has_no_use_for_is_unchanged(c: Client) -> None:
    _, done = await c.run(submit("running"), submit("done"))
    await c.settle(completed(done))
    await c.enqueue(submit("queued", level=1))
    for id, state in (
        ("running", State.RUNNING),
        ("done", State.COMPLETED),
        ("queued", State.QUEUED),
    ):
        answer = Altered(id=id, code="unchanged", state=state)
        assert await prioritize(c, id, 1) == answer
    assert (await prioritize(c, "nobody", 1)).code == "unknown"
    assert await events(c.broker, "prioritized") == []


async def test_a_task_keeps_its_level_for_as_long_as_it_is_known(c: Client) -> None:
    await c.enqueue(submit("t1", level=3))
    await prioritize(c, "t1", 0)
    (lease,) = await c.fetch(1)
    await c.settle(released(lease))
    assert await levels(c.broker, "t1") == [0]
    (lease,) = await c.fetch(1)
    await c.settle(failed(lease, delay=1.0))
    await c.enqueue(submit("t2", level=1), now=NOW + 1)
    (lease, other) = await c.fetch(2, now=NOW + 1)
    assert ids([lease, other]) == ["t1", "t2"]
    await c.settle(dead(lease), completed(other), now=NOW + 1)
    await c.requeue("t1")
    assert await levels(c.broker, "t1") == [0]
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease))
    assert await levels(c.broker, "t1") == [0]


@pytest.mark.parametrize("id", ["t1", MADE[0]], ids=["chosen", "made"])
async def test_a_prioritized_task_is_still_the_same_content(c: Client, id: str) -> None:
    await c.enqueue(submit(id, level=3, body=b"x"))
    await prioritize(c, id, 1)
    receipts = await c.enqueue(
        submit(id, level=3, body=b"x"), submit(id, level=1, body=b"x"), submit(id, body=b"y")
    )
    assert [receipt.code for receipt in receipts] == ["duplicate", "conflict", "conflict"]
    await c.cancel(id)
    receipts = await c.enqueue(submit(id, level=3, body=b"x"), submit(id, level=1, body=b"x"))
    assert [receipt.code for receipt in receipts] == ["duplicate", "conflict"]


async def test_an_id_that_is_known_without_its_task_is_the_same_content(c: Client) -> None:
    await c.configure(QueueChange(queue="default", keep_completed_count=0))
    await c.enqueue(submit("t1", level=3))
    await prioritize(c, "t1", 1)
    (lease,) = await c.fetch(1)
    await c.settle(completed(lease))
    receipts = await c.enqueue(submit("t1", level=3), submit("t1", level=1))
    assert [receipt.code for receipt in receipts] == ["duplicate", "conflict"]


async def test_a_prioritized_task_keeps_its_unique_key_and_has_waited_on(c: Client) -> None:
    unique = Unique(key="k")
    await c.enqueue(submit("t1", level=3, unique=unique))
    await prioritize(c, "t1", 0, now=NOW + 5)
    (receipt,) = await c.enqueue(submit("t2", unique=unique), now=NOW + 5)
    assert (receipt.code, receipt.id) == ("duplicate", "t1")
    (lease,) = await c.fetch(1, now=NOW + 9)
    wait = (await c.broker.stats(now=NOW + 9)).queues["default"].wait
    assert wait.largest == pytest.approx(9.0)
    await c.settle(completed(lease), now=NOW + 9)
    (receipt,) = await c.enqueue(submit("t2", unique=unique), now=NOW + 9)
    assert receipt.code == "accepted"


async def test_a_tenant_that_waits_for_a_limiter_is_looked_at_again(c: Client) -> None:
    await c.configure(LimiterChange(name="gpu", concurrency=1))
    await c.run(submit("busy", "other", limiters=("gpu",)))
    await c.enqueue(submit("t1", level=1, limiters=("gpu",)), submit("t2", level=3))
    assert await c.fetch(9) == []
    await prioritize(c, "t2", 0)
    assert ids(await c.fetch(9)) == ["t2"]


async def test_a_task_of_a_paused_tenant_can_be_moved(c: Client) -> None:
    await c.enqueue(submit("t1", level=3), submit("t2", level=3))
    await c.configure(TenantChange(tenant="a", paused=True))
    await prioritize(c, "t2", 0)
    assert await c.fetch(9) == []
    await c.configure(TenantChange(tenant="a", paused=False))
    assert ids(await c.fetch(9)) == ["t2", "t1"]


async def test_a_prioritized_task_can_be_cancelled_and_purged(c: Client) -> None:
    await c.enqueue(*(submit(f"t{n}", level=3) for n in range(4)))
    for n in range(4):
        await prioritize(c, f"t{n}", 1)
    assert (await c.cancel("t0")).code == "done"
    assert ids(await c.fetch(1)) == ["t1"]
    assert (await c.purge()).count == 2
    assert await c.fetch(9) == []


async def test_a_member_of_a_flow_can_be_moved(c: Client) -> None:
    await make(c, "flow", submit("m1", level=3), submit("m2", level=3, after=["m1"]))
    await c.enqueue(submit("t1", level=2))
    await prioritize(c, "m1", 0)
    await prioritize(c, "m2", 0)
    (lease,) = await c.fetch(1)
    assert lease.message.id == "m1"
    await c.settle(completed(lease))
    assert ids(await c.fetch(1)) == ["m2"]


async def test_standing_counts_what_goes_before_in_the_new_level(c: Client) -> None:
    await c.enqueue(*(submit(f"t{n}", level=3) for n in range(5)), submit("u", level=0))
    await prioritize(c, "t4", 0)
    standing = await c.broker.standing("t4", now=NOW)
    assert standing is not None
    assert (standing.tasks_ahead, standing.record.message.level) == (1, 0)


async def test_an_order_without_a_level_is_refused(c: Client) -> None:
    await c.enqueue(submit("t1", level=3))
    for level in (None, -1, len(LEVEL_NAMES)):
        with pytest.raises(InvalidInput):
            await c.alter(
                Alter(id="t1", action="cancel"), Alter(id="t1", action="prioritize", level=level)
            )
    assert await states(c.broker, "t1") == [State.QUEUED]


async def test_the_last_number_again_moves_nothing(c: Client) -> None:
    await c.enqueue(submit("t1", level=3), submit("t2", delay=9.0))
    orders = [Alter(id="t1", action="prioritize", level=1), Alter(id="t2", action="run")]
    answers = await c.alter(*orders)
    again = await c.broker.alter(Call(c.incarnation, c.number), orders, now=NOW)
    assert again == answers
    assert len(await events(c.broker, "prioritized", "queued")) == 2
