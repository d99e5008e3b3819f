"""Several flows, several writers: none holds up another, none is taken for another."""

from __future__ import annotations

from fairlead.broker import Store
from fairlead.broker.requests import QueueChange
from fairlead.model.lifecycle import State
from tests.support.flows import commit, flow_record, make, parts_of, stage
from tests.support.store import NOW, Client, completed, dead, states, submit

WEEK = 604_800.0


async def test_a_huge_flow_does_not_hold_up_others(broker: Store, c: Client) -> None:
    huge = [submit(f"h{i:04}") for i in range(1000)]
    await stage(c, *parts_of("huge", *huge))
    await stage(c, *parts_of("small", submit("a"), submit("b", after=["a"])))
    assert (await commit(c, "huge")).code == "committed"
    assert (await commit(c, "small")).code == "committed"
    for _ in range(3):
        await broker.deliver(now=NOW)
    assert await states(broker, "a", "b") == [State.QUEUED, State.DEFERRED]
    assert (await flow_record(broker, "huge")).laid_out < 300


async def test_a_commit_of_what_another_wrote_under_the_same_id_is_a_duplicate(
    broker: Store, c: Client
) -> None:
    other = Client(broker, "w2")
    assert await stage(c, *parts_of("f", submit("a"))) == ["staged"]
    assert await stage(other, *parts_of("f", submit("b"))) == ["staged"]  # begins anew
    assert (await commit(other, "f")).code == "committed"
    assert (await commit(c, "f")).code == "duplicate"
    assert (await commit(other, "f")).code == "committed"
    assert await broker.members("f", now=NOW) == ["b"]
    assert await states(broker, "a", "b") == [None, State.QUEUED]


async def test_a_new_flow_ends_together_with_a_member_of_an_old_one_of_its_id(
    broker: Store, c: Client
) -> None:
    await c.configure(QueueChange(queue="default", keep_dead=2 * WEEK))
    await make(c, "f", submit("old"))
    (lease,) = await c.fetch(1)
    await c.settle(dead(lease))
    now = NOW + WEEK
    await broker.tidy(now=now)
    await make(c, "f", submit("new"), now=now)
    await c.requeue("old", now=now)
    new, old = sorted(await c.fetch(2, now=now), key=lambda lease: lease.message.id)
    await c.settle(completed(new, b"long way"), completed(old, b"long way"), now=now)
    found = await flow_record(broker, "f", now=now)
    assert (found.state, found.finished_at) == (State.COMPLETED, now)
