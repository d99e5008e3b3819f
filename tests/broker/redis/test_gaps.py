"""Entries of cancelled tasks do not pile up in lines that nobody fetches from."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import MAX_STEP, Alter, TenantChange
from fairlead.runtime.ids import new_id
from tests.support.servers import Running
from tests.support.store import NOW, Client, ids, submit


@pytest.fixture
async def broker(valkey: Running) -> AsyncIterator[RedisBroker]:
    store = RedisBroker(valkey.url, test_clock=True)
    yield store
    await store.close()


async def test_tidy_closes_the_gaps_of_a_tenant_that_never_runs(
    broker: RedisBroker, valkey: Running
) -> None:
    c = Client(broker)
    await c.configure(TenantChange(tenant="a", paused=True))
    await c.enqueue(*[submit(f"first{i}") for i in range(300)])
    for batch in range(6):  # somebody keeps asking for the same work anew
        names = [f"b{batch}-{i}" for i in range(400)]
        await c.enqueue(*map(submit, names))
        orders = [Alter(id=name, action="cancel") for name in names[:-1]]
        for start in range(0, len(orders), MAX_STEP):
            await c.alter(*orders[start : start + MAX_STEP])
    key = "fl1:{0}:line:default:2:a"
    assert valkey.admin("LLEN", key) == 300 + 6 * 400

    moved = await broker.tidy(now=NOW)
    while moved.more:
        moved = await broker.tidy(now=NOW)

    assert valkey.admin("LLEN", key) <= 2 * 306 + 1_000  # fewer gaps are not worth the work
    assert await broker.audit(now=NOW) == []
    await c.configure(TenantChange(tenant="a", paused=False))
    left = [f"first{i}" for i in range(300)] + [f"b{batch}-399" for batch in range(6)]
    assert ids([lease for _ in range(12) for lease in await c.fetch(128)]) == left


LINES = [f"fl1:{{0}}:line:default:{level}:a" for level in range(4)]


def entries(valkey: Running) -> int:
    return sum(int(valkey.admin("LLEN", key)) for key in LINES)


async def cancel(c: Client, names: Sequence[str]) -> None:
    for start in range(0, len(names), MAX_STEP):
        orders = [Alter(id=name, action="cancel") for name in names[start : start + MAX_STEP]]
        assert {answer.code for answer in await c.alter(*orders)} == {"done"}


async def step(broker: RedisBroker, valkey: Running) -> bool:
    """Tidy once; the audit must find nothing wrong, and no more may go than a call looks at."""
    before = entries(valkey)
    more = (await broker.tidy(now=NOW)).more
    assert before - 500 <= entries(valkey) <= before
    return more


@pytest.mark.parametrize("made", [True, False], ids=["made", "chosen"])
async def test_gaps_are_closed_step_by_step_behind_tasks_that_wait_and_while_some_are_fetched(
    broker: RedisBroker, valkey: Running, made: bool
) -> None:
    c = Client(broker)
    names = [new_id() if made else f"t{i:04}" for i in range(4_000)]
    for start in range(0, len(names), 400):
        part = names[start : start + 400]
        await c.enqueue(*(submit(name, level=2 + (start // 400) % 2) for name in part))
    gone = {name for i, name in enumerate(names) if i >= 600 and i % 5}
    await cancel(c, [name for name in names if name in gone])
    assert entries(valkey) == len(names)

    fetched, steps = ids(await c.fetch(20)), 1
    while await step(broker, valkey):
        steps += 1
        assert steps < 20, "it does not come any further"
        if steps % 3 == 0:
            fetched += ids(await c.fetch(20))
        assert await broker.audit(now=NOW) == []

    assert steps >= 4_000 / 500
    left = [name for name in names if name not in gone and name not in fetched]
    assert len(left) <= entries(valkey) <= len(left) + 100  # what moved while it was looked at
    while more := ids(await c.fetch(128)):
        fetched += more
    assert len(fetched) == len(set(fetched))
    assert set(fetched) == set(names) - gone
    for level in (0, 1):  # each level in its order
        own = [name for i, name in enumerate(names) if (i // 400) % 2 == level]
        assert [name for name in fetched if name in set(own)] == [n for n in own if n not in gone]


async def test_entries_of_earlier_tasks_with_the_same_id_are_gaps(
    broker: RedisBroker, valkey: Running
) -> None:
    c = Client(broker)
    await c.configure(TenantChange(tenant="a", paused=True))
    await c.enqueue(submit("first"))
    again = [f"again{i}" for i in range(50)]
    for _ in range(25):
        await c.enqueue(*map(submit, again))
        await cancel(c, again)
        await c.alter(*(Alter(id=name, action="delete") for name in again))
    await c.enqueue(*map(submit, again))
    assert entries(valkey) == 1 + 26 * 50

    while await step(broker, valkey):
        pass

    assert entries(valkey) == 1 + 50
    await c.configure(TenantChange(tenant="a", paused=False))
    assert ids(await c.fetch(128)) == ["first", *again]


async def test_closing_gaps_reads_few_messages_at_a_time_however_large_they_are(
    broker: RedisBroker, valkey: Running
) -> None:
    c = Client(broker)
    names = [f"t{i}" for i in range(1_600)]
    for start in range(0, len(names), 100):
        body = b"x" * 20_000
        await c.enqueue(*(submit(name, body=body) for name in names[start : start + 100]))
    await cancel(c, names[200:1_590])  # the first 4 MB have to be read, to know whether they stay

    def in_scripts() -> int:
        said = str(valkey.admin("INFO", "memory"))
        return int(re.findall(r"used_memory_vm_total\D+(\d+)", said)[0])

    # What calls leave is collected every now and then, so each is judged by what it adds.
    before, most = in_scripts(), 0
    while await step(broker, valkey):
        after = in_scripts()
        most, before = max(most, after - before), after
    assert entries(valkey) == 210
    assert 0 < most < 1_000_000
