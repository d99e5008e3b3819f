"""What a retry of a flow puts back, and what it leaves as it is."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.requests import QueueChange
from fairlead.model.lifecycle import State
from tests.support.flows import make, ordered
from tests.support.store import NOW, Client, completed, dead, drain, ids, record, states, submit

HOUR, WEEK = 3600.0, 604_800.0


async def run(c: Client, *fail: str, now: float = NOW) -> list[str]:
    """Run everything that is ready; the tasks named end dead."""
    ran: list[str] = []
    while leases := await c.fetch(128, now=now):
        ends = [dead(each) if each.message.id in fail else completed(each) for each in leases]
        assert set(await c.settle(*ends, now=now)) == {"applied"}
        ran += ids(leases)
    return ran


async def tidied(broker: Store, now: float) -> None:
    while (await broker.tidy(now=now)).more:
        pass
    await drain(broker, now=now)


async def test_members_that_ended_for_another_are_kept_as_long_as_the_dead(
    broker: Store, c: Client
) -> None:
    chain = [submit("a"), submit("b", after=["a"], policy="cancel"), submit("c", after=["b"])]
    await make(c, "f", *chain)
    assert await run(c, "a") == ["a"]
    later = NOW + WEEK - 1
    await tidied(broker, later)
    assert await states(broker, "a", "b", "c", now=later) == [
        State.DEAD,
        State.CANCELLED,
        State.DEAD,
    ]
    assert (await ordered(c, "f", "retry", now=later))[0] == 3
    assert await run(c, now=later) == ["a", "b", "c"]


async def test_other_cancelled_tasks_are_kept_as_completed_ones_are(
    broker: Store, c: Client
) -> None:
    await make(c, "f", submit("member", delay=1), submit("x"))
    await c.enqueue(submit("alone", delay=1))
    await c.enqueue(submit("after", after=["alone"], policy="cancel"))
    await c.cancel("member")
    await c.cancel("alone")
    assert (await record(broker, "after")).reason == "dependency_failed: alone"
    await tidied(broker, NOW + HOUR)
    assert await states(broker, "member", "alone", "after", now=NOW + HOUR) == [None] * 3


async def test_a_dependency_that_failed_and_was_forgotten_is_not_taken_for_completed(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("outside"))
    members = [submit("a", after=["outside"]), submit("b", after=["a"]), submit("x")]
    await make(c, "f", *members)
    await c.cancel("outside")
    assert await run(c, "x") == ["x"]
    assert await states(broker, "a", "b") == [State.DEAD, State.DEAD]

    later = NOW + 2 * HOUR
    await tidied(broker, later)
    assert await states(broker, "outside", now=later) == [None]
    assert (await ordered(c, "f", "retry", now=later))[0] == 1
    assert await states(broker, "a", "b", now=later) == [State.DEAD, State.DEAD]
    assert await run(c, now=later) == ["x"]


async def test_a_dependency_that_completed_and_was_forgotten_is_completed(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_completed=60.0))
    await make(c, "f", submit("a"), submit("b", after=["a"]), submit("c", after=["b"]))
    assert await run(c, "b") == ["a", "b"]
    await tidied(broker, NOW + 100)
    assert (await ordered(c, "f", "retry", now=NOW + 100))[0] == 2
    assert await run(c, now=NOW + 100) == ["b", "c"]


async def test_a_retry_comes_after_all_were_told_what_failed(broker: Store, c: Client) -> None:
    leaves = [f"t{i:03}" for i in range(120)]
    await make(c, "f", submit("root"), *(submit(id, after=["root"]) for id in leaves))
    (root,) = await c.fetch(5)
    await c.settle(dead(root))  # and 50 of the others were told
    assert await ordered(c, "f", "retry") == (0, True)
    await drain(broker)
    assert await states(broker, *leaves) == [State.DEFERRED] * 120
    assert await run(c) == ["root", *leaves]


async def test_one_that_waits_for_many_and_expires_while_its_flow_is_retried_waits_for_all(
    broker: Store, c: Client
) -> None:
    many = [f"p{i:03}" for i in range(120)]
    wide = submit("wide", after=["slow", *many], deadline=10)
    await make(c, "f", submit("slow", queue="slow"), *map(submit, many), wide, submit("bad"))
    assert len(await c.fetch(5, ["slow"])) == 1
    (bad,) = [lease for lease in await c.fetch(128) if lease.message.id == "bad"]
    await c.settle(dead(bad))

    later = NOW + 11
    assert await ordered(c, "f", "retry") == (0, True)  # it has seen to 50 of 123
    await broker.deliver(now=NOW)
    assert await states(broker, "wide", now=later) == [State.DEFERRED]
    await broker.wait(["default"], 0.01)  # ends it, and might go on with the flow in one step
    await drain(broker, now=later)
    found = await record(broker, "wide", now=later)
    assert (found.state, len(found.waiting_for)) == (State.DEFERRED, 121)


async def test_one_that_still_waits_waits_again_for_parents_that_were_put_back(
    broker: Store, c: Client
) -> None:
    last = submit("last", after=["a", "b", "c"], policy="run")
    await make(c, "f", submit("a"), submit("b", queue="slow"), submit("c", after=["a"]), last)
    (b,) = await c.fetch(1, ["slow"])
    assert await run(c, "a") == ["a"]
    assert (await record(broker, "last")).waiting_for == ("b",)
    assert await ordered(c, "f", "retry") == (2, False)
    assert set((await record(broker, "last")).waiting_for) == {"a", "b", "c"}
    await c.settle(completed(b))
    assert await states(broker, "last") == [State.DEFERRED]
    assert await run(c) == ["a", "c", "last"]


async def test_none_is_released_before_a_retry_has_seen_to_all(broker: Store, c: Client) -> None:
    rest = [submit(f"t{i:03}", queue="rest") for i in range(60)]
    last = submit("last", after=["a", "b"], policy="run")
    await make(c, "f", submit("a"), submit("b", queue="slow"), *rest, last)
    (b,) = await c.fetch(1, ["slow"])
    assert await run(c, "a") == ["a"]
    assert await ordered(c, "f", "retry") == (1, True)  # it has seen to 50 of 63
    await c.settle(completed(b))
    assert (await record(broker, "last")).state is State.DEFERRED
    await drain(broker)
    assert (await record(broker, "last")).waiting_for == ("a",)
    assert await run(c) == ["a", "last"]


async def test_one_whose_parents_are_all_over_goes_when_a_retry_has_seen_to_all(
    broker: Store, c: Client
) -> None:
    rest = [submit(f"t{i:03}", queue="rest") for i in range(60)]
    await make(c, "f", submit("a"), submit("b"), *rest, submit("last", after=["b"]))
    a, b = await c.fetch(2)
    await c.settle(dead(a))
    assert await ordered(c, "f", "retry") == (1, True)
    await c.settle(completed(b))
    await drain(broker)
    assert await run(c) == ["a", "last"]
    assert await states(broker, "last") == [State.COMPLETED]


async def test_whoever_went_on_without_a_task_does_not_wait_for_it_after_a_requeue(
    broker: Store, c: Client
) -> None:
    await c.enqueue(submit("a"), submit("b"), submit("last", after=["a", "b"], policy="run"))
    a, b = await c.fetch(2)
    await c.settle(dead(a))
    assert (await c.requeue("a")).code == "done"
    assert (await record(broker, "last")).waiting_for == ("b",)
    await c.settle(completed(b))
    assert await states(broker, "a", "last") == [State.QUEUED, State.QUEUED]
