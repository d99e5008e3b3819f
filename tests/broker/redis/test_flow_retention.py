"""Finished flows are forgotten when there are too many; the limits are large, so they are poked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker import Store, flows
from fairlead.broker.memory import MemoryBroker, flow_state
from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.scripts import load
from tests.broker.redis.sample import PREFIX
from tests.support.flows import flow_record, make, ordered
from tests.support.servers import Running
from tests.support.store import NOW, Client, complete_all, completed, dead, drain, submit


@pytest.fixture
async def on_server(valkey: Running) -> AsyncIterator[RedisBroker]:
    valkey.admin("FLUSHALL")
    store = RedisBroker(valkey.url, test_clock=True)
    try:
        yield store
    finally:
        await store.close()


async def finished(c: Client, *names: str, size: int = 1) -> None:
    for n, name in enumerate(names):
        await make(c, name, *(submit(f"{name}-{i}") for i in range(size)), now=NOW + n)
        assert await complete_all(c, now=NOW + n) == size


async def known(store: Store, *names: str) -> list[bool]:
    return [found is not None for found in await store.flows(names, now=NOW)]


def test_the_limits_of_the_scripts_are_those_of_the_contract() -> None:
    source = load("commit").source.decode()
    assert f"meta.flows_kept <= {flows.MAX_FLOWS_KEPT}" in source
    assert f"meta.members_kept <= {flows.MAX_MEMBERS_KEPT}" in source
    assert f"PATIENCE = {flows.FLOW_PATIENCE:.0f}" in load("stage").source.decode()


async def test_the_oldest_flows_go_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_state, "MAX_FLOWS_KEPT", 3)
    store = MemoryBroker(test_clock=True)
    await finished(Client(store), "a", "b", "c", "d", "e")
    assert await known(store, "a", "b", "c", "d", "e") == [False, False, True, True, True]
    assert await store.audit(now=NOW) == []


async def test_the_oldest_flows_go_when_they_have_too_many_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_state, "MAX_MEMBERS_KEPT", 25)
    store = MemoryBroker(test_clock=True)
    await finished(Client(store), "a", "b", "c", size=10)
    assert await known(store, "a", "b", "c") == [False, True, True]
    assert await store.audit(now=NOW) == []


@pytest.mark.parametrize("field", ["flows_kept", "members_kept"])
async def test_each_flow_that_ends_on_a_server_pushes_at_most_two_out(
    on_server: RedisBroker, valkey: Running, field: str
) -> None:
    c = Client(on_server)
    await finished(c, "a", "b", "c", "d")
    valkey.set_numbers(**{field: valkey.numbers()[field] + 500_000})  # as if there were more
    await make(c, "e", submit("e-0"), now=NOW + 9)
    assert await complete_all(c, now=NOW + 9) == 1
    assert await known(on_server, "a", "b", "c", "d", "e") == [False, False, True, True, True]
    valkey.set_numbers(**{field: valkey.numbers()[field] - 500_000})
    assert (await flow_record(on_server, "e", now=NOW + 9)).completed == 1
    assert (await on_server.members("c", now=NOW + 9)) == ["c-0"]
    assert await on_server.audit(now=NOW + 9) == []


async def test_what_a_member_reads_is_written_once_however_often_it_is_retried(
    on_server: RedisBroker, valkey: Running
) -> None:
    c, parents = Client(on_server), [f"p{i:02}" for i in range(60)]
    await c.settle(*map(completed, await c.run(*map(submit, parents))))
    await make(c, "f", submit("wide", after=parents, uses=True))
    for _ in range(2):
        await c.settle(*map(dead, await c.fetch(1)))
        await drain(on_server)
        assert (await ordered(c, "f", "retry"))[0] == 1
        await drain(on_server)
        text = valkey.admin("HGET", f"{PREFIX}uses", "wide")
        assert sorted(use.split(b"\x1f")[0].decode() for use in text.split(b"\x1d")) == parents
