"""What becomes of flows that are committed: how they end, and orders about them as a whole."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.flows import FlowOrder
from fairlead.broker.requests import Call, Moved, QueueChange, Submission
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import DependencyPolicy, State
from tests.support.flows import alter_flow, commit, flow_record, make, ordered, parts_of, stage
from tests.support.store import (
    NOW,
    Client,
    cancelled,
    completed,
    dead,
    drain,
    events,
    failed,
    ids,
    record,
    states,
    submit,
)

HOUR, WEEK = 3600.0, 604_800.0


def diamond(policy: DependencyPolicy = "dead") -> list[Submission]:
    return [
        submit("root"),
        submit("left", after=["root"], policy=policy),
        submit("right", after=["root"], policy=policy),
        submit("end", after=["left", "right"], policy=policy),
    ]


async def run(c: Client, *fail: str, now: float = NOW) -> list[str]:
    """Run everything that is ready; the tasks named end dead."""
    ran: list[str] = []
    while leases := await c.fetch(128, now=now):
        ends = [dead(each) if each.message.id in fail else completed(each) for each in leases]
        assert set(await c.settle(*ends, now=now)) == {"applied"}
        ran += ids(leases)
    return ran


# -- how flows end -----------------------------------------------------------------------------


async def test_a_flow_is_completed_when_all_its_members_are(broker: Store, c: Client) -> None:
    await make(c, "f", *diamond())
    (lease,) = await c.fetch(5)
    await c.settle(completed(lease), now=NOW + 1)
    found = await flow_record(broker, "f", now=NOW + 1)
    assert (found.state, found.completed, found.finished_at) == (State.RUNNING, 1, None)

    await run(c, now=NOW + 2)
    found = await flow_record(broker, "f", now=NOW + 2)
    assert (found.state, found.completed, found.dead, found.cancelled) == (State.COMPLETED, 4, 0, 0)
    assert (found.committed_at, found.finished_at) == (NOW, NOW + 2)
    (event,) = await events(broker, "flow_completed")
    assert (event.task, event.tenant, event.state, event.queue) == ("f", "a", "completed", "")
    assert (await events(broker))[-1] == event  # after the event of its last member


async def test_a_flow_is_dead_if_any_member_is(broker: Store, c: Client) -> None:
    members = [submit("root"), submit("off"), submit("child", after=["root"]), submit("fine")]
    await make(c, "f", *members)
    await c.cancel("off")
    assert await run(c, "root") == ["root", "fine"]
    found = await flow_record(broker, "f")
    assert (found.state, found.completed, found.dead, found.cancelled) == (State.DEAD, 1, 2, 1)
    assert [event.task for event in await events(broker, "flow_dead")] == ["f"]


async def test_a_flow_is_cancelled_if_members_are_and_none_is_dead(
    broker: Store, c: Client
) -> None:
    await make(c, "f", submit("a"), submit("b", after=["a"], policy="cancel"), submit("x"))
    await c.cancel("a")
    assert await run(c) == ["x"]
    found = await flow_record(broker, "f")
    assert (found.state, found.completed, found.cancelled) == (State.CANCELLED, 1, 2)
    assert [event.task for event in await events(broker, "flow_cancelled")] == ["f"]


async def test_ends_of_every_kind_are_counted(broker: Store, c: Client) -> None:
    members = [
        *map(submit, ("plain", "result", "retried", "crashes", "stops")),
        submit("late", queue="other", deadline=5),
        submit("purged", queue="purged"),
    ]
    await make(c, "f", *members)
    leases = {lease.message.id: lease for lease in await c.fetch(10)}
    await c.settle(
        completed(leases["plain"]),
        completed(leases["result"], b"result"),
        failed(leases["retried"], 1.0),
    )
    await c.cancel("stops")
    await c.settle(cancelled(leases["stops"]))
    assert (await c.purge("purged")).count == 1
    await broker.promote(now=NOW + 6)
    w2 = Client(broker, "w2")
    await broker.give_back("w1", now=NOW + 6)
    for _ in range(2):
        (*_, lease) = [x for x in await w2.fetch(5, now=NOW + 6) if x.message.id == "crashes"]
        await broker.give_back("w2", ["crashes"], now=NOW + 6)
    found = await flow_record(broker, "f", now=NOW + 6)
    assert (found.completed, found.dead, found.cancelled) == (2, 2, 2)
    (lease,) = await w2.fetch(5, now=NOW + 6)
    assert lease.message.id == "retried"
    await w2.settle(completed(lease, keep=0.0), now=NOW + 6)
    found = await flow_record(broker, "f", now=NOW + 6)
    assert (found.state, found.completed) == (State.DEAD, 3)


async def test_members_that_are_deleted_or_forgotten_count_as_what_they_were(
    broker: Store, c: Client
) -> None:
    await make(c, "f", submit("a"), submit("b"), submit("z", after=["a", "b"], delay=7000))
    assert (await run(c)) == ["a", "b"]
    await c.delete("a")
    now = NOW + HOUR
    await broker.tidy(now=now)
    assert await states(broker, "a", "b", now=now) == [None, None]
    found = await flow_record(broker, "f", now=now)
    assert (found.completed, found.state) == (2, State.RUNNING)
    assert await run(c, now=NOW + 7000) == ["z"]
    assert (await flow_record(broker, "f", now=NOW + 7000)).state is State.COMPLETED


@pytest.mark.parametrize(("end", "keep"), [("completed", HOUR), ("dead", WEEK)])
async def test_finished_flows_are_kept_as_long_as_such_tasks(
    broker: Store, c: Client, end: str, keep: float
) -> None:
    await make(c, "f", submit("a"), submit("b"))
    await run(c, *(["a"] if end == "dead" else []))
    assert (await flow_record(broker, "f", now=NOW + keep - 1)).state == end
    assert await broker.flows(["f"], now=NOW + keep) == [None]
    assert await broker.members("f", now=NOW + keep) == []
    assert await alter_flow(c, "f", "retry", now=NOW + keep) is None
    assert [w.state for w in await broker.watch("w1", ["f"], now=NOW + keep)] == [None]
    assert (await broker.tidy(now=NOW + keep)).count > 0
    assert await broker.audit(now=NOW + keep) == []


async def test_old_members_do_not_count_for_a_new_flow_of_the_same_id(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead=2 * WEEK))
    await make(c, "f", submit("old"), submit("older", queue="other"))
    assert await run(c, "old") == ["old"]
    await c.cancel("older")
    now = NOW + WEEK
    assert await broker.flows(["f"], now=now) == [None]
    await make(c, "f", submit("new", delay=10), now=now)
    assert (await record(broker, "old", now=now)).flow == "f"

    assert (await c.requeue("old", now=now)).code == "done"
    assert await run(c, now=now) == ["old"]
    found = await flow_record(broker, "f", now=now)
    assert (found.state, found.total, found.completed, found.dead) == (State.RUNNING, 1, 0, 0)
    assert await run(c, now=now + 10) == ["new"]
    assert (await flow_record(broker, "f", now=now + 10)).state is State.COMPLETED


async def test_a_requeue_keeps_a_flow_that_would_have_been_forgotten(
    broker: Store, c: Client
) -> None:
    await make(c, "f", submit("a"))
    assert await run(c, "a") == ["a"]
    now = NOW + WEEK - 1
    await c.requeue("a", now=now)
    assert (await flow_record(broker, "f", now=now + 9)).state is State.RUNNING
    assert await run(c, "a", now=now + 9) == ["a"]
    assert (await flow_record(broker, "f", now=now + WEEK)).state is State.DEAD


# -- being told --------------------------------------------------------------------------------


async def test_the_end_of_a_flow_can_be_watched(broker: Store, c: Client) -> None:
    await make(c, "f", *(submit(f"t{i}") for i in range(3)))
    (watched,) = await broker.watch("client", ["f"], now=NOW)
    assert (watched.id, watched.state) == ("f", State.RUNNING)
    await broker.watch("client", ["f"], now=NOW)  # again: told once
    leases = await c.fetch(5)
    await c.settle(completed(leases[0]), completed(leases[1]))
    assert await broker.collect("client", 0, 0.0) == []
    await c.settle(dead(leases[2]))
    (letter,) = await broker.collect("client", 0, 0.0)
    assert (letter.kind, letter.id, letter.state) == ("finished", "f", State.DEAD)
    assert [w.state for w in await broker.watch("client", ["f"], now=NOW)] == [State.DEAD]


async def test_a_flow_and_a_task_of_one_id_are_told_apart(broker: Store, c: Client) -> None:
    await make(c, "same", submit("member"))
    await c.enqueue(submit("same", queue="other"), submit("child", after=["same"]))
    assert [w.state for w in await broker.watch("client", ["same"], now=NOW)] == [State.QUEUED]
    assert await run(c) == ["member"]
    assert await broker.collect("client", 0, 0.0) == []
    assert (await flow_record(broker, "same")).state is State.COMPLETED
    assert await states(broker, "same", "child") == [State.QUEUED, State.DEFERRED]


# -- one member at a time ----------------------------------------------------------------------


async def test_a_requeued_member_makes_a_finished_flow_run_again(broker: Store, c: Client) -> None:
    await make(c, "f", *diamond())
    assert await run(c, "left") == ["root", "left", "right"]
    assert (await flow_record(broker, "f")).state is State.DEAD
    await broker.watch("client", ["f"], now=NOW)

    assert (await c.requeue("left")).code == "done"
    found = await flow_record(broker, "f")
    assert (found.state, found.dead, found.finished_at) == (State.RUNNING, 1, None)
    assert await run(c) == ["left"]  # 'end' stays dead
    found = await flow_record(broker, "f")
    assert (found.state, found.completed, found.dead) == (State.DEAD, 3, 1)
    assert len(await events(broker, "flow_dead")) == 2


async def test_a_requeued_parent_lets_those_go_on_that_waited(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"), submit("b", after=["a"], policy="wait"))
    assert await run(c, "a") == ["a"]
    assert (await flow_record(broker, "f")).state is State.RUNNING
    await c.requeue("a")
    assert await run(c) == ["a", "b"]
    assert (await flow_record(broker, "f")).state is State.COMPLETED


# -- cancel ------------------------------------------------------------------------------------


async def test_a_flow_is_cancelled_from_its_last_member_to_its_first(
    broker: Store, c: Client
) -> None:
    await make(c, "f", *diamond())
    assert await ordered(c, "f", "cancel") == (4, False)
    assert [(e.task, e.reason) for e in await events(broker, "cancelled")] == [
        ("end", ""),
        ("right", ""),
        ("left", ""),
        ("root", ""),
    ]
    found = await flow_record(broker, "f")
    assert (found.state, found.cancelled) == (State.CANCELLED, 4)
    assert (await ordered(c, "f", "cancel"))[0] == 0
    assert await run(c) == []


async def test_what_runs_is_asked_to_stop(broker: Store, c: Client) -> None:
    await make(c, "f", *diamond())
    (root,) = await c.fetch(5)
    assert (await ordered(c, "f", "cancel"))[0] == 4
    assert (await record(broker, "root")).cancelling
    (letter,) = await broker.collect("w1", 0, 0.0)
    assert (letter.kind, letter.id) == ("cancel", "root")
    assert (await flow_record(broker, "f")).state is State.RUNNING
    await c.settle(completed(root))
    found = await flow_record(broker, "f")
    assert (found.state, found.completed, found.cancelled) == (State.CANCELLED, 1, 3)


async def test_a_flow_that_is_partly_finished_is_cancelled_for_the_rest(
    broker: Store, c: Client
) -> None:
    await make(c, "f", *diamond())
    (root,) = await c.fetch(1)
    await c.settle(completed(root))
    await alter_flow(c, "f", "cancel")
    expected = [State.COMPLETED, State.CANCELLED, State.CANCELLED, State.CANCELLED]
    assert await states(broker, "root", "left", "right", "end") == expected


@pytest.mark.parametrize("steps", [0, 1, 9])
async def test_a_large_flow_is_cancelled_in_steps(broker: Store, c: Client, steps: int) -> None:
    members = [submit(f"t{i}", after=[f"t{i - 1}"] if i else []) for i in range(130)]
    await stage(c, *parts_of("f", *members))
    await commit(c, "f")
    for _ in range(steps):
        await broker.deliver(now=NOW)
    count, more = await ordered(c, "f", "cancel")
    assert more
    assert count <= 50
    assert await ordered(c, "f", "cancel") == (0, True)  # changes nothing
    assert await broker.audit(now=NOW) == []
    if steps < 9:
        assert await c.fetch(5) == []
    await drain(broker)
    found = await flow_record(broker, "f")
    assert (found.state, found.laid_out, found.cancelled) == (State.CANCELLED, 130, 130)
    assert {e.reason for e in await events(broker, "cancelled")} == {""}
    assert await run(c) == []


async def test_orders_name_a_flow_and_perhaps_its_tenant(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"))
    assert await alter_flow(c, "ghost", "cancel") is None
    assert await alter_flow(c, "f", "cancel", tenant="other") is None
    assert await alter_flow(c, "f", "retry", tenant="other") is None
    assert await states(broker, "a") == [State.QUEUED]
    assert await alter_flow(c, "f", "cancel", tenant="a") == Moved(now=NOW, count=1)
    with pytest.raises(InvalidOption):
        await alter_flow(c, "f", "stop")  # type: ignore[arg-type]


async def test_an_order_whose_reply_was_lost_is_carried_out_once(broker: Store, c: Client) -> None:
    await make(c, "f", *(submit(f"t{i}") for i in range(70)))
    moved = await alter_flow(c, "f", "cancel")
    order = FlowOrder(flow="f", action="cancel")
    assert moved == Moved(now=NOW, count=50, more=True)
    assert await broker.alter_flow(Call("w1", c.number), order, now=NOW) == moved
    assert (await flow_record(broker, "f")).cancelled == 50
    await drain(broker)


# -- retry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["dead", "cancel", "wait", "run"])
async def test_a_retry_puts_the_failed_part_back_to_work(
    broker: Store, c: Client, policy: DependencyPolicy
) -> None:
    await make(c, "f", *diamond(policy))
    ran = await run(c, "left")
    assert ran == ["root", "left", "right", *(["end"] if policy == "run" else [])]
    fates = {
        "dead": State.DEAD,
        "cancel": State.CANCELLED,
        "wait": State.DEFERRED,
        "run": State.COMPLETED,
    }
    assert await states(broker, "left", "end") == [State.DEAD, fates[policy]]

    count, _ = await ordered(c, "f", "retry")
    assert count == (2 if policy in ("dead", "cancel") else 1)
    left = await record(broker, "left")
    assert (left.state, left.generation, left.attempts, left.reason) == (State.QUEUED, 1, 0, "")
    assert (await flow_record(broker, "f")).state is State.RUNNING
    if policy != "run":
        assert (await record(broker, "end")).waiting_for == ("left",)
    assert await run(c) == ["left", *([] if policy == "run" else ["end"])]
    found = await flow_record(broker, "f")
    assert (found.state, found.completed) == (State.COMPLETED, 4)
    assert (await ordered(c, "f", "retry"))[0] == 0


async def test_a_retried_task_has_its_body(broker: Store, c: Client) -> None:
    members = [submit("a"), submit("b", after=["a"], policy="cancel", body=b"work")]
    await make(c, "f", *members)
    await run(c, "a")
    assert (await record(broker, "b")).message.body == b"work"
    await alter_flow(c, "f", "retry")
    (a,) = await c.fetch(5)
    await c.settle(completed(a))
    (b,) = await c.fetch(5)
    assert (b.message.body, b.generation, b.attempt) == (b"work", 1, 1)
    await c.settle(completed(b))


async def test_what_an_order_cancelled_stays_cancelled(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"), submit("b", after=["a"]), submit("x"), submit("y", after=["x"]))
    await c.cancel("a")
    assert await run(c, "x") == ["x"]
    assert (await ordered(c, "f", "retry"))[0] == 2
    assert await states(broker, "a", "b", "x", "y") == [
        State.CANCELLED,
        State.DEAD,  # it would fail at once
        State.QUEUED,
        State.DEFERRED,
    ]
    assert (await record(broker, "b")).generation == 0
    assert await run(c) == ["x", "y"]


async def test_an_expired_member_is_retried_without_its_deadline(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a", deadline=5), submit("b", after=["a"], delay=60))
    await broker.promote(now=NOW + 6)
    assert await states(broker, "a", "b", now=NOW + 6) == [State.DEAD, State.DEAD]
    await alter_flow(c, "f", "retry", now=NOW + 6)
    found = await record(broker, "a", now=NOW + 6)
    assert (found.state, found.deadline_at) == (State.QUEUED, None)
    assert await run(c, now=NOW + 7) == ["a", "b"]


async def test_a_dependency_outside_of_the_flow_is_waited_for_again(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("outside"))
    await make(c, "f", submit("a", after=["outside"]), submit("b", after=["a"]))
    await c.settle(dead(lease))
    await drain(broker)
    assert await states(broker, "a", "b") == [State.DEAD, State.DEAD]
    assert (await ordered(c, "f", "retry"))[0] == 0  # it would fail at once
    await c.requeue("outside")
    assert (await ordered(c, "f", "retry"))[0] == 2
    assert (await record(broker, "a")).waiting_for == ("outside",)
    assert await run(c) == ["outside", "a", "b"]


async def test_a_large_flow_is_retried_in_steps_and_none_runs_before_all_were_seen_to(
    broker: Store, c: Client
) -> None:
    leaves = [f"t{i:03}" for i in range(120)]
    members = [submit("root"), *(submit(id, after=["root"]) for id in leaves)]
    members.append(submit("all", after=leaves))
    await make(c, "f", *members)
    assert await run(c, "root") == ["root"]
    await drain(broker)
    assert (await flow_record(broker, "f")).dead == 122

    count, more = await ordered(c, "f", "retry")
    assert more
    assert count <= 50
    assert await c.fetch(5) == []
    assert await broker.audit(now=NOW) == []
    assert await ordered(c, "f", "retry") == (0, True)
    await drain(broker)
    assert (await flow_record(broker, "f")).dead == 0
    assert len((await record(broker, "all")).waiting_for) == 120
    ran: list[str] = []
    while some := await run(c):
        ran += some
        await drain(broker)
    assert ran == ["root", *leaves, "all"]
    assert (await flow_record(broker, "f")).state is State.COMPLETED


async def test_a_retry_and_a_cancel_come_one_after_the_other(broker: Store, c: Client) -> None:
    leaves = [f"t{i:03}" for i in range(120)]
    await make(c, "f", submit("root"), *(submit(id, after=["root"]) for id in leaves))
    assert await run(c, "root") == ["root"]
    await drain(broker)
    await alter_flow(c, "f", "retry")
    assert await ordered(c, "f", "cancel") == (0, True)
    await drain(broker)
    found = await flow_record(broker, "f")
    assert (found.state, found.cancelled, found.dead) == (State.CANCELLED, 121, 0)
    assert (await ordered(c, "f", "retry"))[0] == 0
