"""What a look at one task costs, however many its tenant has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fairlead.broker.memory import MemoryBroker
from fairlead.broker.memory.records import Task
from fairlead.broker.standing import MAX_AHEAD
from tests.support.store import NOW, Client, submit

Entry = list[Task | None]


class Watched(deque[Entry]):
    """Counts what is looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in super().__iter__():
            Watched.seen += 1
            yield entry


async def test_a_long_line_is_not_walked_to_its_end() -> None:
    broker = MemoryBroker(test_clock=True)
    c = Client(broker)
    for i in range(0, 25_000, 100):
        await c.enqueue(*(submit(f"t{i + k}") for k in range(100)))
    tenant = broker.shard.queues["default"].tenants["a"]
    tenant.levels = tuple(map(Watched, tenant.levels))
    Watched.seen = 0
    places = [await broker.standing(f"t{n}", now=NOW) for n in (0, 7, MAX_AHEAD + 1, 24_999)]
    assert [each and each.tasks_ahead for each in places] == [0, 7, MAX_AHEAD, MAX_AHEAD]
    assert 0 < Watched.seen <= len(places) * 2 * MAX_AHEAD
    for n in range(5):
        await c.cancel(f"t{n}")
    found = await broker.standing("t7", now=NOW)
    assert found is not None
    assert found.tasks_ahead == 2
