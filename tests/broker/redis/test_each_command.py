"""Each server command of each function is made to fail in turn: nothing is left half done.

A function reads and computes first. Then it does the few things that a server may still refuse, and
takes them back if it does. Only then it writes, with commands that cannot fail once the types of
their keys are known. So every command before the first of those writes is made to fail here, and
behind it there may be nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fairlead.broker.redis.scripts import libraries
from fairlead.model.errors import Refused
from tests.broker.redis.sample import PREFIX
from tests.broker.redis.test_faults_inside import PROBES, TWOFOLD, Shard, numbered, opened
from tests.support.servers import Running, server
from tests.support.store import Client, submit

# Writes that succeed whenever their keys have the right type.
CERTAIN = frozenset(
    {
        *("HSET", "HDEL", "ZADD", "ZREM", "SADD", "SREM", "RPUSH", "LPUSH", "LPOP", "RPOP"),
        *("LTRIM", "UNLINK", "XTRIM", "RENAMENX", "ZREMRANGEBYRANK"),
    }
)

READS = frozenset(
    {
        *("HGET", "HMGET", "HLEN", "HSCAN", "HEXISTS", "HSTRLEN", "HRANDFIELD", "HGETALL", "HKEYS"),
        *("ZREVRANGE", "ZREVRANGEBYSCORE", "ZRANGEBYLEX"),
        *("ZRANGE", "ZRANGEBYSCORE", "ZSCORE", "ZMSCORE", "ZCARD", "ZCOUNT", "ZRANK", "ZSCAN"),
        *("LRANGE", "LLEN", "LINDEX", "SCARD", "SMEMBERS", "SISMEMBER", "SRANDMEMBER", "SSCAN"),
        *("XRANGE", "XREVRANGE", "XLEN", "XINFO", "TYPE", "EXISTS", "TIME", "LPOS", "SMISMEMBER"),
    }
)

# Counts commands from 1 on, writes each down, and lets the one fail whose number is in `fault`.
COUNTED = """
local redis = (function()
  local function step(how, command, key)
    redis.call('RPUSH', 'trace', how .. ' ' .. string.upper(command) .. ' ' .. (key or ''))
    return redis.call('INCR', 'count') == tonumber(redis.call('GET', 'fault') or 0)
  end
  local counted = {
    error_reply = function(text) return redis.error_reply(text) end,
    sha1hex = function(text) return redis.sha1hex(text) end,
  }
  function counted.call(command, ...)
    if step('call', command, ...) then error({ err = 'ERR made to fail' }) end
    return redis.call(command, ...)
  end
  function counted.pcall(command, ...)
    if step('pcall', command, ...) then return { err = 'ERR made to fail' } end
    return redis.pcall(command, ...)
  end
  function counted.register_function(f)
    local callback = f.callback
    f.callback = function(keys, args)
      redis.call('RPUSH', 'trace', 'begin')
      return callback(keys, args)
    end
    return redis.register_function(f)
  end
  return counted
end)()
"""
OURS = {b"trace", b"count", b"fault"}


@pytest.fixture(scope="module")
def shard() -> Iterator[tuple[Running, Shard]]:
    with server() as running:
        made = Shard(running)

        async def make() -> None:
            async with opened(running, test_clock=True, event_bytes=4096) as broker:
                await made.make(broker)

        asyncio.run(make())
        for script in libraries():
            if script.name == "hello":  # only looks at a shard that has a name
                continue
            first, _, rest = script.source.decode().partition("\n")
            running.admin("FUNCTION", "LOAD", "REPLACE", f"{first}\n{COUNTED}{rest}")
        yield running, made
        made.client.close()


def changed(made: Shard) -> list[bytes]:
    return [key for key in made.changed(without=b"") if key not in OURS]


def traced(made: Shard) -> list[bytes]:
    return [bytes(each) for each in made.client.lrange("trace", 0, -1)]  # type: ignore[arg-type]


def functions_of(trace: list[bytes]) -> Iterator[tuple[int, list[str]]]:
    """The commands of each function that was called, and how many came before them."""
    before, commands = 0, list[str]()
    for each in (*trace[1:], b"begin"):
        if each == b"begin":
            yield before, commands
            before, commands = before + len(commands), []
        else:
            commands.append(each.decode())


def first_write(commands: list[str]) -> int:
    """The place of the first command that is not tried but carried out."""
    for place, command in enumerate(commands):
        how, name, *_ = command.split(" ")
        if how == "call" and name not in READS:
            return place
    return len(commands)


def uncertain(commands: list[str], write: int) -> Iterator[str]:
    """What may fail once something was written: reads may not, of a key that was looked at."""
    for place, command in enumerate(commands[write:], write):
        how, name, key = command.split(" ", 2)
        known = any(key == each.split(" ", 2)[2] for each in commands[:place])
        if how != "call" or not (name in CERTAIN or (name in READS and known)):
            yield command


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROBES.keys() - TWOFOLD - {"hello"}))
async def test_a_command_that_fails_leaves_everything_as_it_was(
    name: str, shard: tuple[Running, Shard]
) -> None:
    running, made = shard
    probe = PROBES[name]
    wrong = []
    async with opened(running, test_clock=True, patience=0.0) as broker:
        await broker.hello()
        made.restore()
        await probe(numbered(broker), made.tokens)
        [*_, (before, commands)] = functions_of(traced(made))
        write = first_write(commands)
        assert list(uncertain(commands, write)) == [], f"behind the first write of {name}"
        assert commands[:write]
        for place in range(write):
            if commands[place].startswith("pcall INFO "):  # a user may be without the right to ask
                continue
            made.restore()
            made.client.set("fault", before + place + 1)
            with pytest.raises(Refused):
                await probe(numbered(broker), made.tokens)
            if before == 0 and (left := changed(made)):
                wrong.append(f"{commands[place]}, the {place + 1}. command, left {left}")
    assert wrong == []


async def test_an_entry_that_the_stream_refuses_changes_nothing(
    shard: tuple[Running, Shard],
) -> None:
    """The last entry of the stream lies above every number that is to come."""
    running, made = shard
    async with opened(running, test_clock=True, patience=0.0) as broker:
        await broker.hello()
        made.restore()
        made.client.xadd(f"{PREFIX}events", {"at": "0", "rows": ""}, id="18446744073709551615-0")
        c = Client(broker, "somebody")
        with pytest.raises(Refused):
            await c.enqueue(submit("n1", "q"), submit("n2", "new"))
        assert changed(made) == [f"{PREFIX}events".encode()]


async def test_a_shard_whose_own_record_was_lost_goes_on_with_nothing_half_done(
    shard: tuple[Running, Shard],
) -> None:
    running, made = shard
    async with opened(running, test_clock=True, patience=0.0) as broker:
        await broker.hello()
        made.restore()
        made.client.xadd(f"{PREFIX}events", {"at": "0", "rows": ""}, id=f"{2**52}-0")
        made.client.delete(f"{PREFIX}meta")
        c = Client(broker, "somebody")
        [receipt] = await c.enqueue(submit("n1", "q"))
        assert receipt.code == "accepted"
        assert await broker.find(["n1"]) != [None]
