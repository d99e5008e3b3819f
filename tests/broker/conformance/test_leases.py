"""A lease is one loan to one incarnation: proved by its token, kept by beats, ended by a sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import HEARTBEAT, MAX_STEP, Fetch, LeaseRef, Write
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.support.fair import backlog, taken
from tests.support.store import (
    NOW,
    Client,
    cancelled,
    completed,
    dead,
    events,
    failed,
    ids,
    record,
    ref,
    released,
    snoozed,
    states,
    submit,
)

ALL = Fetch(queues=("default",), max=128)
ENDS: dict[str, Callable[[Leased], Settlement]] = {
    "completed": completed,
    "dead": dead,
    "released": released,
    "retrying": failed,
    "snoozed": lambda lease: snoozed(lease, 100.0),
    "cancelled": cancelled,
}


async def crash(client: Client, n: int = 1, *, now: float = NOW) -> list[Leased]:
    """Fetch, start, and be gone."""
    leases = await client.fetch(n, now=now)
    await client.broker.give_back(client.incarnation, now=now)
    return leases


# -- tokens -----------------------------------------------------------------------------------


async def test_all_leases_of_a_call_share_a_token(c: Client) -> None:
    await backlog(c, "a", 5)

    assert len({lease.token for lease in await c.fetch(5)}) == 1


async def test_a_token_is_greater_than_any_before_it(c: Client) -> None:
    await backlog(c, "a", 300)
    tokens = [(await Client(c.broker, f"other{i}").fetch(1))[0].token for i in range(300)]

    assert tokens == sorted(set(tokens))


async def test_a_token_is_at_least_the_time_in_microseconds(c: Client) -> None:
    await backlog(c, "a", 3)
    for after in (0.0, 0.5, 1000.0):
        (lease,) = await c.fetch(1, now=NOW + after)
        assert lease.token >= int((NOW + after) * 1_000_000)


async def test_tokens_grow_whether_or_not_an_attempt_was_burnt(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    for _ in range(3):
        reply = await c.exchange([released(lease)], fetch=ALL)
        (again,) = reply.leased
        assert again.token > lease.token
        assert again.attempt == 1
        lease = again


async def test_a_lease_says_all_that_a_worker_must_know(c: Client) -> None:
    await c.enqueue(submit("t", deadline=50.0), now=NOW)

    (lease,) = await c.fetch(1, now=NOW + 2)

    assert lease == Leased(
        message=submit("t").message,
        token=lease.token,
        attempt=1,
        started=True,
        enqueued_at=NOW,
        deadline_at=NOW + 50.0,
    )
    found = await record(c.broker, "t", now=NOW + 2)
    assert (found.state, found.token, found.incarnation) == (State.RUNNING, lease.token, "w1")
    assert found.started_at == NOW + 2


# -- fencing ----------------------------------------------------------------------------------


async def wrong_token(c: Client, lease: Leased) -> LeaseRef:
    return LeaseRef(lease.message.id, c.incarnation, lease.token + 1)


async def wrong_incarnation(c: Client, lease: Leased) -> LeaseRef:
    return LeaseRef(lease.message.id, "w2", lease.token)


async def after_give_back(c: Client, lease: Leased) -> LeaseRef:
    await c.broker.give_back(c.incarnation, now=NOW)
    return c.ref(lease)


async def after_another_fetched_it(c: Client, lease: Leased) -> LeaseRef:
    await c.broker.give_back(c.incarnation, now=NOW)
    assert ids(await Client(c.broker, "w3").fetch(1)) == [lease.message.id]
    return c.ref(lease)


async def after_sweep(c: Client, lease: Leased) -> LeaseRef:
    for after in (31.0, 41.0):
        await c.broker.sweep(now=NOW + after)
    assert await states(c.broker, lease.message.id, now=NOW + 41) == [State.QUEUED]
    return c.ref(lease)


async def after_settling(c: Client, lease: Leased) -> LeaseRef:
    assert await c.settle(failed(lease, 100.0)) == ["applied"]
    return c.ref(lease)


async def after_release_and_own_fetch(c: Client, lease: Leased) -> LeaseRef:
    assert len((await c.exchange([released(lease)], fetch=ALL)).leased) == 1
    return c.ref(lease)


STALE: dict[str, Callable[[Client, Leased], Awaitable[LeaseRef]]] = {
    function.__name__: function
    for function in (
        wrong_token,
        wrong_incarnation,
        after_give_back,
        after_another_fetched_it,
        after_sweep,
        after_settling,
        after_release_and_own_fetch,
    )
}


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE)
async def test_a_write_without_a_lease_in_force_is_fenced_and_changes_nothing(
    c: Client, stale: Callable[[Client, Leased], Awaitable[LeaseRef]]
) -> None:
    (lease,) = await c.run(submit("t"))
    proof = await stale(c, lease)
    writer = Client(c.broker, proof.incarnation)
    writer.number = 100
    old = Leased(message=lease.message, token=proof.token, attempt=1)
    before = await c.broker.find(["t"], now=NOW)

    for end in ENDS.values():
        assert await writer.settle(end(old)) == ["fenced"]
    assert (await writer.exchange(started=[proof])).started == ["fenced"]
    for kind in ("progress", "checkpoint", "xcom"):
        write = Write(lease=proof, kind=kind, key="k", value=b"1")
        assert await writer.write(write) == ["fenced"]
    (receipt,) = await writer.enqueue(submit("child", fence=proof))
    assert receipt.code == "fenced"
    beat = await c.broker.beat(proof.incarnation, [proof], now=NOW)
    assert beat.lost == [proof]

    assert await c.broker.find(["t"], now=NOW) == before
    assert await c.broker.find(["child"], now=NOW) == [None]
    assert await c.broker.pull("a", ["k"], now=NOW) == [None]


async def test_every_write_under_the_lease_is_applied(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    proof = c.ref(lease)
    writes = [
        Write(lease=proof, kind="progress", value=b"1"),
        Write(lease=proof, kind="checkpoint", value=b"2"),
        Write(lease=proof, kind="xcom", key="k", value=b"3"),
    ]

    assert await c.write(*writes) == ["applied"] * 3
    assert [r.code for r in await c.enqueue(submit("child", fence=proof))] == ["accepted"]
    found = await record(c.broker, "t")
    assert (found.progress, found.checkpoint) == (b"1", b"2")
    assert await c.broker.pull("a", ["k"], now=NOW) == [b"3"]


async def test_a_write_for_a_task_the_broker_does_not_know_is_unknown(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    await c.settle(completed(lease))
    assert (await c.delete("t")).code == "done"
    proof = c.ref(lease)

    for end in ENDS.values():
        assert await c.settle(end(lease)) == ["unknown"]
    assert (await c.exchange(started=[proof])).started == ["unknown"]
    assert await c.write(Write(lease=proof, kind="progress", value=b"1")) == ["unknown"]


async def test_one_stale_settlement_does_not_keep_back_the_others(c: Client) -> None:
    first, second, third = await c.run(*(submit(f"t.{i}") for i in range(3)))
    old = Leased(message=second.message, token=second.token - 1, attempt=1)
    ghost = Leased(message=submit("ghost").message, token=1, attempt=1)

    answers = await c.settle(completed(first), completed(old), completed(ghost), completed(third))

    assert answers == ["applied", "fenced", "unknown", "applied"]
    assert await states(c.broker, "t.0", "t.1", "t.2") == [
        State.COMPLETED,
        State.RUNNING,
        State.COMPLETED,
    ]


async def test_the_second_settlement_of_one_batch_is_fenced(c: Client) -> None:
    (lease,) = await c.run(submit("t"))

    assert await c.settle(completed(lease), failed(lease)) == ["applied", "fenced"]
    assert await states(c.broker, "t") == [State.COMPLETED]


# -- beats ------------------------------------------------------------------------------------


async def swept(broker: Store, *, now: float) -> int:
    """How many tasks a sweep ends at ``now`` that was not silent before: sweeps every 10 s."""
    for back in (20.0, 10.0):
        await broker.sweep(now=now - back)
    return (await broker.sweep(now=now)).count


async def test_a_beat_keeps_all_leases_of_its_incarnation(c: Client) -> None:
    await backlog(c, "a", 5)
    await c.fetch(2)
    await c.fetch(3, now=NOW + 5)
    await c.broker.beat("w1", now=NOW + 25)

    assert await swept(c.broker, now=NOW + 54) == 0
    assert (await c.broker.sweep(now=NOW + 56)).count == 5


async def test_a_beat_never_shortens_a_lease(c: Client) -> None:
    await backlog(c, "a", 1)
    await c.fetch(1, lease=100.0)
    await c.broker.beat("w1", lease=5.0, now=NOW + 1)

    assert await swept(c.broker, now=NOW + 99) == 0
    assert (await c.broker.sweep(now=NOW + 101)).count == 1


async def test_a_fetch_moves_the_end_of_the_lease_forward_never_back(c: Client) -> None:
    await backlog(c, "a", 3)
    await c.fetch(1, lease=60.0)
    await c.fetch(1, lease=10.0, now=NOW + 1)
    assert await swept(c.broker, now=NOW + 59) == 0

    await c.fetch(1, lease=30.0, now=NOW + 59)
    assert (await c.broker.sweep(now=NOW + 69)).count == 0
    assert (await c.broker.sweep(now=NOW + 79)).count == 0
    assert (await c.broker.sweep(now=NOW + 88)).count == 0
    assert (await c.broker.sweep(now=NOW + 90)).count == 3


async def test_a_beat_tells_which_of_the_named_leases_are_lost(c: Client) -> None:
    first, second = await c.run(submit("t.0"), submit("t.1"))
    await c.settle(completed(first))
    foreign = LeaseRef("t.1", "w1", second.token + 7)
    ghost = LeaseRef("ghost", "w1", second.token)

    reply = await c.broker.beat("w1", [c.ref(first), c.ref(second), foreign, ghost], now=NOW)

    assert reply.lost == [c.ref(first), foreign, ghost]
    assert reply.cancelled == []
    assert reply.now == NOW


async def test_a_beat_tells_of_all_its_leases_which_are_cancelled(c: Client) -> None:
    first, second, third = await c.run(*(submit(f"t.{i}") for i in range(3)))
    await c.cancel("t.0")
    await c.cancel("t.2")

    reply = await c.broker.beat("w1", [c.ref(second)], now=NOW)

    assert reply.lost == []
    assert reply.cancelled == [c.ref(first), c.ref(third)]
    assert (await c.broker.beat("w2", now=NOW)).cancelled == []


async def test_a_beat_that_comes_before_the_sweep_keeps_a_lease_that_was_over(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    for after in (25.0, 34.0):  # guarded: the first one was the first ever
        assert (await c.broker.sweep(now=NOW + after)).guarded
    reply = await c.broker.beat("w1", [c.ref(lease)], now=NOW + 36)

    assert reply.lost == []
    assert (await c.broker.sweep(now=NOW + 45)).count == 0
    assert await c.settle(completed(lease), now=NOW + 46) == ["applied"]


# -- held and started, crashes ----------------------------------------------------------------


async def test_the_first_tasks_of_a_fetch_are_started_and_the_others_held(c: Client) -> None:
    await backlog(c, "a", 4)

    leases = await c.fetch(4, start=1)

    assert [lease.started for lease in leases] == [True, False, False, False]
    found = await c.broker.find(ids(leases), now=NOW)
    assert [r.state for r in found if r] == [State.RUNNING] * 4
    assert [r.started_at for r in found if r] == [NOW, None, None, None]
    assert [e.task for e in await events(c.broker, "started")] == ["a.0"]

    reply = await c.exchange(started=[c.ref(leases[2])], now=NOW + 1)
    assert reply.started == ["applied"]
    assert (await record(c.broker, "a.2", now=NOW + 1)).started_at == NOW + 1
    assert [e.task for e in await events(c.broker, "started")] == ["a.0", "a.2"]


async def test_a_crash_is_charged_to_started_tasks_only(c: Client) -> None:
    await backlog(c, "a", 3)
    leases = await c.fetch(3, start=1)
    await c.exchange(started=[c.ref(leases[2])])

    moved = await c.broker.give_back("w1", now=NOW)

    assert (moved.count, moved.more) == (3, False)
    found = [await record(c.broker, f"a.{i}") for i in range(3)]
    assert [r.state for r in found] == [State.QUEUED] * 3
    assert [r.crashes for r in found] == [1, 0, 1]
    assert [r.attempts for r in found] == [1, 0, 1]
    assert [e.reason for e in await events(c.broker, "recovered")].count("crash") == 2


async def test_the_ids_given_say_who_had_started(c: Client) -> None:
    await backlog(c, "a", 3)
    await c.fetch(3, start=1)

    await c.broker.give_back("w1", ["a.1"], now=NOW)

    assert [(await record(c.broker, f"a.{i}")).crashes for i in range(3)] == [0, 1, 0]


async def test_an_empty_list_of_started_ids_charges_nobody(c: Client) -> None:
    await backlog(c, "a", 2)
    await c.fetch(2)

    await c.broker.give_back("w1", [], now=NOW)

    assert [(await record(c.broker, f"a.{i}")).crashes for i in range(2)] == [0, 0]


async def test_the_third_crash_in_a_row_is_poison(c: Client) -> None:
    await c.enqueue(submit("t"))
    shown = []
    for number in range(3):
        (lease,) = await crash(Client(c.broker, f"gone{number}"))
        shown.append((lease.crashes, lease.attempt))

    assert shown == [(0, 1), (1, 2), (2, 3)]
    found = await record(c.broker, "t")
    assert (found.state, found.reason, found.crashes) == (State.DEAD, "poison", 3)
    assert await c.fetch(1) == []


@pytest.mark.parametrize(
    "end", [partial(released, run_time=1.0), failed], ids=["released", "retrying"]
)
async def test_an_attempt_that_ends_otherwise_clears_the_crash_count(
    c: Client, end: Callable[[Leased], Settlement]
) -> None:
    await c.enqueue(submit("t"))
    for number in range(2):
        await crash(Client(c.broker, f"gone{number}"))
    (lease,) = await c.fetch(1)
    assert lease.crashes == 2
    await c.settle(end(lease))

    assert (await record(c.broker, "t")).crashes == 0
    for number in range(2, 4):
        await crash(Client(c.broker, f"gone{number}"), now=NOW + 2)
    assert (await record(c.broker, "t", now=NOW + 2)).state is State.QUEUED


async def test_a_held_task_is_given_back_without_clearing_its_crash_count(c: Client) -> None:
    await c.enqueue(submit("t"))
    await crash(Client(c.broker, "gone0"))
    gone = Client(c.broker, "gone1")
    await gone.fetch(1, start=0)
    await c.broker.give_back("gone1", now=NOW)

    (lease,) = await c.fetch(1)
    assert (lease.crashes, lease.attempt) == (1, 2)


async def test_a_cancelled_task_whose_worker_died_is_cancelled(c: Client) -> None:
    await backlog(c, "a", 2)
    await c.fetch(2, start=1)
    for id in ("a.0", "a.1"):
        assert (await c.cancel(id)).code == "requested"

    await c.broker.give_back("w1", now=NOW)

    assert await states(c.broker, "a.0", "a.1") == [State.CANCELLED] * 2
    assert await c.fetch(2) == []


async def test_what_is_given_back_goes_to_the_front_in_its_old_order(c: Client) -> None:
    await backlog(c, "a", 9)
    gone = Client(c.broker, "gone")
    await taken(gone, 6, 2)
    await c.broker.give_back("gone", now=NOW)

    assert ids(await c.fetch(9)) == [f"a.{i}" for i in range(9)]


async def test_the_old_order_is_kept_in_every_level(c: Client) -> None:
    await c.enqueue(*(submit(f"t.{i}", level=i % 4) for i in range(40)))
    gone = Client(c.broker, "gone")
    assert len(await taken(gone, 30, 7)) == 30
    await c.broker.give_back("gone", now=NOW)

    leases = await taken(c, 40, 40)
    for level in range(4):
        mine = [lease.message.id for lease in leases if lease.message.level == level]
        assert mine == [f"t.{i}" for i in range(level, 40, 4)]


async def test_a_released_task_goes_to_the_front_of_its_level(c: Client) -> None:
    await backlog(c, "a", 5)
    first, second = await c.fetch(2)

    await c.settle(released(second))
    await c.settle(released(first))

    assert ids(await c.fetch(9)) == [f"a.{i}" for i in range(5)]


async def test_giving_back_again_finds_nothing(c: Client) -> None:
    await c.run(submit("t"))
    assert (await c.broker.give_back("w1", now=NOW)).count == 1

    moved = await c.broker.give_back("w1", now=NOW)

    assert (moved.count, moved.more) == (0, False)
    assert (await record(c.broker, "t")).crashes == 1


async def test_at_most_a_step_is_given_back_in_a_call(c: Client) -> None:
    rest = MAX_STEP // 2
    many = 2 * MAX_STEP + rest
    await backlog(c, "a", many)
    assert len(await taken(c, many, 128)) == many

    steps = [await c.broker.give_back("w1", now=NOW) for _ in range(3)]

    assert [step.count for step in steps] == [MAX_STEP, MAX_STEP, rest]
    assert [step.more for step in steps] == [True, True, False]
    assert ids(await taken(c, many, 128)) == [f"a.{i}" for i in range(many)]


# -- the sweep --------------------------------------------------------------------------------


async def test_the_very_first_sweep_ends_no_lease_for_one_heartbeat(c: Client) -> None:
    await c.run(submit("t"))
    first = await c.broker.sweep(now=NOW + 100)
    second = await c.broker.sweep(now=NOW + 100 + HEARTBEAT - 1)
    third = await c.broker.sweep(now=NOW + 100 + HEARTBEAT + 1)

    assert (first.guarded, first.count) == (True, 0)
    assert (second.guarded, second.count) == (True, 0)
    assert (third.guarded, third.count) == (False, 1)
    assert await states(c.broker, "t", now=NOW + 111) == [State.QUEUED]


async def test_after_a_silence_longer_than_a_heartbeat_no_lease_is_ended_for_one(c: Client) -> None:
    await c.run(submit("t"))
    for after in (0.0, 10.0, 20.0):
        await c.broker.sweep(now=NOW + after)
    late = await c.broker.sweep(now=NOW + 60)
    later = await c.broker.sweep(now=NOW + 65)
    last = await c.broker.sweep(now=NOW + 71)

    assert [(s.guarded, s.count) for s in (late, later, last)] == [(True, 0), (True, 0), (False, 1)]


async def test_a_jump_of_the_clock_ends_no_lease(c: Client) -> None:
    (lease,) = await c.run(submit("t"))
    for after in (0.0, 10.0, 20.0):
        await c.broker.sweep(now=NOW + after)
    jumped = await c.broker.sweep(now=NOW + 86_400)
    await c.broker.beat("w1", [c.ref(lease)], now=NOW + 86_405)

    assert (jumped.guarded, jumped.count) == (True, 0)
    assert (await c.broker.sweep(now=NOW + 86_412)).count == 0
    assert await c.settle(completed(lease), now=NOW + 86_412) == ["applied"]


async def test_sweeps_without_a_silence_end_what_is_over_and_nothing_else(c: Client) -> None:
    other = Client(c.broker, "w2")
    await c.run(submit("t.0"))
    (kept,) = await other.run(submit("t.1"), now=NOW + 5)
    assert await swept(c.broker, now=NOW + 29) == 0

    moved = await c.broker.sweep(now=NOW + 31)

    assert (moved.count, moved.more, moved.guarded) == (1, False, False)
    assert await states(c.broker, "t.0", "t.1", now=NOW + 31) == [State.QUEUED, State.RUNNING]
    assert await other.settle(completed(kept), now=NOW + 31) == ["applied"]


async def test_a_sweep_charges_crashes_as_giving_back_does(c: Client) -> None:
    await backlog(c, "a", 2)
    await c.fetch(2, start=1)

    assert await swept(c.broker, now=NOW + 31) == 2
    assert [(await record(c.broker, f"a.{i}", now=NOW)).crashes for i in range(2)] == [1, 0]
    assert ids(await c.fetch(2, now=NOW + 31)) == ["a.0", "a.1"]


async def test_a_sweep_ends_at_most_a_step_and_says_that_there_is_more(c: Client) -> None:
    many = MAX_STEP + MAX_STEP // 2
    await backlog(c, "a", many)
    assert len(await taken(c, many, 128)) == many

    assert await swept(c.broker, now=NOW + 31) == MAX_STEP
    rest = await c.broker.sweep(now=NOW + 31)
    assert (rest.count, rest.more) == (MAX_STEP // 2, False)


# -- attempts ---------------------------------------------------------------------------------


async def test_burnt_attempts_count_and_others_do_not(c: Client) -> None:
    await c.enqueue(submit("t"))
    seen = []
    ends: list[Callable[[Leased], Settlement]] = [
        *(released, failed, lambda lease: snoozed(lease, 1.0), failed, released)
    ]
    for turn, end in enumerate(ends):
        (lease,) = await c.fetch(1, now=NOW + 2 * turn)
        seen.append(lease.attempt)
        assert await c.settle(end(lease), now=NOW + 2 * turn) == ["applied"]

    assert seen == [1, 1, 2, 2, 3]
    assert (await record(c.broker, "t", now=NOW + 20)).attempts == 2


async def test_a_requeued_task_starts_anew(c: Client) -> None:
    await c.enqueue(submit("t"))
    for number in range(3):
        await crash(Client(c.broker, f"gone{number}"))
    await c.requeue("t")

    (lease,) = await c.fetch(1)

    assert (lease.attempt, lease.generation, lease.crashes) == (1, 1, 0)
    assert ref(lease).token > 0


async def test_hand_backs_in_a_row_because_no_handler_knew_the_task_are_counted(c: Client) -> None:
    await c.enqueue(submit("t"))
    seen = []
    for turn, reason in enumerate(["unroutable", "unroutable", "snoozed", "unroutable", ""]):
        (lease,) = await c.fetch(1, now=NOW + turn)
        seen.append((lease.unroutable, lease.attempt))
        back = Settlement(
            id="t", token=lease.token, to=State.RETRYING, delay=1.0, burn=False, reason=reason
        )
        assert await c.settle(back, now=NOW + turn) == ["applied"]

    assert seen == [(0, 1), (1, 1), (2, 1), (0, 1), (1, 1)]


async def test_a_task_that_was_lent_twice_to_one_incarnation_is_given_back_once(
    broker: Store, c: Client
) -> None:
    first, _ = await c.run(submit("t1"), submit("t2"))
    await c.settle(released(first))
    await c.fetch(1)

    assert (await broker.give_back("w1", now=NOW)).count == 2
    assert [(await record(broker, id)).crashes for id in ("t1", "t2")] == [1, 1]
    assert ids(await Client(broker, "w2").fetch(5)) == ["t2", "t1"]  # in the order they were lent
