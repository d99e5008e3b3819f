"""What a worker writes while its task runs: XCom values, progress, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import MAX_XCOM, Call, LeaseRef, Write
from fairlead.model.errors import InvalidInput
from fairlead.model.lifecycle import State
from tests.support.store import (
    NOW,
    Client,
    completed,
    events,
    failed,
    record,
    released,
    submit,
)

DAY = 86_400.0


def xcom(lease: LeaseRef, value: bytes, key: str = "k", ttl: float = DAY) -> Write:
    return Write(lease=lease, kind="xcom", key=key, value=value, ttl=ttl)


def progress(lease: LeaseRef, value: bytes) -> Write:
    return Write(lease=lease, kind="progress", value=value)


def checkpoint(lease: LeaseRef, value: bytes) -> Write:
    return Write(lease=lease, kind="checkpoint", value=value)


# -- xcom -------------------------------------------------------------------------------------


async def test_xcom_values_are_recorded_under_the_lease_of_their_task(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1"))
    assert await c.write(xcom(c.ref(lease), b"\x00v")) == ["applied"]
    assert await broker.pull("a", ["k"], now=NOW) == [b"\x00v"]


async def test_pull_answers_none_where_there_is_no_value(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(xcom(c.ref(lease), b"one", "k1"), xcom(c.ref(lease), b"", "k2"))

    pulled = await broker.pull("a", ["k2", "ghost", "k1", "k2"], now=NOW)
    assert pulled == [b"", None, b"one", b""]
    assert await broker.pull("a", [], now=NOW) == []


async def test_xcom_values_belong_to_one_tenant(broker: Store, c: Client) -> None:
    (a, b) = await c.run(submit("t1", "a"), submit("t2", "b"))
    await c.write(xcom(c.ref(a), b"of a"))
    assert await broker.pull("b", ["k"], now=NOW) == [None]

    await c.write(xcom(c.ref(b), b"of b"))
    assert await broker.pull("a", ["k"], now=NOW) == [b"of a"]
    assert await broker.pull("b", ["k"], now=NOW) == [b"of b"]


async def test_a_later_write_of_a_key_goes_over_an_earlier_one(broker: Store, c: Client) -> None:
    (one, two) = await c.run(submit("t1"), submit("t2"))
    await c.write(xcom(c.ref(one), b"1"), xcom(c.ref(one), b"2"))
    assert await broker.pull("a", ["k"], now=NOW) == [b"2"]
    await c.write(xcom(c.ref(two), b"3"))
    assert await broker.pull("a", ["k"], now=NOW) == [b"3"]


async def test_pull_answers_none_where_the_ttl_is_over(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(xcom(c.ref(lease), b"v", ttl=10))
    assert await broker.pull("a", ["k"], now=NOW + 9.999) == [b"v"]
    assert await broker.pull("a", ["k"], now=NOW + 10) == [None]


async def test_a_ttl_that_is_not_given_is_a_day(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(Write(lease=c.ref(lease), kind="xcom", key="k", value=b"v"))
    assert await broker.pull("a", ["k"], now=NOW + DAY - 1) == [b"v"]
    assert await broker.pull("a", ["k"], now=NOW + DAY + 1) == [None]


async def test_a_later_write_brings_its_own_ttl(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(xcom(c.ref(lease), b"long", "up", ttl=10), xcom(c.ref(lease), b"x", "down"))
    await c.write(xcom(c.ref(lease), b"new", "up"), xcom(c.ref(lease), b"y", "down", ttl=10))
    assert await broker.pull("a", ["up", "down"], now=NOW + 11) == [b"new", None]


async def test_a_ttl_is_measured_by_the_brokers_time_which_never_goes_back(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(xcom(c.ref(lease), b"v", ttl=10))
    await broker.promote(now=NOW + 20)
    assert await broker.pull("a", ["k"], now=NOW + 1) == [None]


async def test_xcom_values_outlive_their_task(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(xcom(c.ref(lease), b"v"))
    await c.settle(completed(lease, keep=0))
    assert await broker.pull("a", ["k"], now=NOW + 100) == [b"v"]


async def test_tidy_forgets_xcom_values_whose_ttl_is_over(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(*(xcom(c.ref(lease), b"v", f"k{i}", ttl=10 + i) for i in range(3)))

    assert (await broker.tidy(now=NOW + 9)).count == 0
    assert (await broker.tidy(now=NOW + 11.5)).count == 2
    assert (await broker.tidy(now=NOW + 11.5)).count == 0
    assert await broker.pull("a", ["k0", "k1", "k2"], now=NOW + 11.5) == [None, None, b"v"]


async def test_tidy_leaves_a_value_that_was_written_again(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(xcom(c.ref(lease), b"old", ttl=10))
    await c.write(xcom(c.ref(lease), b"new", ttl=100))
    assert (await broker.tidy(now=NOW + 11)).count == 0
    assert await broker.pull("a", ["k"], now=NOW + 11) == [b"new"]


async def test_a_value_may_have_64_kib_and_no_more(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    assert await c.write(xcom(c.ref(lease), b"v" * MAX_XCOM, "full")) == ["applied"]

    with pytest.raises(InvalidInput):
        await c.write(xcom(c.ref(lease), b"v", "k"), xcom(c.ref(lease), b"v" * (MAX_XCOM + 1)))
    assert await broker.pull("a", ["full", "k"], now=NOW) == [b"v" * MAX_XCOM, None]


@pytest.mark.parametrize("ttl", [0.0, -1.0, math.nan, math.inf])
async def test_a_ttl_that_is_no_time_raises_and_changes_nothing(
    broker: Store, c: Client, ttl: float
) -> None:
    (lease,) = await c.run(submit("t1"))
    with pytest.raises(InvalidInput):
        await c.write(xcom(c.ref(lease), b"v", "good"), xcom(c.ref(lease), b"v", "bad", ttl))
    assert await broker.pull("a", ["good", "bad"], now=NOW) == [None, None]


# -- progress and checkpoints -----------------------------------------------------------------


async def test_progress_is_recorded_and_told(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    assert await c.write(progress(c.ref(lease), b"1/2")) == ["applied"]
    assert await c.write(progress(c.ref(lease), b"2/2"), now=NOW + 1) == ["applied"]

    found = await record(broker, "t1")
    assert (found.state, found.progress) == (State.RUNNING, b"2/2")
    assert [(e.task, e.token, e.at) for e in await events(broker, "progress")] == [
        ("t1", lease.token, NOW),
        ("t1", lease.token, NOW + 1),
    ]


async def test_a_checkpoint_is_recorded_and_outlives_the_attempt(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.write(checkpoint(c.ref(lease), b"row 7"))
    assert await c.write(checkpoint(c.ref(lease), b"row 9")) == ["applied"]
    assert (await record(broker, "t1")).checkpoint == b"row 9"

    await c.settle(failed(lease, 0))
    await c.fetch(1)
    found = await record(broker, "t1")
    assert (found.state, found.checkpoint) == (State.RUNNING, b"row 9")


async def test_progress_and_checkpoints_are_the_tasks_own(broker: Store, c: Client) -> None:
    (one, _) = await c.run(submit("t1"), submit("t2"))
    await c.write(progress(c.ref(one), b"p"), checkpoint(c.ref(one), b"c"))
    found = await record(broker, "t2")
    assert (found.progress, found.checkpoint) == (None, None)
    assert await broker.pull("a", [""], now=NOW) == [None]


# -- fencing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [xcom, progress, checkpoint])
async def test_a_write_must_match_a_lease_in_force_in_id_incarnation_and_token(
    broker: Store, c: Client, make: Callable[[LeaseRef, bytes], Write]
) -> None:
    (lease,) = await c.run(submit("t1"))
    await c.enqueue(submit("waiting"))
    before = await record(broker, "t1")

    wrong = [
        LeaseRef("t1", "w2", lease.token),
        LeaseRef("t1", "w1", lease.token + 1),
        LeaseRef("t1", "w1", lease.token - 1),
        LeaseRef("waiting", "w1", lease.token),
        LeaseRef("ghost", "w1", lease.token),
    ]
    answers = await c.write(*(make(proof, b"stolen") for proof in wrong))
    assert answers == ["fenced", "fenced", "fenced", "fenced", "unknown"]
    assert await record(broker, "t1") == before
    assert await broker.pull("a", ["k"], now=NOW) == [None]
    assert await events(broker, "progress") == []


async def test_another_process_may_write_under_the_lease_that_it_was_shown(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1"))
    answers = await broker.write(
        Call("slot", 1), [progress(c.ref(lease), b"half"), xcom(c.ref(lease), b"v")], now=NOW
    )
    assert answers == ["applied", "applied"]
    assert (await record(broker, "t1")).progress == b"half"
    assert await broker.pull("a", ["k"], now=NOW) == [b"v"]


async def test_a_write_after_the_end_of_the_lease_is_fenced(broker: Store, c: Client) -> None:
    (one, two, three) = await c.run(submit("t1"), submit("t2"), submit("t3"))
    await c.settle(completed(one), released(two))
    await broker.give_back("w1", now=NOW)

    answers = await c.write(*(xcom(c.ref(lease), b"late") for lease in (one, two, three)))
    assert answers == ["fenced"] * 3
    assert await broker.pull("a", ["k"], now=NOW) == [None]


async def test_a_write_with_an_earlier_lease_of_the_same_task_is_fenced(
    broker: Store, c: Client
) -> None:
    (first,) = await c.run(submit("t1"))
    await c.settle(released(first))
    (second,) = await c.fetch(1)

    answers = await c.write(
        checkpoint(c.ref(second), b"mine"), checkpoint(c.ref(first), b"of a ghost")
    )
    assert answers == ["applied", "fenced"]
    assert (await record(broker, "t1")).checkpoint == b"mine"


async def test_there_is_one_answer_per_write_in_order(broker: Store, c: Client) -> None:
    (one, two) = await c.run(submit("t1"), submit("t2"))
    await c.settle(completed(two))

    answers = await c.write(
        progress(c.ref(one), b"p"),
        xcom(c.ref(two), b"no"),
        xcom(LeaseRef("ghost", "w1", one.token), b"no"),
        xcom(c.ref(one), b"yes"),
    )
    assert answers == ["applied", "fenced", "unknown", "applied"]
    assert await broker.pull("a", ["k"], now=NOW) == [b"yes"]
    assert await c.write() == []


async def test_the_last_number_again_returns_the_same_answers_and_writes_nothing(
    broker: Store, c: Client
) -> None:
    (lease,) = await c.run(submit("t1"))
    assert await c.write(progress(c.ref(lease), b"first")) == ["applied"]

    again = Call(c.incarnation, c.number)
    assert await broker.write(again, [progress(c.ref(lease), b"again")], now=NOW) == ["applied"]
    assert (await record(broker, "t1")).progress == b"first"
    assert len(await events(broker, "progress")) == 1
