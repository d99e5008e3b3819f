"""A call moves so many bytes at most, however many things it is asked for."""

from __future__ import annotations

import pytest

from fairlead.broker import Store
from fairlead.broker.records import BODY_BEGIN
from fairlead.broker.requests import MAX_BYTES, Alter, Call, Fetch
from fairlead.model.lifecycle import State
from fairlead.model.message import Body, task_name
from tests.support.store import NOW, Client, codes, completed, ids, record, states, submit

MIB = 1024 * 1024
ALL = Fetch(queues=("default",), max=128)


def name(n: int) -> str:
    """An id as Fairlead makes them: tasks with others never go the short ways."""
    return f"{n:032x}"


async def mixed(c: Client, queue: str, first: int) -> None:
    """Tasks of three tenants, one of which has large ones among its small ones."""
    large = b"L" * (MIB - 100)
    for n in range(12):
        sizes = {"a": b"a", "b": large if n % 3 else b"b", "c": b"c" * 2000}
        for i, (tenant, body) in enumerate(sizes.items()):
            await c.enqueue(submit(name(first + 3 * n + i), tenant, queue, body=body))


async def test_the_task_that_fills_4_mib_is_the_last_of_a_fetch(c: Client) -> None:
    for n in range(6):
        await c.enqueue(submit(name(n), body=b"x" * MIB))
    first = await c.exchange(fetch=ALL)
    second = await c.exchange(fetch=ALL)

    assert ids(first.leased) == [name(n) for n in range(4)]
    assert first.more
    assert ids(second.leased) == [name(n) for n in range(4, 6)]
    assert not second.more
    assert [len(lease.message.body) for lease in first.leased] == [MIB] * 4


async def test_a_trace_counts_as_its_body_does(c: Client) -> None:
    for n in range(5):
        await c.enqueue(submit(name(n), body=b"x" * (MIB - 100), trace=b"t" * 100))
    assert len(await c.fetch(128)) == MAX_BYTES // MIB


