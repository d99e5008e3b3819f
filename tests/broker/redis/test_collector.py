"""What calls leave behind for Lua's collector is freed by many of them, and not by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
import redis

from fairlead.broker.redis import RedisBroker, linker
from fairlead.model.errors import FairleadError
from tests.support.long_way import copied_lua
from tests.support.servers import Kind, binary, server
from tests.support.store import Client, completed, submit

BATCH = 100
MOST = 500  # tasks in a call
CALLS = 150
LEAST = 0.4  # of all there is: one that frees so much has freed what many left behind
OTHERS = """#!lua name=others
redis.register_function('litter', function(keys, args)
  for i = 1, tonumber(args[1]) do local text = ('x'):rep(1000) .. i end
end)
"""
WITHOUT = ("return collectgarbage end", "return not_there end")


async def heaps(kind: Kind) -> list[float]:
    """What Lua used behind each round of calls, in MB, without the first ones."""
    found: list[float] = []
    with server(kind) as running:
        broker = RedisBroker(running.url, test_clock=True, lua=copied_lua())
        c = Client(broker)
        with redis.Redis.from_url(running.url) as asked:
            for call in range(CALLS):
                ids = [f"{call * BATCH + n:032x}" for n in range(BATCH)]
                await c.enqueue(*(submit(id, f"t{n % 10}") for n, id in enumerate(ids)))
                await c.settle(*(completed(lease) for lease in await c.fetch(BATCH)))
                found.append(int(asked.info("memory")["used_memory_vm_functions"]) / 1e6)
        assert await broker.audit() == []
        await broker.close()
    return found[CALLS // 3 :]


def most_freed(found: list[float]) -> float:
    """The largest part of all there was that a round freed."""
    return max((one - other) / one for one, other in pairwise(found))


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_no_call_frees_what_many_left_behind(kind: Kind) -> None:
    if binary(kind) is None:
        pytest.skip(f"there is no {kind} on this machine")
    found = await heaps(kind)
    assert max(found) < 8.0
    assert most_freed(found) < LEAST


async def test_calls_that_end_with_an_error_leave_nothing_behind() -> None:
    with server("valkey") as running:
        broker = RedisBroker(running.url, test_clock=True)
        c = Client(broker)
        await c.enqueue(submit("f" * 32))
        with redis.Redis.from_url(running.url) as asked:
            asked.delete("fl1:{0}:tasks")
            asked.set("fl1:{0}:tasks", "no hash")
            for call in range(2 * CALLS):
                ids = [f"{call * MOST + n:032x}" for n in range(MOST)]
                with pytest.raises(FairleadError):
                    await c.enqueue(*(submit(id) for id in ids))
                assert int(asked.info("memory")["used_memory_vm_functions"]) < 5e6
        await broker.close()


async def test_a_server_may_keep_its_collector_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    closing: str = linker._CLOSING
    assert WITHOUT[0] in closing
    monkeypatch.setattr(linker, "_CLOSING", closing.replace(*WITHOUT))
    assert most_freed(await heaps("valkey")) > LEAST


async def test_what_others_left_behind_an_error_of_ours_is_not_freed_by_one_call() -> None:
    with server("valkey") as running:
        broker = RedisBroker(running.url, test_clock=True)
        c = Client(broker)
        await c.enqueue(submit("f" * 32))
        with redis.Redis.from_url(running.url) as asked:
            asked.function_load(OTHERS)
            asked.delete("fl1:{0}:tasks")
            asked.set("fl1:{0}:tasks", "no hash")
            with pytest.raises(FairleadError):
                await c.enqueue(submit("e" * 32), submit("d" * 32))
            asked.delete("fl1:{0}:tasks")
            asked.fcall("litter", 0, 100_000)

            def used() -> int:
                return int(asked.info("memory")["used_memory_vm_functions"])

            left = used()
            assert left > 50e6  # nothing frees it meanwhile
            await c.enqueue(submit("c" * 32))
            assert used() > 0.1 * left  # without the limit nothing would be
            for call in range(CALLS):
                await c.enqueue(submit(f"{call:032x}"))
            assert used() < 8e6
        await broker.close()
