"""A loan goes from one worker to another that can run it: nothing is charged, nothing lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Alter, LeaseRef, LimiterChange, QueueChange
from fairlead.model.errors import TooLarge
from fairlead.model.lifecycle import State
from fairlead.model.message import Leased
from tests.support.store import NOW, Client, completed, events, ids, record, released, submit


async def other(broker: Store, name: str = "w2") -> Client:
    """A worker that has asked for tasks before, in vain."""
    client = Client(broker, name)
    assert await client.fetch(1, queues=("other",)) == []
    return client


async def moved(c: Client, to: str, *leases: Leased, room: int = 10, now: float = NOW) -> list[str]:
    return list(await c.broker.transfer([c.ref(each) for each in leases], to, room=room, now=now))


def as_told(lease: Leased, token: int) -> Leased:
    return msgspec.structs.replace(lease, token=token)


async def test_the_other_has_the_loan_under_a_new_token_and_mail_of_it(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t"))
    w2 = await other(broker)
    assert await moved(c, "w2", lease, now=NOW + 1) == ["moved"]
    (mail,) = await broker.collect("w2", 0, 0.0)
    assert (mail.kind, mail.id) == ("lent", "t")
    assert mail.token > lease.token
    task = await record(broker, "t")
    assert (task.state, task.incarnation, task.token) == (State.RUNNING, "w2", mail.token)
    assert (task.attempts, task.crashes) == (0, 0)

    assert await c.settle(completed(lease)) == ["fenced"]
    assert await w2.settle(completed(as_told(lease, mail.token))) == ["applied"]
    assert (await record(broker, "t")).attempts == 1
    told = [(each.attempt, each.reason) for each in await events(broker, "started")]
    assert told == [(1, "w1"), (1, "w2")]


async def test_what_is_not_the_caller_s_any_more_is_fenced(broker: Store, c: Client) -> None:
    lease, over = await c.run(submit("t"), submit("u"))
    await c.settle(completed(over))
    await other(broker)
    wrong = LeaseRef("t", "w3", lease.token)
    assert await broker.transfer([wrong, c.ref(over)], "w2", room=9, now=NOW) == ["fenced"] * 2
    assert await moved(c, "w2", lease) == ["moved"]
    assert await moved(c, "w2", lease) == ["fenced"]
    assert len(await broker.collect("w2", 0, 0.0)) == 1


async def test_it_takes_no_more_than_there_is_room_for(broker: Store, c: Client) -> None:
    w2 = await other(broker)
    own = await w2.run(submit("own", queue="other"), queues=("other",))
    assert len(own) == 1
    leases = await c.run(*(submit(f"t{n}") for n in range(4)))
    assert await moved(c, "w2", *leases, room=3) == ["moved", "moved", "full", "full"]
    assert (await record(broker, "t2")).incarnation == "w1"
    assert await c.settle(*(released(each) for each in leases[2:])) == ["applied"] * 2


async def test_one_that_never_asked_for_tasks_gets_none(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    assert await moved(c, "nobody", lease) == ["full"]
    assert await c.settle(completed(lease)) == ["applied"]


async def test_a_task_named_twice_moves_once(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await other(broker)
    assert await moved(c, "w2", lease, lease) == ["moved", "full"]


async def test_a_task_that_is_to_be_cancelled_stays(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await other(broker)
    await c.alter(Alter(id="t", action="cancel"))
    assert await moved(c, "w2", lease) == ["full"]
    assert await c.settle(released(lease)) == ["applied"]
    assert (await record(broker, "t")).state is State.CANCELLED


async def test_a_cancel_goes_to_whoever_has_it_now(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await other(broker)
    await moved(c, "w2", lease)
    await c.alter(Alter(id="t", action="cancel"))
    assert [mail.kind for mail in await broker.collect("w2", 0, 0.0)] == ["lent", "cancel"]


async def test_room_in_limits_and_shares_are_as_if_nothing_had_happened(
    broker: Store, c: Client
) -> None:
    await c.configure(
        LimiterChange(name="gpu", concurrency=1), QueueChange(queue="default", concurrency=2)
    )
    await c.enqueue(*(submit(f"t{n}", limiters=("gpu",)) for n in range(2)))
    (lease,) = await c.fetch(2)
    w2 = await other(broker)
    await moved(c, "w2", lease)
    assert await w2.fetch(2) == []  # the limiter is still taken
    (mail,) = await broker.collect("w2", 0, 0.0)
    await w2.settle(completed(as_told(lease, mail.token)))
    assert ids(await w2.fetch(2)) == ["t1"]  # and is returned once


async def test_what_was_held_is_held_still(broker: Store, c: Client) -> None:
    await c.enqueue(submit("t"))
    (lease,) = await c.fetch(1, start=0)
    w2 = await other(broker)
    await moved(c, "w2", lease)
    assert (await record(broker, "t")).started_at is None
    assert await events(broker, "started") == []
    await broker.give_back("w2", now=NOW)
    assert (await record(broker, "t")).crashes == 0
    assert ids(await w2.fetch(1)) == ["t"]


async def test_the_dead_one_s_loans_go_back_wherever_they_came_from(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t"))
    await other(broker)
    await moved(c, "w2", lease)
    assert (await broker.give_back("w1", now=NOW)).count == 0
    assert (await broker.give_back("w2", [], now=NOW)).count == 1
    assert (await record(broker, "t")).state is State.QUEUED


async def test_its_lease_ends_like_any_other(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await other(broker)
    await broker.sweep(now=NOW)
    await moved(c, "w2", lease, now=NOW + 5)
    for second in range(5, 41, 5):
        await broker.beat("w1", now=NOW + second)
        await broker.sweep(now=NOW + second)
    assert (await record(broker, "t", now=NOW + 40)).state is State.QUEUED


async def test_what_it_does_not_name_goes_back_after_its_next_exchange(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t"))
    w2 = await other(broker)
    await moved(c, "w2", lease)
    reply = await broker.beat("w2", answered=w2.number, now=NOW)
    assert reply.unclaimed == 0  # the letter may be on its way
    await w2.fetch(1, queues=("other",))
    assert (await broker.beat("w2", answered=w2.number, now=NOW)).unclaimed == 1
    assert (await record(broker, "t")).state is State.QUEUED


async def test_too_many_at_once_are_refused(broker: Store, c: Client) -> None:
    with pytest.raises(TooLarge):
        await broker.transfer([LeaseRef("t", "w1", 1)] * 129, "w2", room=1, now=NOW)


async def test_a_worker_that_waits_for_work_is_woken_by_its_mail(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await other(broker)
    waiting = asyncio.ensure_future(broker.wait(["default"], 20.0, mail_for="w2"))
    deaf = asyncio.ensure_future(broker.wait(["default"], 20.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await moved(c, "w2", lease)
    assert await asyncio.wait_for(waiting, 10.0) is True
    assert not deaf.done()
    deaf.cancel()
    (mail,) = await broker.collect("w2", 0, 0.0)
    assert await broker.collect("w2", mail.number, 0.0) == []
    assert await broker.wait(["default"], 0.05, mail_for="w2") is False
