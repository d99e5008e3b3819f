"""A step of bulk work ends when its call has taken long enough, and the rest comes with the next.

Judged on a server for which that is so at once: each call does the least that it may.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.keys import Keys
from fairlead.broker.requests import Alter, Call, Fetch, QueueChange, TenantChange
from fairlead.client.client import Client as AppClient
from fairlead.model.errors import Ambiguous, Unreachable
from fairlead.model.lifecycle import State
from tests.support.fair import LiveClient
from tests.support.long_way import clockless_lua, slow_lua
from tests.support.servers import Running, server, shared
from tests.support.store import submit

MANY = 40
QUEUES = 400


@pytest.fixture
def running() -> Iterator[Running]:
    with shared() as found:
        yield found


class Counted(RedisBroker):
    """A broker that counts its calls."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.calls: Counter[str] = Counter()

    async def run(self, verb: str, *args: Any, **options: Any) -> Any:
        self.calls[verb] += 1
        return await super().run(verb, *args, **options)


@pytest.fixture
async def slow(running: Running) -> AsyncIterator[Counted]:
    broker = Counted(running.url, lua=slow_lua())
    yield broker
    assert await broker.audit() == []
    await broker.close()


@pytest.fixture
async def broker(running: Running) -> AsyncIterator[Counted]:
    made = Counted(running.url)
    yield made
    assert await made.audit() == []
    await made.close()


async def filled(broker: Counted, count: int = MANY, **options: Any) -> list[str]:
    names = [f"t.{n}" for n in range(count)]
    await LiveClient(broker, "filler").enqueue(*(submit(id, **options) for id in names))
    broker.calls.clear()
    return names


async def test_orders_that_a_call_has_no_time_for_are_given_again(slow: Counted) -> None:
    names = await filled(slow)
    orders = [Alter(id=id, action="cancel") for id in names]
    answers = await slow.alter(LiveClient(slow).call(), orders)
    assert [answer.code for answer in answers] == ["done"] + ["later"] * (MANY - 1)
    assert (await slow.find(names[1:2]))[0].state is State.QUEUED  # type: ignore[union-attr]
    slow.calls.clear()

    answers = await AppClient(slow).alter(orders)

    assert [answer.id for answer in answers] == names
    assert [answer.code for answer in answers] == ["unchanged"] + ["done"] * (MANY - 1)
    assert slow.calls["change_tasks"] == MANY


async def test_orders_about_one_task_are_carried_out_in_turn(slow: Counted) -> None:
    (id,) = await filled(slow, 1)
    orders = [Alter(id=id, action="cancel"), Alter(id=id, action="delete")]
    assert [each.code for each in await AppClient(slow).alter(orders)] == ["done", "done"]
    assert await slow.find([id]) == [None]


async def test_a_call_that_is_repeated_answers_what_it_did_not_come_to(slow: Counted) -> None:
    names = await filled(slow)
    call = LiveClient(slow).call()
    orders = [Alter(id=id, action="cancel") for id in names]
    answers = await slow.alter(call, orders)
    assert await slow.alter(call, orders) == answers


@pytest.mark.parametrize("delay", [0.0, 3600.0])
async def test_a_purge_goes_on_with_the_next_call(slow: Counted, delay: float) -> None:
    await filled(slow, delay=delay)
    moved = await slow.purge(LiveClient(slow).call(), "default")
    assert (moved.count, moved.more) == (1, True)
    assert await AppClient(slow).purge("default") == MANY - 1
    counts = (await slow.snapshot()).queues["default"]
    assert (counts.depth, counts.cancelled) == (0, MANY)
    assert slow.calls["purge"] == MANY


async def test_on_a_server_without_a_clock_for_scripts_steps_have_their_size(
    running: Running,
) -> None:
    broker = Counted(running.url, lua=clockless_lua())
    await filled(broker)
    moved = await broker.purge(LiveClient(broker).call(), "default")
    assert (moved.count, moved.more) == (MANY, False)
    await broker.close()


async def test_a_queue_is_deleted_in_as_many_calls_as_it_takes(slow: Counted) -> None:
    await filled(slow)
    await AppClient(slow).purge("default")
    assert await AppClient(slow).delete_queue("default") == MANY
    assert slow.calls["delete_queue"] >= MANY // 10
    assert (await slow.snapshot()).queues == {}


async def test_a_read_goes_on_with_the_next_call(running: Running, slow: Counted) -> None:
    names = await filled(slow, 100)
    running.admin("CONFIG", "RESETSTAT")
    records = await slow.find([*names, "unknown"])
    assert [record and record.message.id for record in records] == [*names, None]
    assert slow.calls["find"] > 2
    reads = running.admin("INFO", "commandstats")["cmdstat_hmget"]["calls"]
    assert reads < 5 * slow.calls["find"], "nothing is read for the next call"


async def test_many_tasks_are_read_with_few_commands(running: Running, broker: Counted) -> None:
    names = await filled(broker, 100)
    await broker.find(names)
    running.admin("CONFIG", "RESETSTAT")
    await broker.find(names)
    found = running.admin("INFO", "commandstats")
    inside = sum(each["calls"] for name, each in found.items() if "fcall" not in name)
    assert inside < 50, found


# -- what is set for a tenant in all queues -----------------------------------------------------


