"""Flows until they run: written in parts that nobody sees, committed at once, laid out in steps."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.flows import FLOW_PATIENCE, FlowPart, Share, Staged
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import MAX_STEP, Call, QueueChange
from fairlead.model.errors import FairleadError, InvalidInput, InvalidName, InvalidOption, TooLarge
from fairlead.model.lifecycle import State
from fairlead.model.options import Dependency, Unique
from tests.support.flows import commit, flow_record, make, ordered, parts_of, shares_of, stage
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
    record,
    states,
    submit,
)

# -- before the commit -------------------------------------------------------------------------


async def test_nobody_sees_a_flow_before_its_commit(broker: Store, c: Client) -> None:
    await c.enqueue(submit("other", queue="elsewhere"))
    before = await broker.snapshot(now=NOW)
    seen = (await broker.events()).last
    assert await stage(c, *parts_of("f", submit("a"), submit("b", after=["a"]))) == ["staged"]

    assert await c.fetch(10) == []
    assert await broker.snapshot(now=NOW) == before
    assert await broker.find(["a", "b", "f"], now=NOW) == [None] * 3
    assert [t.message.id for t in (await broker.page(now=NOW)).tasks] == ["other"]
    assert codes(await c.enqueue(submit("x", after=["a"]))) == ["unknown_dependency"]
    assert (await c.purge()).count == 0
    assert (await c.cancel("a")).code == "unknown"
    assert await broker.flows(["f"], now=NOW) == [None]
    assert await broker.members("f", now=NOW) == []
    assert [w.state for w in await broker.watch("w1", ["f", "a"], now=NOW)] == [None, None]
    assert (await broker.events(after=seen)).events == []
    assert await broker.audit(now=NOW) == []


async def test_a_committed_flow_is_there_as_a_whole(broker: Store, c: Client) -> None:
    members = (submit("a"), submit("b", after=["a"]), submit("z", after=["a", "b"]))
    await make(c, "f", *members, name="nightly")

    assert await states(broker, "a", "b", "z") == [State.QUEUED, State.DEFERRED, State.DEFERRED]
    assert (await record(broker, "z")).waiting_for == ("a", "b")
    assert (await record(broker, "a")).waiting_for == ()
    assert (await record(broker, "a")).flow == "f"
    found = await flow_record(broker, "f")
    assert (found.name, found.tenant, found.total, found.laid_out) == ("nightly", "a", 3, 3)
    assert (found.state, found.committed_at, found.finished_at) == (State.RUNNING, NOW, None)
    assert await broker.members("f", now=NOW) == ["a", "b", "z"]
    assert await broker.members("f", start=1, limit=1, now=NOW) == ["b"]
    kinds = [(event.kind, event.task) for event in await events(broker)]
    assert kinds[0] == ("flow_committed", "f")
    assert await complete_all(c) == 3


async def test_a_task_outside_of_a_flow_has_none(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t"))
    assert (await record(broker, "t")).flow == ""


async def test_loans_of_members_are_as_any_other(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a", body=b"work", trace=b"from"))
    (lease,) = await c.fetch(1)
    assert (lease.message.body, lease.message.trace) == (b"work", b"from")
    assert (lease.message.queue, lease.message.tenant, lease.attempt) == ("default", "a", 1)


async def test_parts_are_written_in_order(broker: Store, c: Client) -> None:
    first, second, third = parts_of("f", *(submit(f"t{i}") for i in range(6)), size=2)
    assert await stage(c, first) == ["staged"]
    assert await broker.stage(c.call(), third, now=NOW) == Staged(
        code="incomplete", detail="part 1"
    )
    assert await stage(c, second) == ["unknown"]  # what was written of it is gone

    assert await stage(c, first, second, third) == ["staged"] * 3
    assert await stage(c, second, third) == ["staged"] * 2  # changes nothing
    assert (await commit(c, "f")).code == "committed"
    assert await broker.members("f", now=NOW) == [f"t{i}" for i in range(6)]
    assert await stage(c, second) == ["unknown"]


async def test_the_first_part_begins_anew(broker: Store, c: Client) -> None:
    first, second = parts_of("f", submit("a"), submit("b"), size=1)
    assert await stage(c, first, second) == ["staged", "staged"]
    other = parts_of("f", submit("z"))
    assert await stage(c, *other) == ["staged"]
    assert (await commit(c, "f")).code == "committed"
    assert await broker.members("f", now=NOW) == ["z"]
    assert await states(broker, "a", "z") == [None, State.QUEUED]


async def test_a_flow_is_written_by_one_incarnation(broker: Store, c: Client) -> None:
    first, second = parts_of("f", submit("a"), submit("b"), size=1)
    other = Client(broker, "w2")
    assert await stage(c, first) == ["staged"]
    assert await stage(other, second) == ["unknown"]
    assert (await commit(other, "f")).code == "unknown"
    assert await stage(other, *parts_of("f", submit("z"))) == ["staged"]
    assert await stage(c, second) == ["unknown"]  # it is the flow of the other one by now
    assert (await commit(other, "f")).code == "committed"
    assert await states(broker, "a", "z") == [None, State.QUEUED]


async def test_a_repeated_call_gets_the_same_answer_and_changes_nothing(
    broker: Store, c: Client
) -> None:
    first, second = parts_of("f", *(submit(f"t{i}") for i in range(4)), size=2)
    for part in (first, second):
        call = c.call()
        answer = await broker.stage(call, part, now=NOW)
        assert await broker.stage(call, part, now=NOW) == answer == Staged(code="staged")
    call = c.call()
    answer = await broker.commit(call, "f", now=NOW)
    assert await broker.commit(call, "f", now=NOW) == answer == Staged(code="committed")
    assert await broker.members("f", now=NOW) == ["t0", "t1", "t2", "t3"]
    assert await complete_all(c) == 4
    with pytest.raises(InvalidInput):
        await broker.stage(Call("w1", c.number), first, now=NOW)


async def test_a_commit_is_idempotent(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"))
    assert (await commit(c, "f")).code == "committed"
    assert (await commit(Client(broker, "w2"), "f")).code == "duplicate"
    assert await complete_all(c) == 1
    assert (await commit(c, "f")).code == "committed"
    assert (await commit(c, "ghost")).code == "unknown"
    assert len(await events(broker, "flow_committed")) == 1


async def test_an_id_of_a_flow_that_exists_is_a_duplicate(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"))
    assert await stage(c, *parts_of("f", submit("b"))) == ["duplicate"]
    await complete_all(c)
    assert await stage(c, *parts_of("f", submit("b"))) == ["duplicate"]
    later = NOW + 3600.0
    assert await stage(c, *parts_of("f", submit("b")), now=later) == ["staged"]
    assert (await commit(c, "f", now=later)).code == "committed"
    assert (await flow_record(broker, "f", now=later)).total == 1


async def test_members_that_are_missing_or_too_many_are_noticed(broker: Store, c: Client) -> None:
    first, _ = parts_of("f", submit("a"), submit("b"), size=1)
    assert await stage(c, first) == ["staged"]
    assert await broker.commit(c.call(), "f", now=NOW) == Staged(
        code="incomplete", detail="default"
    )
    assert (await commit(c, "f")).code == "unknown"

    said = msgspec.structs.replace(first, members=(submit("a"), submit("b"), submit("z")))
    assert await stage(c, said) == ["incomplete"]
    said = msgspec.structs.replace(first, members=(submit("a", "other"),))
    assert await stage(c, said) == ["incomplete"]
    assert codes(await c.enqueue(submit("a"))) == ["accepted"]


async def test_a_member_that_is_a_task_already_refuses_the_flow(broker: Store, c: Client) -> None:
    await c.enqueue(submit("b"))
    first, second = parts_of("f", submit("a"), submit("b"), size=1)
    assert await stage(c, first) == ["staged"]
    assert await broker.stage(c.call(), second, now=NOW) == Staged(code="known", detail="b")
    assert (await commit(c, "f")).code == "unknown"
    twice = parts_of("g", submit("a"), submit("a"), size=1)
    assert await stage(c, *twice) == ["staged", "known"]


async def test_unknown_dependencies(broker: Store, c: Client) -> None:
    members = (submit("a"), submit("b", after=["a", "ghost"]))
    (part,) = parts_of("f", *members)
    assert await broker.stage(c.call(), part, now=NOW) == Staged(
        code="unknown_dependency", detail="ghost"
    )
    handle = Dependency("ghost", known=True)
    await make(c, "f", submit("a"), submit("b", after=["a", handle]))
    assert (await record(broker, "b")).waiting_for == ("a",)


async def test_a_dependency_may_be_a_member_of_an_earlier_part(broker: Store, c: Client) -> None:
    await make(
        c, "f", *(submit(f"t{i}", after=[f"t{i - 1}"] if i else []) for i in range(5)), size=1
    )
    assert await states(broker, "t0", "t1") == [State.QUEUED, State.DEFERRED]
    assert await complete_all(c) == 5


async def test_what_breaks_the_rules_raises(broker: Store, c: Client) -> None:
    (good,) = parts_of("f", submit("a"))
    bad: list[tuple[FlowPart, type[FairleadError]]] = [
        (msgspec.structs.replace(good, flow="no id"), InvalidName),
        (msgspec.structs.replace(good, flow="other:f"), InvalidName),
        (msgspec.structs.replace(good, tenant="\n"), InvalidName),
        (msgspec.structs.replace(good, name="\n"), InvalidName),
        (msgspec.structs.replace(good, number=-1), InvalidOption),
        (msgspec.structs.replace(good, number=1), InvalidOption),
        (msgspec.structs.replace(good, shares=()), InvalidOption),
        (msgspec.structs.replace(good, shares=(Share("default", "a", 0),)), InvalidOption),
        (msgspec.structs.replace(good, shares=good.shares * 2), InvalidOption),
        (msgspec.structs.replace(good, shares=(Share("q", "a", 200_001),)), TooLarge),
        (
            msgspec.structs.replace(good, shares=tuple(Share("q", f"t{i}", 1) for i in range(201))),
            TooLarge,
        ),
        (msgspec.structs.replace(good, members=(submit("a"), submit("a"))), InvalidInput),
        (
            msgspec.structs.replace(good, members=(submit("a", after=["b"]), submit("b"))),
            InvalidInput,
        ),
        (msgspec.structs.replace(good, members=(submit("a", after=["a"]),)), InvalidInput),
        (
            msgspec.structs.replace(good, members=(submit("a", unique=Unique(key="k")),)),
            InvalidInput,
        ),
        (
            msgspec.structs.replace(good, members=tuple(submit(f"t{i}") for i in range(501))),
            TooLarge,
        ),
    ]
    parents = [f"p{i}" for i in range(1000)]
    heavy = tuple(submit(f"t{i}", after=parents) for i in range(11))
    bad.append((msgspec.structs.replace(good, members=heavy), TooLarge))
    for part, error in bad:
        with pytest.raises(error):
            await broker.stage(c.call(), part, now=NOW)
    with pytest.raises(InvalidOption):
        await broker.members("f", start=-1)
    with pytest.raises(InvalidOption):
        await broker.members("f", limit=501)
    scoped = msgspec.structs.replace(good, flow="a:f")
    assert await stage(c, scoped) == ["staged"]


# -- room --------------------------------------------------------------------------------------


async def test_the_first_part_asks_for_room_for_all_of_the_flow(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="small", max_waiting=4, max_tenant_waiting=3))
    await c.enqueue(submit("there", "b", "small"))

    many = [submit(f"t{i}", f"t{i}", "small") for i in range(4)]
    assert await broker.stage(c.call(), parts_of("f", *many, size=1)[0], now=NOW) == Staged(
        code="queue_full", limit=4, detail="small"
    )
    many = [submit(f"t{i}", "b", "small") for i in range(3)]
    assert await broker.stage(c.call(), parts_of("f", *many, size=1)[0], now=NOW) == Staged(
        code="tenant_full", limit=3, detail="small"
    )
    assert await broker.flows(["f"], now=NOW) == [None]
    await make(c, "f", *(submit(f"t{i}", "a", "small") for i in range(3)))
    assert (await broker.snapshot(now=NOW)).queues["small"].depth == 4


async def test_others_cannot_take_the_room_of_a_flow(broker: Store, c: Client) -> None:
    await c.configure(QueueChange(queue="small", max_waiting=4, max_tenant_waiting=3))
    first, second = parts_of("f", *(submit(f"t{i}", "a", "small") for i in range(3)), size=2)
    assert await stage(c, first) == ["staged"]

    assert codes(await c.enqueue(submit("x", "a", "small"))) == ["tenant_full"]
    receipts = await c.enqueue(submit("y", "b", "small"), submit("z", "b", "small"))
    assert codes(receipts) == ["accepted", "queue_full"]
    assert await stage(c, *parts_of("g", submit("g1", "b", "small"))) == ["queue_full"]
    assert await stage(c, second) == ["staged"]
    assert (await commit(c, "f")).code == "committed"
    assert (await broker.snapshot(now=NOW)).queues["small"].depth == 4
    assert len(await c.fetch(1, ["small"])) == 1
    assert codes(await c.enqueue(submit("again", "c", "small"))) == ["accepted"]


@pytest.mark.parametrize("how", ["refused", "anew", "late", "cancelled"])
async def test_room_that_is_not_needed_is_given_back(broker: Store, c: Client, how: str) -> None:
    await c.configure(QueueChange(queue="small", max_waiting=2))
    first, second = parts_of("f", submit("a", queue="small"), submit("b", queue="small"), size=1)
    assert await stage(c, first) == ["staged"]
    assert codes(await c.enqueue(submit("x", queue="small"))) == ["queue_full"]
    now = NOW
    if how == "refused":
        assert await stage(c, msgspec.structs.replace(second, number=7)) == ["incomplete"]
    elif how == "anew":
        assert await stage(c, *parts_of("f", submit("z"))) == ["staged"]
    elif how == "cancelled":
        assert await ordered(c, "f", "cancel") == (1, False)
        assert (await commit(c, "f")).code == "unknown"
    else:
        now = NOW + FLOW_PATIENCE
        assert (await broker.tidy(now=now - 0.001)).count == 0
        assert (await broker.tidy(now=now)).count == 1
        assert (await commit(c, "f", now=now)).code == "unknown"
    accepted = await c.enqueue(submit("x", queue="small"), submit("y", queue="small"), now=now)
    assert codes(accepted) == ["accepted", "accepted"]


async def test_a_flow_is_waited_for_ten_minutes_from_its_last_part(
    broker: Store, c: Client
) -> None:
    first, second = parts_of("f", submit("a"), submit("b"), size=1)
    assert await stage(c, first) == ["staged"]
    assert await stage(c, second, now=NOW + 500) == ["staged"]
    assert (await broker.tidy(now=NOW + 1099)).count == 0
    late = NOW + 500 + FLOW_PATIENCE
    assert await stage(c, second, now=late) == ["unknown"]  # even if nobody tidied
    assert (await commit(c, "f", now=late)).code == "unknown"
    assert await stage(c, first, now=late) == ["staged"]


async def test_a_closed_broker_takes_no_flows_in() -> None:
    store = MemoryBroker(test_clock=True)
    await store.close()
    c = Client(store)
    assert await stage(c, *parts_of("f", submit("a"))) == ["closed"]
    assert (await commit(c, "f")).code == "closed"


# -- laid out in steps -------------------------------------------------------------------------


@pytest.mark.parametrize("many", [MAX_STEP, MAX_STEP + 1, 120])
async def test_nothing_runs_before_all_of_it_is_there(broker: Store, c: Client, many: int) -> None:
    members = [submit(f"t{i:03}") for i in range(many - 1)]
    members.append(submit("last", after=[member.message.id for member in members[-3:]]))
    assert set(await stage(c, *parts_of("f", *members, size=50))) == {"staged"}
    assert (await commit(c, "f")).code == "committed"
    other = Client(broker, "w2")  # goes on where the first one stopped, as if that had died
    while (found := await flow_record(broker, "f")).laid_out < many:
        assert await other.fetch(1) == []
        assert found.state is State.RUNNING
        assert await broker.members("f", now=NOW) == [each.message.id for each in members]
        assert await broker.members("f", start=49, limit=2, now=NOW) == [
            each.message.id for each in members[49:51]
        ]
        reply = await other.exchange()
        assert reply.due_in == 0.0
        moved = await broker.deliver(now=NOW)
        assert moved.count > 0
        assert moved.more == ((await flow_record(broker, "f")).laid_out < many or many > MAX_STEP)
        assert await broker.audit(now=NOW) == []
    await drain(broker)
    leases = await other.fetch(128)
    assert ids(leases) == [f"t{i:03}" for i in range(many - 1)]  # in the order written
    await other.settle(*map(completed, leases))
    assert ids(await other.fetch(5)) == ["last"]


async def test_a_committed_flow_waits_for_nobody_to_ask(broker: Store, c: Client) -> None:
    """The next due time says that there is something to deliver, so a forwarder comes."""
    assert (await c.exchange()).due_in is None
    await stage(c, *parts_of("f", *(submit(f"t{i}") for i in range(60))))
    assert (await c.exchange()).due_in is None
    await commit(c, "f")
    assert (await c.exchange()).due_in == 0.0
    await drain(broker)
    assert (await c.exchange()).due_in is None
    assert (await broker.deliver(now=NOW)).more is False


async def test_whoever_waits_for_work_lays_a_flow_out(broker: Store, c: Client) -> None:
    await stage(c, *parts_of("f", *(submit(f"t{i}") for i in range(170))))
    await commit(c, "f")
    assert await broker.wait(["default"], 20.0)
    assert len(await c.fetch(10)) == 10


async def test_flows_are_laid_out_one_after_the_other(broker: Store, c: Client) -> None:
    for flow in "fg":
        members = [submit(f"{flow}{i}", after=[f"{flow}0"] if i else []) for i in range(100)]
        await stage(c, *parts_of(flow, *members))
        await commit(c, flow)
    f, g = await broker.flows(["f", "g"], now=NOW)
    assert f is not None
    assert g is not None
    assert (f.laid_out, g.laid_out) == (100, 0)
    await drain(broker)
    assert ids(await c.fetch(5)) == ["f0", "g0"]


@pytest.mark.parametrize("policy", ["dead", "run"])
async def test_a_member_that_ends_while_the_rest_is_laid_out_lets_nobody_run(
    broker: Store, c: Client, policy: str
) -> None:
    members = [
        submit("root"),
        submit("child", after=["root"], policy=policy),  # type: ignore[arg-type]
        *(submit(f"t{i}") for i in range(100)),
    ]
    await stage(c, *parts_of("f", *members))
    await commit(c, "f")
    assert (await c.cancel("root")).code == "done"
    assert await c.fetch(5) == []
    await drain(broker)
    ended = State.DEAD if policy == "dead" else State.QUEUED
    assert await states(broker, "root", "child") == [State.CANCELLED, ended]
    assert await complete_all(c) == (100 if policy == "dead" else 101)


async def test_an_id_that_became_that_of_a_task_is_left_out(broker: Store, c: Client) -> None:
    await stage(c, *parts_of("f", submit("a"), submit("b"), submit("z", after=["b"])))
    await c.enqueue(submit("b", body=b"other"))
    await commit(c, "f")
    found = await flow_record(broker, "f")
    assert (found.total, found.laid_out, found.cancelled) == (3, 3, 1)
    assert (await record(broker, "b")).flow == ""
    assert (await record(broker, "z")).waiting_for == ("b",)
    assert await complete_all(c) == 3
    assert (await flow_record(broker, "f")).state is State.CANCELLED


async def test_a_member_is_known_to_enqueue_as_any_task(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"))
    receipts = await c.enqueue(submit("a"), submit("a", body=b"other"))
    assert codes(receipts) == ["duplicate", "conflict"]


async def test_delays_and_deadlines_count_from_when_a_member_becomes_a_task(
    broker: Store, c: Client
) -> None:
    await make(c, "f", submit("later", delay=30), submit("soon", deadline=10), now=NOW + 5)
    now = NOW + 5
    assert await states(broker, "later", "soon", now=now) == [State.SCHEDULED, State.QUEUED]
    assert (await record(broker, "later", now=now)).due_at == now + 30
    assert (await record(broker, "soon", now=now)).deadline_at == now + 10


# -- dependencies of members -------------------------------------------------------------------


async def _outside(c: Client) -> None:
    """Tasks of every kind that a member may depend on."""
    leases = {
        lease.message.id: lease
        for lease in await c.run(*map(submit, ("done", "failed", "gone", "busy")))
    }
    await c.enqueue(submit("off"), submit("late", deadline=1.0), submit("queued", queue="other"))
    await c.cancel("off")
    await c.settle(
        completed(leases["done"]),
        dead(leases["failed"]),
        completed(leases["gone"], keep=0.0),
    )
    await c.broker.promote(now=NOW + 2)  # 'late' is dead
    assert await states(c.broker, "late", "gone", now=NOW + 2) == [State.DEAD, None]


@pytest.mark.parametrize("policy", ["dead", "cancel", "wait", "run"])
@pytest.mark.parametrize(
    ("parent", "state"),
    [
        ("done", State.COMPLETED),
        ("failed", State.DEAD),
        ("off", State.CANCELLED),
        ("late", State.DEAD),
        ("gone", None),
        ("queued", State.QUEUED),
        ("busy", State.RUNNING),
    ],
)
async def test_members_depend_on_tasks_outside_as_any_task_does(
    broker: Store, c: Client, parent: str, state: State | None, policy: str
) -> None:
    await _outside(c)
    now = NOW + 2
    dependency = Dependency(parent, known=True)
    await c.enqueue(submit("plain", after=[dependency], policy=policy), now=now)  # type: ignore[arg-type]
    member = submit("m", after=[dependency], policy=policy)  # type: ignore[arg-type]
    await make(c, "f", member, submit("next", after=["m"]), now=now)
    plain, mine = await record(broker, "plain", now=now), await record(broker, "m", now=now)
    assert (mine.state, mine.reason, mine.waiting_for) == (
        plain.state,
        plain.reason,
        plain.waiting_for,
    )


async def test_a_task_may_depend_on_a_member(broker: Store, c: Client) -> None:
    await make(c, "f", submit("a"), submit("b", after=["a"]))
    assert codes(await c.enqueue(submit("x", after=["b"]))) == ["accepted"]
    assert await complete_all(c) == 3


async def test_a_fan_in_of_a_thousand_runs_once(broker: Store, c: Client) -> None:
    leaves = [f"t{i}" for i in range(1000)]
    await make(c, "f", *map(submit, leaves), submit("all", after=leaves))
    assert len((await record(broker, "all")).waiting_for) == 1000
    assert await broker.audit(now=NOW) == []
    ran: list[str] = []
    while leases := await c.fetch(128):
        ran += ids(leases)
        assert set(await c.settle(*map(completed, leases))) == {"applied"}
        await drain(broker)
    assert len(ran) == len(set(ran)) == 1001
    assert ran[-1] == "all"
    assert (await flow_record(broker, "f")).completed == 1001


@pytest.mark.parametrize("how", ["cancel", "parent", "purge"])
async def test_the_end_of_a_task_that_waits_for_many_is_told_in_steps(
    broker: Store, c: Client, how: str
) -> None:
    leaves = [f"t{i}" for i in range(400)]
    members = [*(submit(id, delay=60) for id in leaves), submit("all", queue="wide", after=leaves)]
    await make(c, "f", *members)
    if how == "cancel":
        await c.cancel("all")
    elif how == "parent":
        await c.cancel("t399")
    else:
        await c.purge("wide")
    ended = State.DEAD if how == "parent" else State.CANCELLED
    assert await states(broker, "all") == [ended]
    assert await broker.audit(now=NOW) == []
    await drain(broker)
    found = await broker.find(leaves, now=NOW)
    assert {one.dependents for one in found if one is not None} == {0}
    assert shares_of(members)[1] == Share("wide", "a", 1)
