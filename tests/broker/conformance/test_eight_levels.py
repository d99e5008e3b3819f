"""Up to eight levels inside a tenant: their order, turns for the lower ones, strict queues."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Alter, QueueChange
from fairlead.model.lifecycle import State
from fairlead.model.priority_turns import level_at
from tests.support.fair import enqueue_all, taken
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
    submit,
)

STRICT = QueueChange(queue="default", strict_priorities=True)
MADE = [f"{n:032x}" for n in range(1, 100)]  # ids as Fairlead makes them


async def fill(c: Client, each: int, levels: range = range(8), tenant: str = "a") -> None:
    """``each`` tasks of every level, the lowest first."""
    tasks = (
        submit(f"{level}.{n}.{tenant}", tenant, level=level)
        for level in reversed(levels)
        for n in range(each)
    )
    await enqueue_all(c, tasks)


async def ahead(broker: Store, id: str) -> int:
    found = await broker.standing(id, now=NOW)
    assert found is not None
    return found.tasks_ahead


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_strict_levels_go_one_after_the_other(c: Client, size: int) -> None:
    await c.configure(STRICT)
    await fill(c, 9)

    expected = [f"{level}.{n}.a" for level in range(8) for n in range(9)]
    assert ids(await taken(c, 100, size)) == expected


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_of_eight_dispatches_each_lower_level_has_one(c: Client, size: int) -> None:
    await fill(c, 40)

    levels = [lease.message.level for lease in await taken(c, 104, size)]
    assert levels[:40] == [0] * 40
    assert levels[40:] == [1, 4, 6, 2, 1, 5, 7, 3] * 8


async def test_what_a_level_does_not_need_goes_to_the_highest(c: Client) -> None:
    await fill(c, 20, range(5, 8))

    levels = [lease.message.level for lease in await taken(c, 24, 6)]
    assert levels == [5, 5, 6, 5, 5, 5, 7, 5] * 3


async def test_turns_are_what_the_model_says(c: Client) -> None:
    left, turn, expected = [2, 9, 3, 0, 7, 1, 0, 5], 0, []
    await enqueue_all(
        c, (submit(f"{level}.{n}", level=level) for level in range(8) for n in range(left[level]))
    )
    while any(left):
        level = level_at(turn, left)
        expected.append(level)
        left[level] -= 1
        turn += level > 0
    assert [lease.message.level for lease in await taken(c, 100, 4)] == expected


async def test_strict_holds_for_what_waits_and_ends_with_the_setting(c: Client) -> None:
    await fill(c, 20, range(1, 6))
    await c.configure(STRICT)
    assert {lease.message.level for lease in await taken(c, 16, 5)} == {1}
    (found,) = (await c.broker.settings(queue="default")).queues
    assert found.strict_priorities is True

    await c.configure(QueueChange(queue="default", strict_priorities=False))
    assert [lease.message.level for lease in await taken(c, 8, 8)] == [1, 4, 1, 2, 1, 5, 1, 3]


async def test_strict_and_run_time_are_switches_apart(c: Client, broker: Store) -> None:
    for charge, strict in ((True, False), (True, True), (False, True), (False, False)):
        await c.configure(QueueChange(queue="default", charge_run_time=charge))
        await c.configure(QueueChange(queue="default", strict_priorities=strict))
        (found,) = (await broker.settings(queue="default")).queues
        assert (found.charge_run_time, found.strict_priorities) == (charge, strict)


@pytest.mark.parametrize("strict", [False, True])
async def test_what_stands_before_a_task_is_what_goes_before_it(
    broker: Store, c: Client, strict: bool
) -> None:
    await c.configure(QueueChange(queue="default", strict_priorities=strict))
    await fill(c, 4)
    names = [f"{level}.{n}.a" for level in range(8) for n in range(4)]
    said = {await ahead(broker, id): id for id in names}
    assert ids(await taken(c, 32, 32)) == [said[place] for place in range(32)]


async def test_an_operator_moves_tasks_between_all_levels(broker: Store, c: Client) -> None:
    await c.configure(STRICT)
    await fill(c, 2)
    moves = {"0.0.a": 6, "7.1.a": 0, "5.0.a": 4, "2.0.a": 7}
    orders = [Alter(id=id, action="prioritize", level=level) for id, level in moves.items()]
    assert {answer.code for answer in await c.alter(*orders)} == {"done"}
    told = [(event.task, event.reason) for event in await events(broker, "prioritized")]
    names = {6: "level-6", 0: "critical", 4: "level-4", 7: "level-7"}
    assert told == [(id, names[level]) for id, level in moves.items()]
    assert [(await record(broker, id)).message.level for id in moves] == list(moves.values())
    assert ids(await taken(c, 16, 3)) == [
        "0.1.a", "7.1.a", "1.0.a", "1.1.a", "2.1.a", "3.0.a", "3.1.a", "4.0.a", "4.1.a", "5.0.a",
        "5.1.a", "6.0.a", "6.1.a", "0.0.a", "7.0.a", "2.0.a",
    ]  # fmt: skip


async def test_a_task_keeps_its_level_wherever_it_goes(broker: Store, c: Client) -> None:
    """Retries, what is given back, dead letters that are requeued, delays and dependencies."""
    retried, given, gone = await c.run(
        submit("retried", level=5), submit("given", level=6), submit("gone", level=7)
    )
    await c.settle(failed(retried, 1.0), released(given), dead(gone))
    await c.enqueue(submit("late", level=4, delay=0.5), submit(MADE[0], level=4, delay=1.0))
    (parent,) = await c.run(submit("parent", level=0))
    await c.enqueue(submit("child", level=6, after=["parent"]))
    await c.enqueue(submit(MADE[1], level=5, after=["parent"]))
    await c.settle(completed(parent))
    await c.requeue("gone")
    await c.configure(STRICT)

    leases = await c.fetch(10, now=NOW + 1)
    assert [(lease.message.id, lease.message.level) for lease in leases] == [
        ("late", 4),
        (MADE[0], 4),
        (MADE[1], 5),
        ("retried", 5),
        ("given", 6),
        ("child", 6),
        ("gone", 7),
    ]
    assert await broker.audit(now=NOW + 1) == []


async def test_members_of_a_flow_have_levels(broker: Store, c: Client) -> None:
    await c.configure(STRICT)
    await make(c, "f", *(submit(f"m{level}", level=level) for level in (7, 3, 5, 0, 6, 4)))
    assert ids(await c.fetch(10)) == ["m0", "m3", "m4", "m5", "m6", "m7"]


async def test_lower_lines_are_counted(broker: Store, c: Client) -> None:
    await fill(c, 2, range(3, 8))
    await c.enqueue(submit("plain", "b"))
    tenants = (await broker.stats(tenants=True, now=NOW)).tenants["default"]
    assert tenants["a"].lines == (0, 0, 0, 2, 2, 2, 2, 2)
    assert tenants["b"].lines == (0, 0, 1, 0, 0, 0, 0, 0)
    assert (await broker.snapshot(now=NOW + 9)).queues["default"].oldest_at == NOW


async def test_lower_lines_that_hold_nothing_any_more_are_dropped(broker: Store, c: Client) -> None:
    await c.enqueue(submit("low", level=6), submit("normal"), submit("lower", level=7))
    await c.cancel("low")
    await c.cancel("lower")
    assert ids(await c.fetch(5)) == ["normal"]
    assert await broker.audit(now=NOW) == []
    await c.enqueue(submit("again", level=6))
    assert ids(await c.fetch(5)) == ["again"]


async def test_a_tenant_that_has_dead_tasks_gets_lower_lines(broker: Store, c: Client) -> None:
    """What is stored of few tenants stood there before lower lines did."""
    (gone,) = await c.run(submit("gone"))
    await c.settle(dead(gone))
    await c.enqueue(submit("low", level=6))
    await c.enqueue(submit("normal"))
    assert await broker.audit(now=NOW) == []
    assert ids(await c.fetch(1)) == ["normal"]
    assert ids(await c.fetch(1)) == ["low"]
    assert await broker.audit(now=NOW) == []


async def test_the_longest_wait_is_found_in_a_lower_line(broker: Store, c: Client) -> None:
    await c.enqueue(submit("low", level=7))
    await c.enqueue(submit("high", level=1), now=NOW + 5)
    assert (await broker.snapshot(now=NOW + 9)).queues["default"].oldest_at == NOW


async def test_lower_levels_are_purged(broker: Store, c: Client) -> None:
    await fill(c, 3)
    assert (await c.broker.purge(c.call(), "default", None, now=NOW)).count == 24
    assert (await record(broker, "7.2.a")).state is State.CANCELLED
    assert await c.fetch(5) == []


async def test_ways_in_of_all_kinds_have_levels(c: Client) -> None:
    """One by one and many at a time, with ids of Fairlead's and with chosen ones."""
    await c.configure(STRICT)
    for n in range(16):
        await c.enqueue(submit(MADE[n], level=7 - n % 8))
    await c.enqueue(*(submit(MADE[16 + n], level=7 - n % 8) for n in range(16)))
    levels = [lease.message.level for lease in await taken(c, 64, 3)]
    assert levels == [level for level in range(8) for _ in range(4)]
