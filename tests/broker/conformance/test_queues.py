"""Queues come with their first task, and go when nothing of them is left or they are told to."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.requests import MAX_STEP, Call, QueueChange, TenantChange
from fairlead.model.lifecycle import State
from tests.support.store import (
    NOW,
    Client,
    codes,
    complete_all,
    completed,
    dead,
    drain,
    events,
    ids,
    states,
    submit,
)

HOUR = 3600.0


async def tidied(broker: Store, now: float) -> dict[str, int]:
    """Tidy until there is no more to do; by queue, how many finished tasks are kept then."""
    while (await broker.tidy(now=now)).more:
        pass
    found = (await broker.snapshot(now=now)).queues
    return {name: each.completed + each.dead + each.cancelled for name, each in found.items()}


async def queues(broker: Store, now: float = NOW) -> list[str]:
    return sorted((await broker.snapshot(now=now)).queues)


async def ended(c: Client, queue: str, *names: str, now: float = NOW) -> None:
    await c.enqueue(*(submit(name, queue=queue) for name in names), now=now)
    assert await complete_all(c, [queue], now=now) == len(names)


# -- by themselves ----------------------------------------------------------------------------


async def test_a_queue_goes_an_hour_after_its_last_task_was_forgotten(
    broker: Store, c: Client
) -> None:
    await ended(c, "done", "t.0", "t.1")
    await c.enqueue(submit("waits", queue="busy"))
    assert await tidied(broker, NOW + HOUR - 1) == {"busy": 0, "done": 2}
    assert await tidied(broker, NOW + HOUR) == {"busy": 0, "done": 0}
    assert await tidied(broker, NOW + 2 * HOUR - 1) == {"busy": 0, "done": 0}
    assert await tidied(broker, NOW + 2 * HOUR) == {"busy": 0}


async def test_a_queue_that_is_configured_stays(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="set", paused=True))
    await tidied(broker, NOW + 100 * HOUR)
    assert await queues(broker, NOW + 100 * HOUR) == ["set"]


async def test_a_queue_that_is_used_again_stays_for_another_hour(broker: Store, c: Client) -> None:
    await ended(c, "q", "t.0")
    await c.delete("t.0")
    await ended(c, "q", "t.1", now=NOW + 3000)
    await c.delete("t.1", now=NOW + 3000)
    await tidied(broker, NOW + 3000 + HOUR - 1)
    assert await queues(broker, NOW + 3000 + HOUR - 1) == ["q"]
    await tidied(broker, NOW + 3000 + HOUR)
    assert await queues(broker, NOW + 3000 + HOUR) == []


async def test_a_queue_that_is_gone_comes_back_with_its_next_task(broker: Store, c: Client) -> None:
    await ended(c, "q", "t.0")
    await tidied(broker, NOW + HOUR)
    await tidied(broker, NOW + 2 * HOUR)
    assert await queues(broker, NOW + 2 * HOUR) == []
    assert codes(await c.enqueue(submit("t.0", queue="q"), now=NOW + 2 * HOUR)) == ["accepted"]
    assert ids(await c.fetch(1, ["q"], now=NOW + 2 * HOUR)) == ["t.0"]


async def test_a_task_with_a_time_of_its_own_is_forgotten_in_time(broker: Store, c: Client) -> None:
    await ended(c, "q", "usual")
    (lease,) = await c.run(submit("short", queue="q"), queues=["q"])
    await c.settle(completed(lease, keep=10.0))
    assert await tidied(broker, NOW + 9) == {"q": 2}
    assert await tidied(broker, NOW + 10) == {"q": 1}
    assert await tidied(broker, NOW + HOUR) == {"q": 0}


async def test_the_dead_of_a_queue_are_forgotten_when_their_week_is_over(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t", queue="q"), queues=["q"])
    await c.settle(dead(lease))
    assert await tidied(broker, NOW + 7 * 24 * HOUR - 1) == {"q": 1}
    assert await tidied(broker, NOW + 7 * 24 * HOUR) == {"q": 0}


async def test_tidy_goes_through_many_queues_in_steps(broker: Store, c: Client) -> None:
    for n in range(120):
        await ended(c, f"q.{n}", f"t.{n}")
    first = await broker.tidy(now=NOW + HOUR)
    assert (first.count, first.more) == (MAX_STEP, True)
    assert set((await tidied(broker, NOW + HOUR)).values()) == {0}
    assert await tidied(broker, NOW + 2 * HOUR) == {}


# -- when they are told to --------------------------------------------------------------------


async def test_a_deleted_queue_is_gone_with_its_settings_and_what_it_kept(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="q", max_waiting=1, keep_completed_count=1000))
    for n in range(MAX_STEP + 20):
        await ended(c, "q", f"t.{n}")
    first = await broker.delete_queue(c.call(), "q", now=NOW)
    assert (first.count, first.more, first.refused) == (MAX_STEP, True, False)
    second = await broker.delete_queue(c.call(), "q", now=NOW)
    assert (second.count, second.more, second.refused) == (20, False, False)
    assert await queues(broker) == []
    assert await states(broker, "t.0", "t.69") == [None, None]
    await c.enqueue(submit("a", queue="q"), submit("b", queue="q"))
    assert await states(broker, "a", "b") == [State.QUEUED] * 2, "max_waiting is not 1 any more"


async def test_what_was_dead_in_a_deleted_queue_leaves_events(broker: Store, c: Client) -> None:
    await ended(c, "q", "done")
    leases = await c.run(submit("d1", queue="q"), submit("d2", "b", queue="q"), queues=["q"])
    await c.settle(*map(dead, leases))
    assert (await broker.delete_queue(c.call(), "q", now=NOW)).count == 3
    told = await events(broker, "deleted")
    assert [(each.task, each.tenant, each.queue, each.state) for each in told] == [
        ("d1", "a", "q", "dead"),
        ("d2", "b", "q", "dead"),
    ]


async def test_a_queue_with_tasks_that_wait_or_run_is_not_deleted(broker: Store, c: Client) -> None:
    await ended(c, "q", "done")
    await c.enqueue(submit("runs", queue="q"), submit("waits", queue="q"))
    await c.enqueue(submit("sleeps", queue="q", delay=60))
    (lease,) = await c.fetch(1, ["q"])
    answer = await broker.delete_queue(c.call(), "q", now=NOW)
    assert (answer.refused, answer.waiting, answer.running, answer.count) == (True, 2, 1, 0)
    assert await states(broker, "done") == [State.COMPLETED]
    assert await c.settle(completed(lease)) == ["applied"]
    await c.purge("q")
    assert not (await broker.delete_queue(c.call(), "q", now=NOW)).refused
    assert await queues(broker) == []


async def test_a_queue_whose_results_will_be_read_is_not_deleted(broker: Store, c: Client) -> None:
    await ended(c, "q", "parent")
    await c.enqueue(submit("child", queue="other", after=["parent"], uses=True))
    answer = await broker.delete_queue(c.call(), "q", now=NOW)
    assert (answer.refused, answer.pinned) == (True, 1)
    await complete_all(c, ["other"])
    await drain(broker)
    assert not (await broker.delete_queue(c.call(), "q", now=NOW)).refused


async def test_deleting_a_queue_that_nobody_knows_does_nothing(broker: Store, c: Client) -> None:
    answer = await broker.delete_queue(c.call(), "nowhere", now=NOW)
    assert (answer.count, answer.more, answer.refused) == (0, False, False)


async def test_a_repeated_delete_of_a_queue_gets_the_same_answer(broker: Store, c: Client) -> None:
    await ended(c, "q", "t")
    first = await broker.delete_queue(c.call(), "q", now=NOW)
    again = await broker.delete_queue(Call("w1", c.number), "q", now=NOW)
    assert again == first
    assert first.count == 1


async def test_what_was_set_for_a_tenant_holds_when_the_queue_comes_back(
    broker: Store, c: Client
) -> None:
    await c.configure(TenantChange(tenant="a", queue="q", paused=True))
    assert not (await broker.delete_queue(c.call(), "q", now=NOW)).refused
    await c.enqueue(submit("t", queue="q"))
    assert await c.fetch(1, ["q"]) == []
