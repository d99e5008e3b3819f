"""A client groups what it enqueues, keeps to the broker's limits and waits with one call."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.broker.requests import MAX_STEP, Alter, LeaseRef, QueueChange, Receipt
from fairlead.client import Client, raise_for
from fairlead.model.errors import (
    Ambiguous,
    Conflict,
    DependencyCycle,
    Fenced,
    QueueFull,
    Refused,
    UnknownDependency,
    Unreachable,
)
from fairlead.model.lifecycle import State
from fairlead.model.options import Dependency, Unique
from tests.client.stores import Counting, finish, submission


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def client(counting: Counting) -> Client:
    return Client(counting.store)


# -- enqueue ----------------------------------------------------------------------------------


async def test_concurrent_submits_share_a_call(client: Client, counting: Counting) -> None:
    receipts = await asyncio.gather(*(client.submit(submission()) for _ in range(300)))
    assert {receipt.code for receipt in receipts} == {"accepted"}
    assert [len(batch) for batch in counting.batches] == [300]


async def test_calls_are_numbered_in_one_line(client: Client, counting: Counting) -> None:
    await asyncio.gather(
        client.submit(submission()), client.submit_many([submission() for _ in range(600)])
    )
    assert sorted(call.number for call in counting.calls) == [1, 2, 3]
    assert {call.incarnation for call in counting.calls} == {client.incarnation}


async def test_no_call_holds_more_than_the_broker_takes(client: Client, counting: Counting) -> None:
    await asyncio.gather(*(client.submit(submission(tenant=f"t{n}")) for n in range(450)))
    await client.submit_many([submission(tenant=f"t{n}") for n in range(450)])
    await client.submit_many([submission() for _ in range(1_100)])
    assert [len(batch) for batch in counting.batches] == [200, 200, 50] * 2 + [500, 500, 100]


async def test_large_bodies_go_in_several_calls(client: Client, counting: Counting) -> None:
    large = [submission(body=bytes(1024 * 1024)) for _ in range(20)]
    await client.submit_many(large)
    await asyncio.gather(*map(client.submit, large))
    assert [len(batch) for batch in counting.batches] == [8, 8, 4] * 2


async def test_a_lost_reply_is_asked_again_and_nothing_is_enqueued_twice(
    client: Client, counting: Counting
) -> None:
    counting.failures = [Ambiguous("the reply was lost")]
    assert (await client.submit(submission())).code == "accepted"
    assert [call.number for call in counting.calls] == [1, 1]
    assert (await client.store.snapshot()).depth == 1


async def test_a_batch_whose_reply_never_came_may_be_enqueued_again(
    client: Client, counting: Counting
) -> None:
    items = [submission() for _ in range(3)]
    counting.late_failures = [Ambiguous("the reply was lost")] * 1000
    with pytest.raises(Ambiguous) as caught:
        await client.submit_many(items, 0.2)
    counting.late_failures.clear()
    assert caught.value.ids == tuple(item.message.id for item in items)
    assert "The same calls may be enqueued again" in caught.value.__notes__[0]
    assert [receipt.code for receipt in await client.submit_many(items)] == ["duplicate"] * 3


async def test_everyone_in_a_failed_call_hears_of_it(client: Client, counting: Counting) -> None:
    counting.failures = [Unreachable("no route")] * 1000
    answers = await asyncio.gather(
        *(client.submit(submission(), 0.2) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(answer, Unreachable) for answer in answers)
    assert (await client.store.snapshot()).depth == 0


@pytest.mark.parametrize("limit", [None, 5.0])
async def test_a_large_batch_has_the_usual_time_for_each_call_unless_it_is_given_one(
    client: Client, counting: Counting, limit: float | None
) -> None:
    await client.submit_many([submission() for _ in range(1200)], limit)
    ends = [call.until for call in counting.calls]
    assert len(ends) == 3
    assert len(set(ends)) == (3 if limit is None else 1)


async def test_receipts_come_in_the_order_given(client: Client) -> None:
    parent, child = submission(), submission()
    first = submission(depends_on=[Dependency(parent.message.id)])
    receipts = await client.submit_many([first, child, parent, child])
    assert [receipt.id for receipt in receipts] == [
        item.message.id for item in [first, child, parent, child]
    ]
    assert [receipt.code for receipt in receipts] == ["accepted"] * 3 + ["duplicate"]
    assert receipts[0].state is State.DEFERRED


async def test_dependencies_may_reach_over_several_calls(client: Client) -> None:
    last = submission()
    fan = [submission(depends_on=[Dependency(last.message.id)]) for _ in range(1_200)]
    receipts = await client.submit_many([*fan, last])
    assert {receipt.state for receipt in receipts[:-1]} == {State.DEFERRED}


async def test_a_cycle_is_refused_before_anything_is_written(
    client: Client, counting: Counting
) -> None:
    one = submission("a:1", depends_on=[Dependency("a:2", known=True)])
    two = submission("a:2", depends_on=[Dependency("a:1", known=True)])
    with pytest.raises(DependencyCycle) as cycle:
        await client.submit_many([submission(), one, two])
    assert set(cycle.value.path) == {"a:1", "a:2"}
    assert counting.batches == []


async def test_a_child_of_a_refused_parent_is_refused_too(client: Client) -> None:
    await client.configure([QueueChange(queue="small", max_waiting=0)])
    parent = submission(queue="small")
    # As a handle an unknown parent would count as completed, and the child would run at once.
    child = submission(depends_on=[Dependency(parent.message.id, known=True)])
    receipts = await client.submit_many([parent, child])
    assert [receipt.code for receipt in receipts] == ["queue_full", "unknown_dependency"]


async def test_a_child_of_a_duplicate_waits_for_the_task_that_stands(client: Client) -> None:
    unique = Unique(key="k")
    holder = submission(unique=unique)
    await client.submit(holder)
    parent = submission(unique=unique)
    child = submission(depends_on=[Dependency(parent.message.id)])
    grandchild = submission(depends_on=[Dependency(child.message.id)])
    receipts = await client.submit_many([grandchild, parent, child])
    assert [receipt.code for receipt in receipts] == ["accepted", "duplicate", "accepted"]
    found = await client.find([child.message.id, grandchild.message.id])
    assert [record and record.waiting_for for record in found] == [
        (holder.message.id,),
        (child.message.id,),
    ]


async def test_nothing_at_all_may_be_enqueued(client: Client, counting: Counting) -> None:
    assert await client.submit_many([]) == []
    assert counting.batches == []


def test_refusals_become_typed_errors() -> None:
    item = submission("acme:1", queue="mail")
    fence = LeaseRef("acme:0", "worker", 77)
    fenced = type(item)(message=item.message, fence=fence)

    def receipt(code: str, limit: int = 0, detail: str = "") -> Receipt:
        return Receipt(id="acme:1", code=code, limit=limit, detail=detail)  # type: ignore[arg-type]

    raise_for(receipt("accepted"), item)
    raise_for(receipt("duplicate"), item)
    with pytest.raises(Conflict, match="acme:1"):
        raise_for(receipt("conflict"), item)
    with pytest.raises(QueueFull) as full:
        raise_for(receipt("queue_full", limit=7), item)
    assert (full.value.queue, full.value.limit, full.value.tenant) == ("mail", 7, None)
    with pytest.raises(QueueFull) as full:
        raise_for(receipt("tenant_full", limit=3), item)
    assert (full.value.queue, full.value.limit, full.value.tenant) == ("mail", 3, "acme")
    with pytest.raises(UnknownDependency) as unknown:
        raise_for(receipt("unknown_dependency", detail="acme:9"), item)
    assert (unknown.value.task, unknown.value.dependency) == ("acme:1", "acme:9")
    with pytest.raises(Fenced) as late:
        raise_for(receipt("fenced"), fenced)
    assert (late.value.id, late.value.token) == ("acme:0", 77)
    with pytest.raises(Refused) as closed:
        raise_for(receipt("closed"), item)
    assert closed.value.cause == "closed"
    with pytest.raises(Refused) as stale:
        raise_for(receipt("stale"), item)
    assert stale.value.cause == "stale"


# -- orders and reads ---------------------------------------------------------------------------


async def test_purge_goes_on_until_nothing_is_left(client: Client) -> None:
    many = 2 * MAX_STEP + MAX_STEP // 2
    await client.submit_many([submission() for _ in range(many)])
    await client.submit_many([submission(tenant="other") for _ in range(3)])
    assert await client.purge("default", "acme") == many
    assert (await client.store.snapshot()).depth == 3
    assert await client.purge("default") == 3


async def test_more_orders_and_reads_than_one_call_takes(client: Client) -> None:
    items = [submission() for _ in range(1_100)]
    await client.submit_many(items)
    ids = [item.message.id for item in items]
    assert [record and record.message.id for record in await client.find(ids)] == ids
    answers = await client.alter([Alter(id=id, action="cancel") for id in ids])
    assert [answer.id for answer in answers] == ids
    assert {answer.code for answer in answers} == {"done"}


# -- waiting --------------------------------------------------------------------------------------


async def test_a_finished_task_is_known_at_once_and_an_unknown_one_too(
    client: Client, counting: Counting
) -> None:
    item = submission()
    await client.submit(item)
    await finish(counting.store)
    assert await client.waiter.wait(item.message.id) is State.COMPLETED
    assert await client.waiter.wait("acme:unknown") is None
    assert counting.collects == 0


async def test_one_collecting_call_serves_all_who_wait(client: Client, counting: Counting) -> None:
    items = [submission() for _ in range(100)]
    await client.submit_many(items)
    waits = [asyncio.create_task(client.waiter.wait(item.message.id)) for item in items * 2]
    await counting.begun.wait()
    assert counting.collecting == 1
    await finish(counting.store, 100)
    assert await asyncio.gather(*waits) == [State.COMPLETED] * 200
    assert counting.collects < 10


async def test_collecting_ends_when_nobody_waits(client: Client, counting: Counting) -> None:
    one, two = submission(), submission()
    await client.submit_many([one, two])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.waiter.wait(one.message.id), 0.01)
    await asyncio.sleep(0)
    assert counting.collecting == 0

    # And it begins anew, without mail getting lost in between.
    wait = asyncio.create_task(client.waiter.wait(two.message.id))
    await counting.begun.wait()
    await finish(counting.store, 2)
    assert await wait is State.COMPLETED
    assert await client.waiter.wait(one.message.id) is State.COMPLETED


async def test_whoever_waits_hears_that_the_client_was_closed(
    client: Client, counting: Counting
) -> None:
    item = submission()
    await client.submit(item)
    wait = asyncio.create_task(client.waiter.wait(item.message.id))
    await counting.begun.wait()
    await client.close()
    with pytest.raises(Refused, match="closed"):
        await wait


async def test_whoever_waits_hears_that_the_broker_was_closed(
    client: Client, counting: Counting
) -> None:
    item = submission()
    await client.submit(item)
    wait = asyncio.create_task(client.waiter.wait(item.message.id))
    await counting.begun.wait()
    await counting.inner.close()
    with pytest.raises(Refused, match="closed"):
        await wait


async def test_a_lost_watch_is_renewed_while_other_mail_keeps_coming(
    client: Client, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.client.waiter._COLLECT", 0.5)
    lost = submission()
    await client.submit(lost)
    wait = asyncio.create_task(client.waiter.wait(lost.message.id))
    await counting.begun.wait()
    counting.drop = lost.message.id
    await finish(counting.store)
    others = 0
    async with asyncio.timeout(10):
        while not wait.done():
            other = submission()
            await client.submit(other)
            told = asyncio.create_task(client.waiter.wait(other.message.id))
            for _ in range(10):  # until it is watched: it is to end by a letter
                await asyncio.sleep(0)
            await finish(counting.store)
            assert await told is State.COMPLETED
            others += 1
    assert await wait is State.COMPLETED
    assert others > 1
