"""The verbs of a broker over two shards. test_cluster runs most of this on two nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
import pytest

from fairlead.broker import Caller
from fairlead.broker.documents import DocumentChange
from fairlead.broker.records import LimiterState, WorkerRecord
from fairlead.broker.requests import (
    Call,
    LeaseRef,
    LimiterChange,
    QueueChange,
    Receipt,
    TenantChange,
    Write,
)
from fairlead.broker.sharded import ShardedBroker
from fairlead.model.errors import Ambiguous, InvalidInput, InvalidOption, OutOfOrder, Unreachable
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.broker.redis import test_shards as shards
from tests.broker.redis.carrying import opened
from tests.broker.redis.test_shards import BOTH, far_parent
from tests.support.store import (
    NOW,
    Client,
    codes,
    completed,
    dead,
    drain,
    events,
    ids,
    record,
    states,
    submit,
)

# The fixtures are the same.
nodes, url, names = shards.nodes, shards.url, shards.names
broker, c = shards.broker, shards.c

# -- routing ----------------------------------------------------------------------------------


async def test_tasks_live_in_the_shard_of_their_queue(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    receipts = await c.enqueue(submit("a"), submit("b", queue="far"), submit("c"))
    assert [(receipt.id, receipt.code) for receipt in receipts] == [
        ("a", "accepted"),
        ("b", "accepted"),
        ("c", "accepted"),
    ]
    near, far = (broker.stores[name] for name in names)
    assert [found is not None for found in await near.find(["a", "b", "c"])] == [True, False, True]
    assert [found is not None for found in await far.find(["a", "b", "c"])] == [False, True, False]

    assert await states(broker, "a", "b", "c", "d") == [State.QUEUED] * 3 + [None]
    snapshot = await broker.snapshot(now=NOW)
    assert (snapshot.depth, snapshot.ready) == (3, 3)
    assert {name: counts.depth for name, counts in snapshot.queues.items()} == {
        "default": 2,
        "far": 1,
    }


async def test_what_has_ended_already_is_stored_in_the_shard_of_its_queue(
    broker: ShardedBroker, c: Client
) -> None:
    await c.enqueue(submit("far", queue="far"), submit("child", after=["far"]))
    ends = [
        Settlement(id=id, token=0, to=State.COMPLETED, result=b"r", reason="local")
        for id in ("near", "far")
    ]
    near = msgspec.structs.replace(submit("near"), ended=ends[0])
    far = msgspec.structs.replace(submit("far", queue="far"), ended=ends[1])
    assert codes(await c.enqueue(submit("a"), near, far)) == ["accepted"] * 3
    assert await states(broker, "near", "far") == [State.COMPLETED] * 2
    assert (await record(broker, "far")).result == b"r"
    assert await broker.wait(["default"], 5.0)
    await drain(broker)
    assert sorted(ids(await c.fetch(5, BOTH))) == ["a", "child"]
    assert codes(await c.enqueue(near, far)) == ["duplicate", "duplicate"]


async def test_fetch_goes_from_shard_to_shard_until_it_has_enough(
    broker: ShardedBroker, c: Client
) -> None:
    await c.enqueue(*(submit(f"n{i}") for i in range(3)))
    await c.enqueue(*(submit(f"f{i}", queue="far") for i in range(3)))

    assert ids(await c.fetch(2, ["far", "default"])) == ["f0", "f1"]
    leases = await c.fetch(3, ["far", "default"])
    assert ids(leases) == ["f2", "n0", "n1"]
    assert await c.settle(*map(completed, leases)) == ["applied"] * 3
    assert ids(await c.fetch(9, BOTH)) == ["n2"]


async def test_only_the_first_of_all_shards_count_as_started(
    broker: ShardedBroker, c: Client
) -> None:
    await c.enqueue(*(submit(f"n{i}") for i in range(2)), submit("f", queue="far"))
    leases = await c.fetch(3, BOTH, start=1)
    began = [(await record(broker, lease.message.id)).started_at for lease in leases]
    assert began == [NOW, None, None]

    reply = await c.exchange(started=[c.ref(lease) for lease in leases[1:]])
    assert reply.started == ["applied"] * 2
    assert (await record(broker, "f")).started_at == NOW


async def test_a_broker_that_lent_nothing_finds_the_shard_of_a_lease(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str]
) -> None:
    leases = await c.run(submit("n"), submit("f", queue="far"), queues=BOTH)
    other = opened(url, *names)
    again = Client(other, "w1")
    again.number = 100
    write = Write(lease=c.ref(leases[1]), kind="xcom", key="k", value=b"v")
    assert await again.write(write) == ["applied"]
    assert await other.pull("a", ["k", "none"], now=NOW) == [b"v", None]
    beat = await other.beat("w1", [*map(c.ref, leases), LeaseRef("x", "w1", 7)], now=NOW)
    assert beat.lost == [LeaseRef("x", "w1", 7)]

    strange = completed(Leased(message=submit("x").message, token=7, attempt=1))
    assert await again.settle(*map(completed, leases), strange) == ["applied", "applied", "unknown"]
    await other.close()


async def test_a_repeated_number_gets_the_same_answers(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str]
) -> None:
    batch = [submit("p", queue="far"), submit("k", after=["p"]), submit("n"), submit("n")]
    first = await c.enqueue(*batch)
    assert codes(first) == ["accepted", "accepted", "accepted", "duplicate"]
    call = Call("w1", c.number)
    assert await broker.enqueue(call, batch, now=NOW) == first

    other = opened(url, *names)  # which remembers nothing
    assert await other.enqueue(call, batch, now=NOW) == first
    assert (await other.snapshot(now=NOW)).depth == 3
    await other.close()

    leases = await c.fetch(2, BOTH)
    call = Call("w1", c.number)
    assert (await broker.exchange(call, now=NOW)).leased == leases
    with pytest.raises(InvalidInput, match="was exchange"):
        await broker.enqueue(call, batch, now=NOW)
    with pytest.raises(OutOfOrder):
        await broker.exchange(Call("w1", call.number - 1), now=NOW)


async def test_what_one_shard_has_done_is_not_done_again_when_the_other_comes_back(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = broker.stores[names[1]]
    good = far.enter

    async def away(*_: object, **__: object) -> None:
        raise Unreachable("the server is away")

    monkeypatch.setattr(far, "enter", away)
    batch = [submit("n"), submit("f", queue="far")]
    with pytest.raises(Ambiguous, match="the server is away"):
        await c.enqueue(*batch)
    with pytest.raises(Unreachable):  # nothing was done at all
        await Client(broker, "w2").enqueue(submit("g", queue="far"))
    monkeypatch.setattr(far, "enter", good)

    receipts = await broker.enqueue(Call("w1", c.number), batch, now=NOW)
    assert codes(receipts) == ["accepted", "accepted"]
    assert (await broker.snapshot(now=NOW)).depth == 2


async def test_a_shard_that_is_away_does_not_keep_others_from_being_fetched_from(
    broker: ShardedBroker, c: Client, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await c.enqueue(submit("n"))

    async def away(*_: object, **__: object) -> None:
        raise Unreachable("the server is away")

    for verb in ("exchange", "promote", "wait"):
        monkeypatch.setattr(broker.stores[names[1]], verb, away)
    assert await broker.wait(["far", "default"], 5.0)
    assert ids(await c.fetch(2, ["far", "default"])) == ["n"]
    assert (await broker.promote(now=NOW)).count == 0
    with pytest.raises(Unreachable):
        await c.fetch(1, ["far"])
    monkeypatch.undo()


# -- limits, mail, events, reads --------------------------------------------------------------


async def test_limits_hold_in_each_shard(broker: ShardedBroker, c: Client) -> None:
    await c.configure(
        LimiterChange(name="api", concurrency=1),
        TenantChange(tenant="b", concurrency=1),
        QueueChange(queue="far", max_waiting=4),
    )
    await c.enqueue(*(submit(f"n{i}", limiters=("api",)) for i in range(2)))
    receipts = await c.enqueue(*(submit(f"f{i}", "b", "far") for i in range(5)))
    assert codes(receipts) == ["accepted"] * 4 + ["queue_full"]
    assert ids(await c.fetch(9, BOTH)) == ["n0", "f0"]
    assert (await c.purge("far")).count == 3


async def test_waiting_ends_with_the_first_shard_that_has_work(
    broker: ShardedBroker, c: Client
) -> None:
    assert not await broker.wait(BOTH, 0.05)
    waiting = asyncio.create_task(broker.wait(BOTH, 10.0))
    await asyncio.sleep(0.05)
    await c.enqueue(submit("f", queue="far"))
    assert await asyncio.wait_for(waiting, 2.0)


async def test_a_wake_up_that_was_not_used_goes_to_the_next(
    broker: ShardedBroker, c: Client, url: str, names: tuple[str, str]
) -> None:
    await c.enqueue(submit("n"), submit("f", queue="far"))
    while len(broker.woken) < 2:  # both were awaited, and the first one's is enough
        assert await broker.wait(BOTH, 5.0)
    other = opened(url, *names)
    waiting = asyncio.create_task(other.wait(["far"], 4.0))
    assert ids(await c.fetch(1, BOTH)) == ["n"]
    assert await asyncio.wait_for(waiting, 2.0)
    await other.close()


async def test_mail_of_all_shards_is_numbered_in_one_line(broker: ShardedBroker, c: Client) -> None:
    leases = await c.run(
        submit("n"), submit("f", queue="far"), submit("g", queue="far"), queues=BOTH
    )
    watched = await broker.watch("w1", ["n", "f", "g", "x"], now=NOW)
    assert [watch.state for watch in watched] == [State.RUNNING] * 3 + [None]
    assert await broker.collect("w1", 0, 0.0) == []
    await c.settle(completed(leases[1]), completed(leases[2]))

    letters = await broker.collect("w1", 0, 5.0)
    assert [(mail.number, mail.id) for mail in letters] == [(1, "f"), (2, "g")]
    waiting = asyncio.create_task(broker.collect("w1", 1, 5.0))
    assert [(mail.number, mail.id) for mail in await waiting] == [(2, "g")]
    await c.settle(dead(leases[0]))
    found: dict[str, int] = {}
    while len(found) < 2:
        found |= {mail.id: mail.number for mail in await broker.collect("w1", 1, 5.0)}
    assert found == {"g": 2, "n": 3}
    assert await broker.collect("w1", 3, 0.0) == []


async def test_events_of_all_shards_are_read_in_pages(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    for i in range(6):
        await c.enqueue(submit(f"t{i}", queue=BOTH[i % 2]), now=NOW + i)
    seen, place = [], None
    while (page := await broker.events(after=place, limit=2)).events:
        assert len(page.events) <= 2
        seen += [event.task for event in page.events]
        place = page.last
    assert seen == [f"t{i}" for i in range(6)]
    assert not page.gap

    waiting = asyncio.create_task(broker.events(after=place, timeout=5.0))
    await asyncio.sleep(0.02)
    await c.enqueue(submit("late", queue="far"), now=NOW + 9)
    page = await waiting
    assert [(event.task, event.id.shard) for event in page.events] == [("late", names[1])]
    own = page.events[0].id  # says nothing of the other shard: it begins with its oldest
    assert [e.task for e in (await broker.events(after=own)).events] == ["t0", "t2", "t4"]

    page = await broker.events(reader="r", limit=4)
    await broker.events(reader="r", after=page.last)
    assert [e.task for e in (await broker.events(reader="r")).events] == ["t4", "t5", "late"]


async def test_pages_and_workers_are_those_of_all_shards(broker: ShardedBroker, c: Client) -> None:
    await c.enqueue(*(submit(f"t{i}", queue=BOTH[i % 2]) for i in range(8)))
    found, cursor = [], None
    while True:
        page = await broker.page(limit=3, cursor=cursor, now=NOW)
        found += [task.message.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == [f"t{i}" for i in range(8)]
    with pytest.raises(InvalidOption):
        await broker.page(cursor="nowhere:0")

    await broker.beat("w1", worker=WorkerRecord(incarnation="w1", queues=BOTH), now=NOW)
    (worker,) = await broker.workers(now=NOW)
    assert (worker.incarnation, worker.queues) == ("w1", BOTH)
    assert "+" in (await broker.hello()).generation


async def test_a_silent_worker_with_leases_in_one_shard_is_found(
    broker: ShardedBroker, c: Client
) -> None:
    await c.run(submit("f", queue="far"), queues=["far"])
    await broker.beat("w1", worker=WorkerRecord(incarnation="w1"), now=NOW)
    await broker.tidy(now=NOW + 20)

    assert await broker.workers(now=NOW + 20) == []
    (worker,) = await broker.workers(silent=True, now=NOW + 20)
    assert (worker.incarnation, worker.seen_at) == ("w1", NOW)
    await broker.give_back("w1", now=NOW + 20)
    assert await broker.workers(silent=True, now=NOW + 20) == []


async def test_a_breaker_of_each_shard_is_shown_as_the_worst_of_them(
    broker: ShardedBroker, c: Client
) -> None:
    await c.configure(LimiterChange(name="api", failures=1), LimiterChange(name="gpu", rate=9.0))
    near, far = await c.run(
        submit("n", limiters=("api",)), submit("f", queue="far", limiters=("api",)), queues=BOTH
    )
    assert (await broker.snapshot(now=NOW)).limiters == {
        "api": LimiterState(used=2, state="closed"),
        "gpu": LimiterState(),
    }
    await c.settle(dead(far))
    found = (await broker.snapshot(now=NOW)).limiters["api"]
    assert found == LimiterState(used=1, state="open", failed=1, open_until=NOW + 30)
    await c.settle(completed(near))
    assert (await broker.snapshot(now=NOW + 30)).limiters["api"].state == "half_open"


async def test_a_lost_worker_is_swept_in_all_shards(broker: ShardedBroker, c: Client) -> None:
    await broker.sweep(now=NOW)
    await c.run(submit("n"), submit("f", queue="far"), queues=BOTH)
    assert (await broker.give_back("w1", now=NOW)).count == 2
    assert await states(broker, "n", "f") == [State.QUEUED] * 2


async def test_a_fence_may_be_a_lease_of_another_shard(broker: ShardedBroker, c: Client) -> None:
    lease = await far_parent(c)
    fence = c.ref(lease)
    (receipt,) = await c.enqueue(submit("under", fence=fence))
    assert receipt.code == "accepted"
    await c.settle(completed(lease))
    assert codes(await c.enqueue(submit("late", fence=fence))) == ["fenced"]


async def test_documents_and_trails_lie_in_the_first_shard(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    change = DocumentChange(kind="token", name="a", value=b"v", revision=0)
    (answer,) = await broker.write_documents(c.call(), [change], now=NOW)
    again = await broker.write_documents(Call(c.incarnation, c.number), [change], now=NOW)
    assert again == [answer]
    await broker.note(c.call(), "audit", [b"n"], now=NOW)
    await broker.note(Call(c.incarnation, c.number), "audit", [b"n"], now=NOW)
    near, far = (broker.stores[name] for name in names)
    for store, count in ((broker, 1), (near, 1), (far, 0)):
        assert len((await store.documents("token", now=NOW)).documents) == count
        assert len(await store.notes("audit", now=NOW)) == count
    with pytest.raises(InvalidInput):
        await broker.note(c.call(), "", [b"n"], now=NOW)


async def test_the_first_shard_knows_who_leads(
    broker: ShardedBroker, names: tuple[str, str]
) -> None:
    held = await broker.lead("manager", "m1", now=NOW)
    near, far = (broker.stores[name] for name in names)
    for store in (broker, near):
        assert (await store.lead("manager", "m2", now=NOW)) == held
    assert (await far.lead("manager", "m2", now=NOW)).holder == "m2"
    assert (await broker.lead("manager", "m1", release=True, now=NOW)).holder == ""


async def test_a_line_of_a_later_term_ends_the_earlier_one_in_each_shard_that_it_calls(
    broker: ShardedBroker, url: str, names: tuple[str, str]
) -> None:
    older, newer = Caller("manager", first=1_000), Caller("manager", first=2_000)

    def enqueue(id: str, queue: str = "default") -> Awaitable[list[Receipt]]:
        return older.call(lambda call: broker.enqueue(call, [submit(id, queue=queue)]))

    assert codes(await enqueue("a")) == codes(await enqueue("b", "far")) == ["accepted"]
    other = opened(url, *names)  # as in another process
    await newer.call(lambda call: other.enqueue(call, [submit("c")]))
    with pytest.raises(OutOfOrder):
        await enqueue("d")
    assert codes(await enqueue("e", "far")) == ["accepted"]  # the later term did not call it yet
    await newer.call(lambda call: other.configure(call, []))  # this one comes to all shards
    await other.close()
    for queue in ("default", "far"):
        with pytest.raises(OutOfOrder):
            await enqueue("f", queue)
    assert await states(broker, "d", "e", "f") == [None, State.QUEUED, None]


async def test_a_worker_is_ordered_in_the_first_shard_which_tells_of_it(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    worker = WorkerRecord(incarnation="w9")
    assert not await broker.order_worker(c.call(), "w9", "pause", now=NOW)
    assert (await broker.beat("w9", worker=worker, now=NOW)).order == ""
    assert await broker.order_worker(c.call(), "w9", "pause", now=NOW)
    assert await broker.order_worker(Call(c.incarnation, c.number), "w9", "pause", now=NOW)
    assert (await broker.beat("w9", worker=worker, now=NOW)).order == "pause"
    assert [each.order for each in await broker.workers(now=NOW)] == ["pause"]

    _, far = (broker.stores[name] for name in names)
    await far.give_back("w9", now=NOW)  # it does not know the worker any more
    assert await broker.order_worker(c.call(), "w9", "resume", now=NOW)
    paused = msgspec.structs.replace(worker, order="pause")  # it has not heard of that
    assert (await broker.beat("w9", worker=paused, now=NOW)).order == ""
    assert (await broker.beat("w9", worker=worker, now=NOW)).order == ""
    assert [each.order for each in await broker.workers(now=NOW)] == [""]

    kinds = [event.kind for event in await events(broker)]
    assert kinds == ["worker_joined", "worker_paused", "worker_resumed"]
    assert len(await events(far)) == 3  # it was forgotten there, and came again
    page = await broker.events(after=(await broker.events(limit=1)).last, limit=1, timeout=0.2)
    assert [event.kind for event in page.events] == ["worker_paused"]


async def test_events_that_only_other_shards_have_of_workers_do_not_end_a_wait(
    broker: ShardedBroker, c: Client, names: tuple[str, str]
) -> None:
    _, far = (broker.stores[name] for name in names)
    last = (await broker.events()).last
    waiting = asyncio.create_task(broker.events(after=last, timeout=10.0))
    await far.beat("w9", worker=WorkerRecord(incarnation="w9"), now=NOW)
    await far.give_back("w9", now=NOW)
    await c.enqueue(submit("t1", queue="far"))
    page = await asyncio.wait_for(waiting, 10.0)
    assert [event.kind for event in page.events] == ["enqueued"]


async def test_loans_of_all_shards_go_to_another_worker_which_settles_them_there(
    broker: ShardedBroker, c: Client
) -> None:
    other = Client(broker, "w2")
    assert await other.fetch(1, queues=BOTH) == []  # both shards know of it
    leases = await c.run(submit("a"), submit("b", queue="far"), queues=BOTH)
    answers = await broker.transfer([c.ref(each) for each in leases], "w2", room=9, now=NOW)
    assert answers == ["moved", "moved"]
    letters = await broker.collect("w2", 0, 1.0)
    while len(letters) < 2:  # each shard has mail of its own
        letters += await broker.collect("w2", letters[-1].number, 1.0)
    tokens = {letter.id: letter.token for letter in letters}
    moved = [msgspec.structs.replace(each, token=tokens[each.message.id]) for each in leases]
    assert await c.settle(*map(completed, leases)) == ["fenced", "fenced"]
    assert await other.settle(*map(completed, moved)) == ["applied", "applied"]
    assert await states(broker, "a", "b") == [State.COMPLETED, State.COMPLETED]
