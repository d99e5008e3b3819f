"""One message that somebody deleted from the server: its task ends in view, the others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, Fetch
from fairlead.model.lifecycle import State
from tests.broker.redis.sample import PREFIX
from tests.support.servers import Running, server
from tests.support.store import NOW, Client, completed, dead, ids, record, submit


@pytest.fixture
async def damaged() -> AsyncIterator[tuple[Running, Client]]:
    with server() as running:
        broker = RedisBroker(running.url, test_clock=True)
        yield running, Client(broker)
        await broker.close()


def lose(running: Running, id: str) -> None:
    assert running.admin("HDEL", f"{PREFIX}tasks", id) == 1


@pytest.mark.parametrize(
    ("options", "until"), [({"deadline": 60.0}, 0), ({"delay": 5.0}, 5)], ids=["deadline", "delay"]
)
async def test_a_task_without_its_message_is_lent_without_a_body(
    damaged: tuple[Running, Client], options: dict[str, float], until: int
) -> None:
    running, c = damaged
    await c.enqueue(submit("lost", body=b"body", **options), submit("other"))  # type: ignore[arg-type]
    lose(running, "lost")
    now = NOW + until
    leases = await c.fetch(2, now=now)
    assert sorted(ids(leases)) == ["lost", "other"]
    bodies = {lease.message.id: lease.message.body for lease in leases}
    assert bodies["lost"] == b""
    again = await c.broker.exchange(
        Call(c.incarnation, c.number), fetch=Fetch(queues=("default",), max=2), now=now
    )
    assert sorted(ids(again.leased)) == ["lost", "other"]
    found = await record(c.broker, "lost", now=now)
    assert (found.state, found.message.tenant) == (State.RUNNING, leases[0].message.tenant)
    ends = [dead(x) if x.message.id == "lost" else completed(x) for x in leases]
    assert await c.settle(*ends, now=now) == ["applied"] * 2
    assert (await record(c.broker, "lost", now=now)).state is State.DEAD
    await c.delete("lost", now=now)
    assert await c.broker.audit() == []


async def test_a_running_task_without_its_message_goes_back(
    damaged: tuple[Running, Client],
) -> None:
    running, c = damaged
    await c.enqueue(submit("lost"), submit("other"))
    assert len(await c.fetch(2)) == 2
    lose(running, "lost")
    await c.broker.give_back(c.incarnation, now=NOW)
    assert ids(await c.fetch(2)) == ["lost", "other"]
    await c.cancel("lost")
    assert (await record(c.broker, "lost")).cancelling
