"""Time is the broker's, never goes backwards, and is given from outside only to a test clock."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.broker import Store
from fairlead.broker.flows import FlowOrder
from fairlead.broker.requests import Call, Fetch
from fairlead.model.lifecycle import State
from tests.support.fair import WITH_REAL_CLOCK
from tests.support.flows import parts_of
from tests.support.store import (
    NOW,
    Client,
    completed,
    failed,
    ids,
    record,
    snoozed,
    states,
    submit,
)

MICRO = 1e-6


# -- never backwards --------------------------------------------------------------------------


async def test_a_moment_before_the_last_one_counts_as_the_last_one(c: Client) -> None:
    await c.enqueue(submit("t.0"), now=NOW + 100)
    await c.enqueue(submit("t.1"), submit("t.2", delay=5.0), now=NOW)

    assert (await record(c.broker, "t.1", now=NOW)).enqueued_at == NOW + 100
    assert (await record(c.broker, "t.2", now=NOW)).due_at == NOW + 105


async def test_no_reply_is_earlier_than_one_before_it(c: Client) -> None:
    seen = []
    for after in (0.0, 10.0, 5.0, -1000.0, 10.0, 11.0):
        now = NOW + after
        seen += [
            (await c.exchange(now=now)).now,
            (await c.broker.beat("w1", now=now)).now,
            (await c.broker.promote(now=now)).now,
            (await c.broker.sweep(now=now)).now,
            (await c.broker.deliver(now=now)).now,
            (await c.broker.tidy(now=now)).now,
            (await c.broker.snapshot(now=now)).now,
        ]

    expected = [NOW, NOW + 10, NOW + 10, NOW + 10, NOW + 10, NOW + 11]
    assert seen == [moment for moment in expected for _ in range(7)]


async def test_a_lease_is_not_shortened_by_an_earlier_moment(c: Client) -> None:
    await c.enqueue(submit("t"), now=NOW + 100)
    await c.fetch(1, now=NOW)  # counts as NOW + 100: over at NOW + 130
    for after in (105.0, 115.0, 125.0):
        assert (await c.broker.sweep(now=NOW + after)).count == 0

    assert (await c.broker.sweep(now=NOW + 131)).count == 1


async def test_events_are_written_in_the_order_of_their_times(c: Client) -> None:
    for after in (0.0, 50.0, 20.0, 60.0, 10.0):
        (lease,) = await c.run(submit(f"t.{after}"), now=NOW + after)
        await c.settle(completed(lease), now=NOW + after)

    times = [event.at for event in (await c.broker.events()).events]
    assert times == sorted(times)
    assert {times[0], times[-1]} == {NOW, NOW + 60}


# -- due, to the microsecond ------------------------------------------------------------------


async def test_a_scheduled_task_is_due_exactly_at_its_time(c: Client) -> None:
    await c.enqueue(submit("t", delay=5.0))

    reply = await c.exchange(fetch=Fetch(queues=("default",), max=1), now=NOW + 4)
    assert (reply.leased, reply.due_in) == ([], 1.0)
    assert await c.fetch(1, now=NOW + 5 - MICRO) == []
    assert await states(c.broker, "t", now=NOW) == [State.SCHEDULED]
    assert ids(await c.fetch(1, now=NOW + 5)) == ["t"]


async def test_promotion_is_exact_to_the_microsecond(c: Client) -> None:
    await c.enqueue(submit("t", delay=5.0))

    assert (await c.broker.promote(now=NOW + 5 - MICRO)).count == 0
    assert (await c.broker.promote(now=NOW + 5)).count == 1
    assert await states(c.broker, "t", now=NOW) == [State.QUEUED]


async def test_a_retried_task_is_due_exactly_after_its_delay(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.settle(failed(lease, 2.5), now=NOW + 1)

    assert (await record(c.broker, "t", now=NOW + 1)).due_at == NOW + 3.5
    assert await c.fetch(1, now=NOW + 3.5 - MICRO) == []
    assert ids(await c.fetch(1, now=NOW + 3.5)) == ["t"]


async def test_a_snoozed_task_is_due_exactly_after_its_delay(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.settle(snoozed(lease, 0.25), now=NOW + 1)

    assert await c.fetch(1, now=NOW + 1.25 - MICRO) == []
    assert ids(await c.fetch(1, now=NOW + 1.25)) == ["t"]


async def test_a_task_may_start_until_its_deadline_and_not_a_microsecond_later(c: Client) -> None:
    await c.enqueue(submit("just", deadline=5.0), submit("late", deadline=5.0))

    assert ids(await c.fetch(1, now=NOW + 5)) == ["just"]
    assert await c.fetch(1, now=NOW + 5 + MICRO) == []
    found = await record(c.broker, "late", now=NOW + 6)
    assert (found.state, found.reason) == (State.DEAD, "expired")


async def test_a_moment_given_in_fractions_is_kept(c: Client) -> None:
    await c.enqueue(submit("t"), now=NOW + 0.125)

    assert (await record(c.broker, "t", now=NOW + 0.125)).enqueued_at == NOW + 0.125


# -- who may say what time it is --------------------------------------------------------------

VERBS: dict[str, Callable[[Store, float], Awaitable[Any]]] = {
    "enqueue": lambda b, now: b.enqueue(Call("w1", 1), [submit("t")], now=now),
    "exchange": lambda b, now: b.exchange(Call("w1", 1), now=now),
    "beat": lambda b, now: b.beat("w1", now=now),
    "give_back": lambda b, now: b.give_back("w1", now=now),
    "sweep": lambda b, now: b.sweep(now=now),
    "promote": lambda b, now: b.promote(now=now),
    "deliver": lambda b, now: b.deliver(now=now),
    "tidy": lambda b, now: b.tidy(now=now),
    "watch": lambda b, now: b.watch("w1", ["t"], now=now),
    "write": lambda b, now: b.write(Call("w1", 1), [], now=now),
    "pull": lambda b, now: b.pull("a", ["k"], now=now),
    "alter": lambda b, now: b.alter(Call("w1", 1), [], now=now),
    "configure": lambda b, now: b.configure(Call("w1", 1), [], now=now),
    "purge": lambda b, now: b.purge(Call("w1", 1), "default", now=now),
    "delete_queue": lambda b, now: b.delete_queue(Call("w1", 1), "default", now=now),
    "fire": lambda b, now: b.fire(Call("w1", 1), [], now=now),
    "stage": lambda b, now: b.stage(Call("w1", 1), parts_of("f", submit("t"))[0], now=now),
    "commit": lambda b, now: b.commit(Call("w1", 1), "f", now=now),
    "alter_flow": lambda b, now: b.alter_flow(
        Call("w1", 1), FlowOrder(flow="f", action="cancel"), now=now
    ),
    "flows": lambda b, now: b.flows(["f"], now=now),
    "graph": lambda b, now: b.graph("f", now=now),
    "members": lambda b, now: b.members("f", now=now),
    "plan": lambda b, now: b.plan(Call("w1", 1), [], now=now),
    "tick": lambda b, now: b.tick(now=now),
    "schedules": lambda b, now: b.schedules(now=now),
    "write_documents": lambda b, now: b.write_documents(Call("w1", 1), [], now=now),
    "documents": lambda b, now: b.documents("kind", now=now),
    "note": lambda b, now: b.note(Call("w1", 1), "trail", [], now=now),
    "notes": lambda b, now: b.notes("trail", now=now),
    "transfer": lambda b, now: b.transfer([], "w2", room=1, now=now),
    "order_worker": lambda b, now: b.order_worker(Call("w1", 1), "w1", "pause", now=now),
    "lead": lambda b, now: b.lead("name", "holder", now=now),
    "settings": lambda b, now: b.settings(now=now),
    "snapshot": lambda b, now: b.snapshot(now=now),
    "find": lambda b, now: b.find(["t"], now=now),
    "page": lambda b, now: b.page(now=now),
    "workers": lambda b, now: b.workers(now=now),
    "stats": lambda b, now: b.stats(now=now),
    "standing": lambda b, now: b.standing("t", now=now),
    "audit": lambda b, now: b.audit(now=now),
    "repair": lambda b, now: b.repair(now=now),
}


def test_every_verb_that_takes_a_moment_is_tried() -> None:
    takes = {
        name
        for name, verb in inspect.getmembers(Store, inspect.isfunction)
        if "now" in inspect.signature(verb).parameters
    }
    assert takes == VERBS.keys()


@pytest.mark.parametrize("make", WITH_REAL_CLOCK.values(), ids=WITH_REAL_CLOCK)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_now_is_refused_by_a_broker_without_a_test_clock(
    make: Callable[[], Store], verb: Callable[[Store, float], Awaitable[Any]]
) -> None:
    broker = make()
    with pytest.raises(ValueError, match="now"):
        await verb(broker, time.time())

    assert await broker.find(["t"]) == [None]
    await broker.close()


@pytest.mark.parametrize("make", WITH_REAL_CLOCK.values(), ids=WITH_REAL_CLOCK)
async def test_without_a_test_clock_time_is_unix_seconds(make: Callable[[], Store]) -> None:
    broker = make()
    before = time.time()
    moments = [(await broker.hello()).now for _ in range(100)]
    after = time.time()

    assert moments == sorted(moments)
    assert before - 0.001 <= moments[0]
    assert moments[-1] <= after + 0.001
    await broker.close()


@pytest.mark.parametrize("make", WITH_REAL_CLOCK.values(), ids=WITH_REAL_CLOCK)
async def test_a_clock_that_is_set_back_does_not_take_the_broker_with_it(
    make: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make()
    before = (await broker.hello()).now
    seconds, nanoseconds = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: seconds() - 3600)
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() - 3600 * 10**9)

    assert (await broker.hello()).now >= before
    await broker.close()
