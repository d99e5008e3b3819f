"""Workers come and go, which events tell, and hear what they are ordered to do."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import MAX_STEP, Call, StandingOrder, WorkerOrder
from fairlead.model.errors import InvalidInput, OutOfOrder
from tests.support.store import NOW, Client, events, submit


async def beat(
    broker: Store, name: str = "w9", *, order: StandingOrder = "", now: float = NOW
) -> StandingOrder:
    worker = WorkerRecord(incarnation=name, order=order)
    return (await broker.beat(name, worker=worker, now=now)).order


async def give(c: Client, order: WorkerOrder, name: str = "w9", *, now: float = NOW) -> bool:
    return await c.broker.order_worker(c.call(), name, order, now=now)


async def told(broker: Store) -> list[tuple[str, str]]:
    return [
        (event.kind.removeprefix("worker_"), event.task)
        for event in await events(broker)
        if event.kind.startswith("worker_")
    ]


async def shown(broker: Store, now: float = NOW) -> dict[str, str]:
    return {each.incarnation: each.order for each in await broker.workers(now=now)}


# -- orders --------------------------------------------------------------------------------------


async def test_an_order_stands_until_it_is_taken_back(c: Client) -> None:
    assert await beat(c.broker) == ""
    assert await give(c, "pause") is True
    assert [await beat(c.broker, now=NOW + n) for n in (1, 11, 21)] == ["pause"] * 3
    assert (await c.broker.beat("w9", now=NOW + 22)).order == "pause"
    assert await shown(c.broker, NOW + 22) == {"w9": "pause"}
    assert await give(c, "resume", now=NOW + 23) is True
    assert await beat(c.broker, now=NOW + 24) == ""
    assert await shown(c.broker, NOW + 24) == {"w9": ""}


async def test_the_last_order_stands(c: Client) -> None:
    await beat(c.broker)
    heard = []
    orders: list[WorkerOrder] = ["pause", "stop", "pause", "resume", "stop", "resume", "resume"]
    for order in orders:
        await give(c, order)
        heard.append(await beat(c.broker))
    assert heard == ["pause", "stop", "pause", "", "stop", "", ""]


async def test_each_worker_has_orders_of_its_own(c: Client) -> None:
    for name in ("w1", "w2", "w3"):
        await beat(c.broker, name)
    await give(c, "pause", "w1")
    await give(c, "stop", "w2")
    assert [await beat(c.broker, name) for name in ("w1", "w2", "w3")] == ["pause", "stop", ""]
    assert await shown(c.broker) == {"w1": "pause", "w2": "stop", "w3": ""}


async def test_an_unknown_worker_cannot_be_ordered(c: Client) -> None:
    assert await give(c, "pause") is False
    await beat(c.broker)
    assert await give(c, "stop", "nobody") is False
    assert await give(c, "pause", now=NOW + 15) is False
    await beat(c.broker, now=NOW + 15)
    await c.broker.give_back("w9", now=NOW + 15)
    assert await give(c, "pause", now=NOW + 15) is False


async def test_a_silent_worker_with_leases_can_be_ordered(c: Client) -> None:
    worker = Client(c.broker, "w9")
    await c.enqueue(submit("t1"))
    await worker.fetch(1)
    await beat(c.broker)
    assert await give(c, "stop", now=NOW + 20) is True
    assert await beat(c.broker, now=NOW + 21) == "stop"


async def test_an_order_goes_with_the_worker(c: Client) -> None:
    await beat(c.broker)
    await give(c, "pause")
    await c.broker.give_back("w9", now=NOW + 1)
    assert (await c.broker.beat("w9", now=NOW + 1)).order == ""
    assert await beat(c.broker, now=NOW + 2) == ""
    await give(c, "stop", now=NOW + 2)
    assert (await c.broker.tidy(now=NOW + 17)).count == 1
    assert await beat(c.broker, now=NOW + 18) == ""


@pytest.mark.parametrize("tidied", [False, True])
async def test_a_worker_that_is_not_registered_brings_its_order_along(
    c: Client, tidied: bool
) -> None:
    """A pause must outlive a heartbeat that was lost, and a server that forgot it."""
    await beat(c.broker)
    await give(c, "pause")
    if tidied:
        await c.broker.tidy(now=NOW + 16)
    assert (await c.broker.beat("w9", now=NOW + 16)).order == ""
    assert await beat(c.broker, order="pause", now=NOW + 16) == "pause"
    assert await beat(c.broker, now=NOW + 17) == "pause"
    assert await told(c.broker) == [
        ("joined", "w9"),
        ("paused", "w9"),
        ("left", "w9"),
        ("joined", "w9"),
        ("paused", "w9"),
    ]


async def test_what_a_registered_worker_says_of_its_order_does_not_count(c: Client) -> None:
    await beat(c.broker)
    assert await beat(c.broker, order="stop") == ""
    await give(c, "pause")
    assert await beat(c.broker, order="") == "pause"
    assert await shown(c.broker) == {"w9": "pause"}


async def test_an_order_touches_no_leases(c: Client) -> None:
    worker = Client(c.broker, "w9")
    await c.enqueue(submit("t1"))
    (lease,) = await worker.fetch(1)
    await beat(c.broker)
    await give(c, "stop")
    reply = await c.broker.beat("w9", [worker.ref(lease)], now=NOW + 1)
    assert (reply.lost, reply.cancelled, reply.order) == ([], [], "stop")


async def test_the_last_number_again_orders_nothing(c: Client) -> None:
    await beat(c.broker)
    assert await give(c, "pause") is True
    again = Call(c.incarnation, c.number)
    await c.broker.order_worker(Call("other", 1), "w9", "resume", now=NOW)
    assert await c.broker.order_worker(again, "w9", "pause", now=NOW) is True
    assert await beat(c.broker) == ""
    await give(c, "resume", "nobody")
    with pytest.raises(OutOfOrder):
        await c.broker.order_worker(again, "w9", "pause", now=NOW)


async def test_what_no_worker_can_do_is_refused(c: Client) -> None:
    await beat(c.broker)
    with pytest.raises(InvalidInput):
        await give(c, "dance")  # type: ignore[arg-type]
    assert await beat(c.broker) == ""


# -- events --------------------------------------------------------------------------------------


async def test_a_worker_joins_once_and_leaves_once(c: Client) -> None:
    for n in range(3):
        await beat(c.broker, now=NOW + n)
    await c.broker.beat("unregistered", now=NOW + 3)
    assert await told(c.broker) == [("joined", "w9")]
    for _ in range(2):
        await c.broker.give_back("w9", now=NOW + 4)
    assert await told(c.broker) == [("joined", "w9"), ("left", "w9")]
    (joined, left) = await events(c.broker, "worker_joined", "worker_left")
    assert (joined.at, joined.queue, joined.tenant, joined.state) == (NOW, "", "", "")
    assert left.at == NOW + 4


async def test_a_worker_that_fell_silent_leaves_when_it_is_forgotten(c: Client) -> None:
    worker = Client(c.broker, "w9")
    await c.enqueue(submit("t1"))
    await worker.fetch(1)
    await beat(c.broker)
    await beat(c.broker, "idle")
    await c.broker.tidy(now=NOW + 16)
    assert await told(c.broker) == [("joined", "w9"), ("joined", "idle"), ("left", "idle")]


async def test_a_worker_with_more_leases_than_a_call_gives_back_leaves_with_the_last(
    c: Client,
) -> None:
    worker = Client(c.broker, "w9")
    await c.enqueue(*(submit(f"t{n}") for n in range(MAX_STEP + 1)))
    await worker.fetch(MAX_STEP + 1)
    await beat(c.broker)
    assert (await c.broker.give_back("w9", now=NOW)).more
    assert await told(c.broker) == [("joined", "w9")]
    assert not (await c.broker.give_back("w9", now=NOW)).more
    assert await told(c.broker) == [("joined", "w9"), ("left", "w9")]


async def test_events_tell_when_an_order_pauses_or_resumes(c: Client) -> None:
    await beat(c.broker)
    orders: list[WorkerOrder] = ["resume", "pause", "pause", "stop", "resume", "resume", "stop"]
    for order in orders:
        await give(c, order)
    assert await told(c.broker) == [("joined", "w9"), ("paused", "w9"), ("resumed", "w9")]
    await give(c, "pause")
    await give(c, "pause", "nobody")
    assert (await told(c.broker))[3:] == [("paused", "w9")]