@pytest.mark.parametrize("size", [32 * 1024, 32 * 1024 - 1, 32 * 1024 + 1])
async def test_small_tasks_are_lent_128_at_a_time(c: Client, size: int) -> None:
    for start in range(0, 130, 130 // 2):
        await c.enqueue(*(submit(name(start + n), body=b"x" * size) for n in range(130 // 2)))
    assert len(await c.fetch(128)) == 128


async def test_fetches_that_stop_for_their_size_give_the_sequence_of_fetches_of_one(
    c: Client,
) -> None:
    await mixed(c, "many", 0)
    await mixed(c, "one", 100)
    sizes, found, single = [], [], []
    while leases := await c.fetch(128, ["many"]):
        sizes.append(sum(len(lease.message.body) for lease in leases))
        found += ids(leases)
    while leases := await c.fetch(1, ["one"]):
        single += ids(leases)
    assert [int(id, 16) + 100 for id in found] == [int(id, 16) for id in single]
    assert len(found) == 36
    assert [size // MIB for size in sizes] == [4, 4, 0]


async def test_a_repeated_exchange_lends_the_same_tasks_again(broker: Store, c: Client) -> None:
    for n in range(6):
        await c.enqueue(submit(name(n), body=b"x" * MIB))
    first = await c.exchange(fetch=ALL)
    again = await broker.exchange(Call("w1", c.number), fetch=ALL, now=NOW)
    assert again == first


async def test_a_large_task_goes_the_same_way_as_a_small_one(broker: Store, c: Client) -> None:
    large = submit(name(1), body=b"x" * MIB)
    assert codes(await c.enqueue(large)) == ["accepted"]
    assert codes(await c.enqueue(large)) == ["duplicate"]
    other = submit(name(1), body=b"y" * MIB)
    shorter = submit(name(1), body=b"x" * (MIB - 1))
    small = submit(name(1), body=b"x")
    assert codes(await c.enqueue(other, shorter, small)) == ["conflict"] * 3
    (lease,) = await c.fetch(1)
    assert lease.message == large.message
    assert await c.settle(completed(lease, b"r" * MIB)) == ["applied"]
    found = await record(broker, name(1))
    assert (found.state, found.result, found.message) == (
        State.COMPLETED,
        b"r" * MIB,
        large.message,
    )


# -- cancel and purge -------------------------------------------------------------------------


async def bodies(broker: Store, *names: str) -> list[int]:
    return [len((await record(broker, each)).message.body) for each in names]


async def test_cancelled_tasks_drop_their_bodies_up_to_1_mib_in_a_call(
    broker: Store, c: Client
) -> None:
    names = [name(n) for n in range(6)]
    sizes = [400_000, 600_000, 600_000, 10, MIB, 10]
    for each, size in zip(names, sizes, strict=True):
        await c.enqueue(submit(each, body=b"x" * size))
    await c.alter(*(Alter(id=each, action="cancel") for each in names[:4]))
    assert await bodies(broker, *names[:4]) == [0, 0, 600_000, 10]
    await c.cancel(names[4])
    await c.cancel(names[5])
    assert await bodies(broker, *names[4:]) == [0, 0]
    assert await states(broker, *names) == [State.CANCELLED] * 6

    same = [submit(each, body=b"x" * size) for each, size in zip(names, sizes, strict=True)]
    others = [submit(each, body=b"y" * size) for each, size in zip(names, sizes, strict=True)]
    assert codes(await c.enqueue(*same)) == ["duplicate"] * 6
    assert codes(await c.enqueue(*others)) == ["conflict"] * 6


async def test_purge_ends_large_tasks_50_at_a_time_too(broker: Store, c: Client) -> None:
    for n in range(60):
        await c.enqueue(submit(name(n), body=b"x" * 100_000))
    first = await c.purge()
    second = await c.purge()
    assert ((first.count, first.more), (second.count, second.more)) == ((50, True), (10, False))


# -- reading ----------------------------------------------------------------------------------


async def ended(c: Client, count: int) -> list[str]:
    """Completed tasks with a body and a result of a MiB each."""
    names = [name(n) for n in range(count)]
    for each in names:
        body = Body(task="emails.send", arguments=b"x" * (MIB - 1000)).encode()
        await c.enqueue(submit(each, body=body))
    while leases := await c.fetch(128):
        for lease in leases:
            await c.settle(completed(lease, b"r" * MIB))
    return names


async def test_find_returns_all_of_many_large_tasks(broker: Store, c: Client) -> None:
    names = await ended(c, 6)
    found = await broker.find([names[0], "unknown", *names[1:]], now=NOW)
    assert [each.message.id if each else None for each in found] == [names[0], None, *names[1:]]
    assert {len(each.result or b"") for each in found if each} == {MIB}
    assert {len(each.message.body) > MIB - 1000 for each in found if each} == {True}


async def test_find_reads_what_it_is_asked_for(broker: Store, c: Client) -> None:
    (id,) = await ended(c, 1)
    (whole,) = await broker.find([id], now=NOW)
    (result,) = await broker.find([id], parts="result", now=NOW)
    (info,) = await broker.find([id], parts="info", now=NOW)
    assert whole is not None
    assert result is not None
    assert info is not None
    assert (result.result, info.result) == (whole.result, None)
    for short in (result, info):
        assert short.message.body == whole.message.body[:BODY_BEGIN]
        assert task_name(short.message.body) == "emails.send"
        assert (short.state, short.finished_at) == (whole.state, whole.finished_at)


async def test_a_page_has_neither_bodies_nor_results(broker: Store, c: Client) -> None:
    names = await ended(c, 5)
    page = await broker.page(state=State.COMPLETED, now=NOW)
    assert sorted(each.message.id for each in page.tasks) == names
    assert {each.result for each in page.tasks} == {None}
    assert {len(each.message.body) for each in page.tasks} == {BODY_BEGIN}
    assert {task_name(each.message.body) for each in page.tasks} == {"emails.send"}
