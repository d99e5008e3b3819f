"""How much of a tenant there may be: bytes of unfinished tasks, and of XCom values."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from fairlead.broker import Store
from fairlead.broker.flows import FLOW_PATIENCE, Staged
from fairlead.broker.requests import (
    MAX_TENANT_BYTES,
    MAX_XCOM_BYTES,
    Firing,
    LeaseRef,
    QueueChange,
    Receipt,
    Settled,
    Submission,
    Write,
)
from fairlead.model.errors import InvalidOption
from fairlead.model.lifecycle import FINAL, State
from fairlead.model.message import Leased
from tests.support.flows import commit, make, ordered, parts_of, stage
from tests.support.store import (
    ERROR,
    NOW,
    Client,
    codes,
    completed,
    dead,
    drain,
    failed,
    record,
    released,
    snoozed,
    states,
    submit,
)

EACH = 100  # bytes that a task counts for beside what is stored of it
FAILED = len(ERROR.message) + len(ERROR.traceback)


def made(number: int) -> str:
    """An id as Fairlead makes them: such tasks go the short ways."""
    return f"{number:032x}"


def sized(id: str, size: int, tenant: str = "a", queue: str = "default") -> Submission:
    """A task that counts for so much."""
    return submit(id, tenant, queue, body=b"b" * (size - EACH))


async def limit(c: Client, size: int | None, queue: str = "default") -> None:
    await c.configure(QueueChange(queue=queue, max_tenant_bytes=size))


async def has(c: Client, size: int, tenant: str = "a", queue: str = "default") -> None:
    """The tenant has exactly so much: what fills the rest of a limit fits, one byte more does not.

    The broker is left with a limit that lets nothing in.
    """
    await limit(c, size + 1_000, queue)
    (more,) = await c.enqueue(sized("probe", 1_001, tenant, queue))
    assert more == Receipt(id="probe", code="tenant_bytes", limit=size + 1_000)
    assert codes(await c.enqueue(sized("probe", 1_000, tenant, queue))) == ["accepted"]
    assert (await c.cancel("probe")).code == "done"
    assert (await c.delete("probe")).code == "done"
    await limit(c, 0, queue)


# -- enqueue -----------------------------------------------------------------------------------


async def test_what_is_beyond_the_limit_of_a_tenant_is_refused(broker: Store, c: Client) -> None:
    for queue, name in (("made", made), ("chosen", str)):
        await limit(c, 1_000, queue)
        assert await c.enqueue(
            sized(name(1), 600, queue=queue),
            sized(name(2), 401, queue=queue),  # one byte too much
            sized(name(3), 400, queue=queue),
            sized(name(4), EACH, queue=queue),
            sized(name(5), 1_000, "b", queue),
        ) == [
            Receipt(id=name(1), code="accepted", state=State.QUEUED),
            Receipt(id=name(2), code="tenant_bytes", limit=1_000),
            Receipt(id=name(3), code="accepted", state=State.QUEUED),
            Receipt(id=name(4), code="tenant_bytes", limit=1_000),
            Receipt(id=name(5), code="accepted", state=State.QUEUED),
        ]
        assert await states(broker, name(2), name(4)) == [None, None]
        assert (await broker.snapshot(now=NOW)).queues[queue].depth == 3


async def test_a_limit_in_bytes_holds_for_its_own_queue_only(c: Client) -> None:
    await limit(c, 1_000)

    assert codes(await c.enqueue(sized(made(1), 1_000), sized(made(2), 1_000))) == [
        "accepted",
        "tenant_bytes",
    ]
    assert codes(await c.enqueue(sized(made(3), 9_000, queue="other"))) == ["accepted"]


async def test_traces_count_like_bodies(c: Client) -> None:
    await c.enqueue(submit("t", body=b"b" * 10, trace=b"t" * 20))
    await c.enqueue(submit(made(1), body=b"b" * 10, trace=b"t" * 20))
    await has(c, 2 * (EACH + 30))


async def test_large_bodies_and_options_count_like_others(c: Client) -> None:
    await c.enqueue(
        sized(made(1), 50_000),
        submit(made(2), body=b"b" * 50, delay=60.0),
        submit(made(3), body=b"b" * 50, after=[made(2)]),
        submit(made(4), body=b"b" * 50, deadline=60.0),
    )
    await has(c, 50_000 + 3 * (EACH + 50))


async def test_years_of_delay_do_not_take_a_task_out_of_the_count(c: Client) -> None:
    await limit(c, 1_000)
    far = submit("far", body=b"b" * 900, delay=10 * 365 * 86_400.0)
    assert codes(await c.enqueue(far, submit("near"))) == ["accepted", "tenant_bytes"]


async def test_what_is_known_already_is_a_duplicate_also_beyond_the_limit(c: Client) -> None:
    await c.enqueue(sized("t", 1_000))
    await limit(c, 1_000)
    assert codes(await c.enqueue(sized("t", 1_000), sized("u", 1_000))) == [
        "duplicate",
        "tenant_bytes",
    ]


async def test_counts_are_looked_at_before_bytes(c: Client) -> None:
    await c.configure(QueueChange(queue="default", max_tenant_waiting=0, max_tenant_bytes=0))
    assert codes(await c.enqueue(submit("t"), submit(made(1)))) == ["tenant_full"] * 2


async def test_a_limit_of_nothing_lets_nothing_in_and_none_is_no_limit(c: Client) -> None:
    await limit(c, 0)
    assert codes(await c.enqueue(submit(made(1), body=b""))) == ["tenant_bytes"]
    await limit(c, None)
    assert codes(await c.enqueue(sized(made(2), 500_000), sized("t", 500_000))) == ["accepted"] * 2
    with pytest.raises(InvalidOption, match="max_tenant_bytes=-1"):
        await limit(c, -1)


async def test_a_slot_of_a_schedule_is_fired_once_there_is_room(c: Client) -> None:
    await limit(c, 1_000)
    revision = await c.planned("nightly")
    (lease,) = await c.run(sized("t", 1_000))
    slot = Firing(schedule="nightly", slot=NOW, submission=submit("s"), revision=revision)
    assert codes(await c.fire(slot)) == ["tenant_bytes"]
    await c.settle(completed(lease))
    assert codes(await c.fire(slot)) == ["accepted"]


@pytest.mark.slow
async def test_by_default_one_tenant_leaves_room_on_a_small_server(c: Client) -> None:
    body = b"b" * (1024 * 1024 - EACH)
    receipts: list[str] = []
    for start in range(0, 260, 4):
        receipts += codes(
            await c.enqueue(*(submit(made(n), body=body) for n in range(start, start + 4)))
        )
    assert receipts == ["accepted"] * 256 + ["tenant_bytes"] * 4
    assert MAX_TENANT_BYTES == 256 * 1024 * 1024
    assert codes(await c.enqueue(submit("other", "b", body=body))) == ["accepted"]


# -- every way out, and back -------------------------------------------------------------------


async def test_all_that_is_not_finished_counts(broker: Store, c: Client) -> None:
    retried, _ = await c.run(sized("retried", 200), sized("running", 200))
    await c.settle(failed(retried, 60))
    await c.enqueue(
        sized("queued", 200),
        submit("scheduled", body=b"b" * 100, delay=60),
        submit("deferred", body=b"b" * 100, after=["running"]),
    )
    assert await states(broker, "retried", "running", "queued", "scheduled", "deferred") == [
        State.RETRYING,
        State.RUNNING,
        State.QUEUED,
        State.SCHEDULED,
        State.DEFERRED,
    ]
    await has(c, 5 * 200 + FAILED)


Ending = Callable[[Client, Leased], Awaitable[object]]


async def _expire(c: Client, lease: Leased) -> None:
    await c.settle(released(lease))
    await c.broker.promote(now=NOW + 10)


async def _purge(c: Client, lease: Leased) -> None:
    await c.settle(released(lease))
    await c.purge()


async def _cancel_and_recover(c: Client, lease: Leased) -> None:
    await c.cancel(lease.message.id)
    await c.broker.give_back(c.incarnation, [], now=NOW)


async def _crash(c: Client, lease: Leased) -> None:
    for _ in range(3):
        await c.broker.give_back(c.incarnation, None, now=NOW)
        await c.fetch()


ENDINGS: dict[str, Ending] = {
    "completed": lambda c, lease: c.settle(completed(lease)),
    "completed with a result": lambda c, lease: c.settle(completed(lease, b"r" * 100)),
    "completed and not kept": lambda c, lease: c.settle(completed(lease, keep=0.0)),
    "dead": lambda c, lease: c.settle(dead(lease)),
    "dead and not kept": lambda c, lease: c.settle(dead(lease, keep=0.0)),
    "expired": _expire,
    "purged": _purge,
    "cancelled while it ran": _cancel_and_recover,
    "poison": _crash,
}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("id", ["chosen", made(1)])
async def test_whatever_ends_a_task_frees_what_it_counted_for(
    broker: Store, c: Client, id: str, end: Ending
) -> None:
    later = 5.0 if end is _expire else None
    (lease,) = await c.run(submit(id, body=b"b" * 500, deadline=later))
    await end(c, lease)
    found = (await states(broker, id, now=NOW + 10))[0]
    assert found is None or found in FINAL
    await c.enqueue(sized("last", 300), now=NOW + 10)
    await limit(c, 300 + 150)
    late = [sized("one", 151), sized("two", 150)]
    assert codes(await c.enqueue(*late, now=NOW + 10)) == ["tenant_bytes", "accepted"]


async def test_whatever_goes_on_counts_as_before(c: Client) -> None:
    (one,) = await c.run(sized(made(1), 200))
    await c.settle(released(one))
    (one,) = await c.fetch()
    await c.settle(snoozed(one, 5.0))
    await c.broker.promote(now=NOW + 5)
    await c.fetch(now=NOW + 5)
    await c.broker.give_back(c.incarnation, [], now=NOW + 5)
    await c.broker.give_back(c.incarnation, None, now=NOW + 5)
    await has(c, 200)


async def test_what_is_stored_of_a_task_on_its_way_counts(c: Client) -> None:
    (lease,) = await c.run(sized("t", 200))
    ref = LeaseRef("t", c.incarnation, lease.token)
    await c.write(Write(lease=ref, kind="checkpoint", value=b"c" * 1_000))
    await has(c, 1_200)
    await c.write(
        Write(lease=ref, kind="checkpoint", value=b"c" * 10),
        Write(lease=ref, kind="progress", value=b"p" * 20),
    )
    await has(c, 230)
    await c.settle(failed(lease, 1.0))
    await has(c, 230 + FAILED)
    (lease,) = await c.fetch(now=NOW + 1)
    await c.settle(completed(lease), now=NOW + 1)
    await has(c, 0)


async def test_what_completes_in_the_usual_way_makes_room(c: Client) -> None:
    leases = await c.run(*(sized(made(n), 200) for n in range(5)))
    await c.settle(*(completed(lease) for lease in leases[:2]))
    await c.settle(*(completed(lease, b"r" * 50) for lease in leases[2:4]))
    await has(c, 200)
    await c.settle(dead(leases[4]))
    await has(c, 0)


async def test_a_requeued_task_counts_again_and_is_never_refused(broker: Store, c: Client) -> None:
    (lease,) = await c.run(sized("t", 500))
    await c.settle(dead(lease))
    await limit(c, 0)
    assert (await c.requeue("t")).code == "done"
    assert await states(broker, "t") == [State.QUEUED]
    await has(c, 500 + FAILED)


async def test_a_chain_that_ends_for_its_first_link_frees_all_of_it(c: Client) -> None:
    (lease,) = await c.run(sized("first", 200))
    await c.enqueue(
        submit("second", body=b"b" * 100, after=["first"]),
        submit("third", body=b"b" * 100, after=["second"]),
        submit("born-dead", body=b"b" * 100, after=["first"]),
    )
    await c.settle(dead(lease))
    await drain(c.broker)
    await c.enqueue(submit("late", body=b"b" * 100, after=["first"]))  # dead from the first moment
    await has(c, 0)


# -- flows -------------------------------------------------------------------------------------


async def test_the_members_of_a_flow_count_from_the_moment_they_are_written(
    broker: Store, c: Client
) -> None:
    await limit(c, 1_000, "small")
    first, second = parts_of("f", *(sized(f"t{i}", 300, queue="small") for i in range(3)), size=2)
    assert await stage(c, first) == ["staged"]

    assert await c.enqueue(sized("x", 401, queue="small")) == [
        Receipt(id="x", code="tenant_bytes", limit=1_000)
    ]
    assert codes(await c.enqueue(sized(made(1), 401, queue="small"))) == ["tenant_bytes"]
    assert await stage(c, second) == ["staged"]
    assert (await commit(c, "f")).code == "committed"
    await has(c, 900, queue="small")
    leases = await c.fetch(3, ["small"])
    await c.settle(*map(completed, leases))
    await has(c, 0, queue="small")


async def test_a_flow_that_does_not_fit_is_refused_as_a_whole(broker: Store, c: Client) -> None:
    await limit(c, 1_000, "small")
    await c.enqueue(sized("there", 200, queue="small"))
    members = [sized(f"t{i}", 300, queue="small") for i in range(2)]
    others = [sized(f"o{i}", 300, "b", "small") for i in range(2)]
    first, second = parts_of("f", *others, *members, sized("t2", 201, queue="small"), size=4)
    assert await stage(c, first) == ["staged"]
    assert await broker.stage(c.call(), second, now=NOW) == Staged(
        code="tenant_bytes", limit=1_000, detail="small"
    )
    assert await broker.flows(["f"], now=NOW) == [None]
    await has(c, 200, queue="small")
    await has(c, 0, "b", "small")
    await limit(c, 1_000, "small")
    await make(c, "f", *others, *members, sized("t2", 200, queue="small"))
    await has(c, 1_000, queue="small")


async def test_a_flow_into_a_queue_that_is_not_there_has_the_default(c: Client) -> None:
    assert await stage(c, *parts_of("f", sized("t", 5_000, queue="new"))) == ["staged"]
    await limit(c, 6_000, "new")
    assert codes(await c.enqueue(sized("x", 1_001, queue="new"))) == ["tenant_bytes"]
    assert codes(await c.enqueue(sized("x", 1_000, queue="new"))) == ["accepted"]
    assert (await commit(c, "f")).code == "committed"


@pytest.mark.parametrize("how", ["refused", "anew", "late", "cancelled", "incomplete"])
async def test_bytes_that_a_flow_does_not_need_are_given_back(c: Client, how: str) -> None:
    await limit(c, 1_000, "small")
    members = (sized("a", 300, queue="small"), sized("b", 300, queue="small"))
    first, second = parts_of("f", *members, size=1)
    assert await stage(c, first) == ["staged"]
    assert codes(await c.enqueue(sized("x", 701, queue="small"))) == ["tenant_bytes"]
    now = NOW
    if how == "refused":
        assert await stage(c, msgspec.structs.replace(second, number=7)) == ["incomplete"]
    elif how == "anew":
        assert await stage(c, *parts_of("f", submit("z"))) == ["staged"]
    elif how == "cancelled":
        assert await ordered(c, "f", "cancel") == (1, False)
    elif how == "incomplete":
        assert (await commit(c, "f")).code == "incomplete"
    else:
        now = NOW + FLOW_PATIENCE
        await c.broker.tidy(now=now)
    assert codes(await c.enqueue(sized("x", 1_000, queue="small"), now=now)) == ["accepted"]


async def test_members_count_through_cancel_and_retry_of_their_flow(c: Client) -> None:
    await make(c, "f", *(sized(f"t{i}", 300) for i in range(3)))
    leases = await c.fetch(3)
    await c.settle(completed(leases[0]), dead(leases[1]), dead(leases[2]))
    await has(c, 0)
    assert (await ordered(c, "f", "retry"))[0] == 2
    await drain(c.broker)
    await has(c, 2 * (300 + FAILED))
    assert (await ordered(c, "f", "cancel"))[0] == 2
    await has(c, 0)


async def test_a_member_whose_id_was_taken_meanwhile_leaves_its_room(c: Client) -> None:
    assert await stage(c, *parts_of("f", sized("t", 300), sized("u", 300))) == ["staged"]
    await c.enqueue(sized("t", 200))
    assert (await commit(c, "f")).code == "committed"
    await has(c, 500)


# -- XCom values -------------------------------------------------------------------------------


def value_bytes(value: bytes, writer: str) -> int:
    """What an XCom value counts for."""
    return EACH + 10 + len(writer) + len(value)


async def fill_xcom(c: Client, writer: LeaseRef) -> tuple[list[Settled], int]:
    """Push values until one is refused; the last answer, and the room that is left."""
    value = b"v" * 65_000
    many, rest = divmod(MAX_XCOM_BYTES, value_bytes(value, writer.id))
    for start in range(0, many, 100):
        answers = await c.write(
            *(
                Write(lease=writer, kind="xcom", key=f"k{n}", value=value)
                for n in range(start, min(start + 100, many))
            )
        )
        assert set(answers) == {"applied"}
    return await c.write(Write(lease=writer, kind="xcom", key="more", value=value)), rest


async def test_xcom_values_of_a_tenant_have_so_much_room(broker: Store, c: Client) -> None:
    one, other = await c.run(submit("one"), submit("other", "b"))
    writer = c.ref(one)
    answers, rest = await fill_xcom(c, writer)
    assert answers == ["full"]
    assert await broker.pull("a", ["more", "k0"], now=NOW) == [None, b"v" * 65_000]

    fits = b"v" * (rest - value_bytes(b"", "one"))
    push = [
        Write(lease=writer, kind="xcom", key="more", value=fits + b"v"),  # one byte too much
        Write(lease=writer, kind="xcom", key="more", value=fits),
        Write(lease=writer, kind="xcom", key="k0", value=b"w" * 65_000),  # in the place of another
        Write(lease=writer, kind="progress", value=b"half"),
        Write(lease=c.ref(other), kind="xcom", key="more", value=fits),
    ]
    assert await c.write(*push) == ["full", "applied", "applied", "applied", "applied"]
    less = Write(lease=writer, kind="xcom", key="k0", value=b"w" * 64_999)
    more = Write(lease=writer, kind="xcom", key="k1", value=b"w" * 65_001)
    assert await c.write(more, less, more, more) == ["full", "applied", "applied", "applied"]


async def test_xcom_values_that_are_over_make_room(broker: Store, c: Client) -> None:
    (lease,) = await c.run(submit("one"))
    writer = c.ref(lease)
    answers, _ = await fill_xcom(c, writer)
    assert answers == ["full"]
    brief = Write(lease=writer, kind="xcom", key="k0", value=b"v" * 65_000, ttl=1.0)
    more = Write(lease=writer, kind="xcom", key="more", value=b"v" * 65_000)
    assert await c.write(brief, more) == ["applied", "full"]
    assert await c.write(more, now=NOW + 1) == ["full"], "it is there until it is tidied away"
    await broker.tidy(now=NOW + 1)
    assert await c.write(more, now=NOW + 1) == ["applied"]


# -- anything in any order ---------------------------------------------------------------------


async def _step(rng: random.Random, c: Client, names: list[str], leases: list[Leased]) -> None:
    """Do one thing to some tasks."""
    kind = rng.choice(["enqueue", "enqueue", "fetch", "settle", "settle", "write", "order", "more"])
    lease = leases.pop(rng.randrange(len(leases))) if leases and kind == "settle" else None
    if kind == "enqueue":
        new = [
            made(len(names) + n) if rng.random() < 0.5 else f"n{len(names) + n}" for n in range(4)
        ]
        known = [*names, *new]
        after = [rng.choice(names)] if names and rng.random() < 0.3 else []
        await c.enqueue(
            *(
                submit(
                    id,
                    rng.choice("ab"),
                    body=b"b" * rng.randrange(300),
                    after=after,
                    uses=rng.random() < 0.5,
                    delay=rng.choice([0.0, 0.0, 5.0]),
                    policy=rng.choice(["dead", "cancel", "run"]),
                )
                for id in new
            )
        )
        names[:] = known
    elif kind == "fetch":
        leases += await c.fetch(rng.randrange(1, 4))
    elif lease is not None:
        outcomes = [completed(lease), completed(lease, b"r" * 50), dead(lease), failed(lease)]
        await c.settle(rng.choice([*outcomes, released(lease)]))
    elif kind == "write" and leases:
        ref = c.ref(rng.choice(leases))
        size = rng.randrange(100)
        await c.write(
            Write(lease=ref, kind=rng.choice(["progress", "checkpoint"]), value=b"v" * size)
        )
    elif kind == "order" and names:
        await rng.choice([c.cancel, c.requeue, c.delete])(rng.choice(names))
    elif kind == "more":
        await c.broker.deliver(now=NOW)
        if rng.random() < 0.2:
            await c.broker.give_back(c.incarnation, None, now=NOW)
            leases.clear()


@pytest.mark.parametrize("seed", range(6))
async def test_a_tenant_has_what_its_unfinished_tasks_count_for(
    broker: Store, c: Client, seed: int
) -> None:
    rng = random.Random(seed)
    names: list[str] = []
    leases: list[Leased] = []
    await c.configure(QueueChange(queue="default", max_tenant_pinned_bytes=rng.choice([0, 700])))
    for _ in range(60):
        await _step(rng, c, names, leases)
    sums = {"a": 0, "b": 0}
    for id in names:
        if (await states(broker, id))[0] in {None, *FINAL}:
            continue
        task = await record(broker, id)
        parts = (task.message.body, task.message.trace, task.progress, task.checkpoint)
        size = sum(len(part) for part in parts if part is not None)
        error = 0 if task.error is None else len(task.error.message) + len(task.error.traceback)
        sums[task.message.tenant] += EACH + size + error
    assert all(sums.values()), "the run left nothing to count"
    for tenant, size in sums.items():
        await has(c, size, tenant)
