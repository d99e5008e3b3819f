"""What is left when a server was emptied, or was promoted without its last writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from fairlead import Fairlead, Handle
from fairlead.broker.redis.broker import RedisBroker
from fairlead.broker.requests import LAYOUT
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.errors import Refused
from fairlead.model.lifecycle import State
from tests.support.servers import AT_ONCE, Running, server, wait_for
from tests.support.store import NOW, Client, completed, ids, submit

META = "fl1:{0}:meta"


@pytest.fixture
async def broker(valkey: Running) -> AsyncIterator[RedisBroker]:
    made = RedisBroker(valkey.url)
    yield made
    await made.close()


@pytest.fixture
def c(broker: RedisBroker) -> Client:
    return Client(broker)


# -- an emptied server ------------------------------------------------------------------------


async def test_results_come_at_once_after_the_server_was_emptied(valkey: Running) -> None:
    app = Fairlead(valkey.url)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        for n in range(50):
            assert await (await double.aenqueue(n)).aresult() == 2 * n
        valkey.admin("FLUSHALL")
        slowest = 0.0
        for n in range(5):
            began = time.monotonic()
            assert await (await double.aenqueue(n)).aresult() == 2 * n
            slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0


async def test_a_cancel_is_heard_at_once_after_the_server_was_emptied(valkey: Running) -> None:
    app = Fairlead(valkey.url)

    @app.task
    async def endless() -> None:
        await asyncio.sleep(3600)

    async def cancel_one() -> float:
        handle = await endless.aenqueue()
        await until(handle, State.RUNNING)
        began = time.monotonic()
        await handle.acancel()
        await until(handle, State.CANCELLED)
        return time.monotonic() - began

    async with app, app.worker():
        for _ in range(3):
            await cancel_one()
        valkey.admin("FLUSHALL")
        assert await cancel_one() < 2.0


async def until(handle: Handle[None], state: State) -> None:
    while await handle.astate() is not state:  # noqa: ASYNC110 - only the server can tell
        await asyncio.sleep(0.01)


# -- a promoted server that lost the last writes ----------------------------------------------


class Pair:
    """A primary, and a replica that was promoted while the primary went on."""

    def __init__(self, primary: Running, replica: Running) -> None:
        self.primary, self.replica = primary, replica
        self.old = RedisBroker(primary.url, test_clock=True)
        self.new = RedisBroker(replica.url, test_clock=True)

    async def promote(self) -> None:
        """Cut the replica off with what it has now."""
        hello = await self.old.hello()
        wait_for(
            lambda: (
                self.replica.admin("HGET", META, "generation") == hello.generation.encode()
                and self.primary.admin("WAIT", 1, 1000) == 1
            ),
            "the replica to be in sync",
        )
        self.replica.admin("REPLICAOF", "NO", "ONE")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with server(tcp=True, config=AT_ONCE) as primary, server(tcp=True) as replica:
        replica.admin("REPLICAOF", "127.0.0.1", primary.port)
        made = Pair(primary, replica)
        try:
            yield made
        finally:
            await made.old.close()
            await made.new.close()


async def test_no_event_id_comes_again_and_a_reader_inside_the_lost_tail_is_told_of_a_gap(
    pair: Pair,
) -> None:
    old = Client(pair.old)
    for n in range(10):
        await old.enqueue(submit(f"kept-{n}"), now=NOW + n)
    await pair.promote()
    for n in range(10):
        await old.enqueue(submit(f"lost-{n}"), now=NOW + 20 + n)
    page = await pair.old.events(reader="ledger")
    assert page.last is not None
    known = {str(event.id) for event in page.events}

    new = Client(pair.new, "w2")
    for n in range(15):  # more than were lost
        await new.enqueue(submit(f"new-{n}"), now=NOW + 40 + n)
    again = await pair.new.events(reader="ledger", after=page.last)

    assert again.gap is True
    fresh = [event for event in again.events if str(event.id) not in known]
    assert [event.task for event in fresh] == [f"new-{n}" for n in range(15)]
    assert again.last is not None
    after = await pair.new.events(reader="ledger", after=again.last)
    assert (after.gap, after.events) == (False, [])


async def test_a_reader_that_stopped_before_the_lost_tail_reads_on_without_a_gap(
    pair: Pair,
) -> None:
    old = Client(pair.old)
    await old.enqueue(submit("seen"), now=NOW)
    page = await pair.old.events()
    await old.enqueue(submit("kept"), now=NOW + 1)
    await pair.promote()
    await old.enqueue(submit("lost"), now=NOW + 2)
    await Client(pair.new, "w2").enqueue(submit("new"), now=NOW + 30)

    again = await pair.new.events(after=page.last)

    assert (again.gap, [event.task for event in again.events]) == (False, ["kept", "new"])


async def test_mail_of_a_promoted_server_reaches_whoever_read_mail_that_was_lost(
    pair: Pair,
) -> None:
    old, new = Client(pair.old), Client(pair.new, "w2")
    first, *rest = await old.run(*(submit(f"t{n}") for n in range(20)), now=NOW)
    await pair.old.watch("me", [f"t{n}" for n in range(20)], now=NOW)
    await old.settle(completed(first), now=NOW)
    await pair.promote()
    await old.settle(*map(completed, rest), now=NOW + 5)
    last = max(mail.number for mail in await pair.old.collect("me", 0, 0.0))

    (lease,) = await new.run(submit("after"), now=NOW + 20)
    await pair.new.watch("me", ["after"], now=NOW + 20)
    await new.settle(completed(lease), now=NOW + 20)

    assert [mail.id for mail in await pair.new.collect("me", last, 0.0)] == ["after"]


async def test_no_revision_of_a_schedule_comes_again(pair: Pair) -> None:
    async def put(client: Client, spec: bytes, now: float) -> int:
        order = ScheduleOrder(name="s", action="put", queue="default", spec=spec, next_at=NOW + 60)
        (done,) = await client.broker.plan(client.call(), [order], now=now)
        return done.revision

    old, new = Client(pair.old), Client(pair.new, "w2")
    await put(old, b"kept", NOW)
    await pair.promote()
    lost = [await put(old, b"lost %d" % n, NOW + 1 + n) for n in range(5)]

    again = [await put(new, b"new %d" % n, NOW + 20 + n) for n in range(10)]

    assert not set(lost) & set(again)


# -- lives ------------------------------------------------------------------------------------


async def test_chosen_ids_run_after_the_counter_of_their_lives_has_gone_round(
    valkey: Running,
) -> None:
    broker = RedisBroker(valkey.url, test_clock=True)
    c = Client(broker)
    await broker.hello()
    valkey.set_numbers(life=2**32 - 3)
    names = [f"order-{n}" for n in range(4)]
    options = [f"paid-{n}" for n in range(4)]  # those with options go another way in

    await c.enqueue(*map(submit, names))
    await c.enqueue(*(submit(id, delay=1.0) for id in options))
    assert (await broker.promote(now=NOW + 1)).count == 4
    leases = await c.fetch(20, now=NOW + 1)

    assert sorted(ids(leases)) == sorted([*names, *options])
    assert set(await c.settle(*map(completed, leases), now=NOW + 2)) == {"applied"}
    assert await broker.audit(now=NOW + 2) == []
    await broker.close()


# -- layouts ----------------------------------------------------------------------------------


async def test_a_shard_of_an_older_layout_is_refused_by_name_and_left_alone(
    valkey: Running, broker: RedisBroker, c: Client
) -> None:
    valkey.admin("HSET", META, "generation", "g", "layout", 1, "cap", 1000)

    with pytest.raises(
        Refused, match=f"layout 1.*reads layout {LAYOUT}.*fairlead migrate"
    ) as caught:
        await broker.hello()
    assert caught.value.cause == "layout"
    with pytest.raises(Refused, match="layout 1"):
        await broker.enqueue(c.call(), [submit("t")])

    assert valkey.admin("KEYS", "*") == [META.encode()]


async def test_a_shard_that_a_later_release_wrote_is_refused_by_name(
    valkey: Running, broker: RedisBroker, c: Client
) -> None:
    await broker.hello()
    valkey.admin("HSET", META, "layout", LAYOUT + 1, "least", LAYOUT + 1)

    with pytest.raises(Refused, match=f"layout {LAYOUT + 1}.*later release"):
        await broker.hello()
    with pytest.raises(Refused, match=f"layout {LAYOUT + 1}.*later release"):
        await broker.enqueue(c.call(), [submit("t")])


async def test_a_release_goes_on_beside_a_later_one_that_lets_it_write(
    valkey: Running, broker: RedisBroker, c: Client
) -> None:
    await broker.hello()
    valkey.admin("HSET", META, "layout", LAYOUT + 1, "least", LAYOUT)

    (receipt,) = await broker.enqueue(c.call(), [submit("t")])

    assert receipt.code == "accepted"
    assert (await broker.hello()).layout == LAYOUT + 1