async def known_everywhere(broker: Counted) -> None:
    c = LiveClient(broker, "filler")
    for start in range(0, QUEUES, 100):
        part = range(start, start + 100)
        await c.enqueue(*(submit(f"{n}.{t}", t, f"q.{n}") for n in part for t in "ab"))
    broker.calls.clear()


async def runnable(broker: Counted) -> set[str]:
    """The tenants of which anything can run in any queue."""
    c, found = LiveClient(broker, "worker"), set[str]()
    for start in range(0, QUEUES, 200):
        names = tuple(f"q.{n}" for n in range(start, start + 200))
        while leased := (
            await broker.exchange(c.call(), fetch=Fetch(queues=names, max=100, lease=60.0))
        ).leased:
            found |= {lease.message.tenant for lease in leased}
    return found


async def test_a_tenant_is_paused_in_all_queues_a_few_in_each_call(
    running: Running, broker: Counted
) -> None:
    await known_everywhere(broker)
    running.admin("CONFIG", "RESETSTAT")

    await broker.configure(LiveClient(broker).call(), [TenantChange(tenant="a", paused=True)])

    calls = broker.calls["configure"] + broker.calls["apply_settings"]
    assert calls >= QUEUES / 30, "each call gives it to 10 queues, and to the rest of a page"
    looked = running.admin("INFO", "commandstats")["cmdstat_hexists"]["calls"]
    assert QUEUES <= looked < 2 * QUEUES, "no queue is looked at again and again"
    assert await runnable(broker) == {"b"}


async def test_what_a_tenant_is_given_is_what_was_set_last(slow: Counted) -> None:
    await known_everywhere(slow)
    call = LiveClient(slow).call
    for paused in (True, False):
        await slow.configure(call(), [TenantChange(tenant="a", paused=paused)])
    await slow.configure(call(), [TenantChange(tenant="b", paused=True)])
    assert await runnable(slow) == {"a"}


async def test_tidy_gives_a_tenant_what_a_caller_did_not_stay_for(
    broker: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known_everywhere(broker)

    async def away(*args: Any, **options: Any) -> Any:
        raise Unreachable("the server went away")

    monkeypatch.setattr(broker, "own", away)
    with pytest.raises(Ambiguous, match="it is set, but not every queue has it yet: the server"):
        await broker.configure(LiveClient(broker).call(), [TenantChange(tenant="a", paused=True)])
    monkeypatch.undo()
    while (await broker.tidy()).more:
        pass
    assert await runnable(broker) == {"b"}


async def test_who_sets_something_everywhere_waits_no_longer_than_there_is_time(
    broker: Counted, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still once it is set: what a later call says of that is not all."""
    await known_everywhere(broker)
    run = broker.run

    async def frozen(verb: str, *args: Any, **options: Any) -> Any:
        if verb == "apply_settings":
            running.pause()
        return await run(verb, *args, **options)

    monkeypatch.setattr(broker, "run", frozen)
    until = asyncio.get_running_loop().time() + 1.0
    try:
        with pytest.raises(Ambiguous, match="it is set"):
            await asyncio.wait_for(  # without a limit of its own it has ten seconds
                broker.configure(Call("setter", 1, until), [TenantChange(tenant="a", paused=True)]),
                8.0,
            )
    finally:
        running.resume()


async def test_a_tenant_is_given_it_everywhere_although_the_server_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By then the server keeps its queues in another order: places in the old one mean nothing."""
    with server(aof=True) as running:
        broker = Counted(running.url)
        await known_everywhere(broker)
        change = TenantChange(tenant="a", paused=True)
        monkeypatch.setattr(broker, "own", None)
        with pytest.raises(TypeError):
            await broker.configure(LiveClient(broker).call(), [change])
        monkeypatch.undo()
        for _ in range(QUEUES // 30):
            assert (await broker.tidy()).more
        await asyncio.to_thread(running.restart)
        while (await broker.tidy()).more:
            pass
        assert await runnable(broker) == {"b"}
        await broker.close()


async def test_very_many_tenants_begin_anew_on_another_server_a_part_in_each_call(
    broker: Counted, running: Running
) -> None:
    await known_everywhere(broker)
    applying, meta = (f"{Keys('0').prefix}{name}" for name in ("applying", "meta"))
    places = [part for n in range(600) for part in (n + 1, f"t.{n}")]
    running.admin("ZADD", applying, *places)
    running.admin("HSET", meta, "run", "another")
    for left in (350, 100):
        assert (await broker.tidy()).more
        assert running.admin("ZCOUNT", applying, "(0", "inf") == left
    while (await broker.tidy()).more:
        pass
    assert running.admin("ZCARD", applying) == 0


async def test_who_sets_something_else_does_not_finish_what_others_have_set(
    broker: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that begins waits for its own declarations, not for those of all tenants."""
    await known_everywhere(broker)
    call = LiveClient(broker).call
    monkeypatch.setattr(broker, "own", None)
    with pytest.raises(TypeError):
        await broker.configure(call(), [TenantChange(tenant="a", paused=True)])
    monkeypatch.undo()
    await broker.configure(call(), [])
    await broker.configure(call(), [QueueChange(queue="q.0", warn_depth=5)])
    await broker.configure(call(), [TenantChange(tenant="b", queue="q.0", weight=2.0)])
    assert broker.calls["apply_settings"] == 0
    assert (await broker.tidy()).more
