"""Two brokers that are asked the same: one has the straight ways, the other only the engine."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import LAYOUT, Call, Fetch, Submission
from fairlead.model.errors import FairleadError
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from tests.support.long_way import COUNTER, COUNTERS, ENDS, LOANS, counted_lua, long_lua
from tests.support.store import NOW, Client, completed, submit
from tests.support.twins import emptied

__all__ = ("LARGE", "PREFIX", "QUEUES", "Pair", "begun", "everything", "exchanged", "made")

PREFIX = "fl1:{0}:"
QUEUES = ("default", "mail")  # that are fetched from
LARGE = b"x" * 40_000
_COUNTS = {counter.encode() for counter in COUNTERS}
# A broker's own calls, of its upkeep, have a name that is drawn anew for each.
_OWN = re.compile(rb"^[0-9a-f]{16}(?=:[a-z_]+$)")

Ask = Callable[[Client], Awaitable[Any]]


def made(number: int) -> str:
    """An id as Fairlead makes them."""
    return f"{number:032x}"


class Pair:
    """A broker with the straight way and one without, asked alike and compared after each step."""

    def __init__(self, event_bytes: int = 1_000_000, lua: Callable[[], Path] = counted_lua) -> None:
        self.clients: list[Client] = []
        self.servers: list[Any] = []  # a client of each
        self.databases: list[int] = []
        self.stride = 1  # in steps: how often every key is compared
        self._steps = 0
        for folder in (lua(), long_lua()):
            url = emptied("valkey")
            broker = RedisBroker(url, test_clock=True, event_bytes=event_bytes, lua=folder)
            self.clients.append(Client(broker))
            place, _, query = url.partition("?db=")
            self.databases.append(int(query))
            self.servers.append(
                redis.Redis(unix_socket_path=place.removeprefix("unix://"), db=int(query))
            )
            meta = {"generation": "g", "layout": LAYOUT, "least": LAYOUT, "cap": event_bytes}
            self.servers[-1].hset(f"{PREFIX}meta", mapping=meta)  # or it would be another one

    @property
    def taken(self) -> int:
        """How often the straight way of enqueue was taken."""
        return self.count(COUNTER)

    def count(self, counter: str) -> int:
        """What one of the straight ways has counted."""
        return int(self.servers[0].get(counter) or 0)

    async def do(self, ask: Ask) -> Any:
        """Ask both; what they answer, or the error that they raise."""
        answers = [await _answered(ask, client) for client in self.clients]
        assert answers[0] == answers[1]
        self._steps += 1
        if self._steps % self.stride == 0:
            self.compare()
        return answers[0]

    def compare(self) -> None:
        """Compare every key of both."""
        if differ := self.servers[0].eval(_DIFFERENT, 0, self.databases[1], *COUNTERS):
            # In the order of fields, the names of a broker's own calls, or really.
            stored = [everything(server, differ) for server in self.servers]
            for key, value in stored[0].items():
                assert value == stored[1].get(key), key
            assert sorted(stored[0]) == sorted(stored[1])

    async def enqueue(self, *submissions: Submission, now: float = NOW) -> int:
        """Enqueue; how often the straight way was taken for it."""
        before = self.taken
        await self.do(lambda client: client.enqueue(*submissions, now=now))
        return self.taken - before

    async def again(self, back: int, tasks: list[Submission], now: float = NOW + 1) -> Any:
        """Enqueue under the last number, or one before it."""
        return await self.do(
            lambda c: c.broker.enqueue(Call(c.incarnation, c.number - back), tasks, now=now)
        )

    def spoil(self, *command: Any) -> None:
        for server in self.servers:
            server.execute_command(*command)

    async def close(self) -> None:
        for client, server in zip(self.clients, self.servers, strict=True):
            await client.broker.close()
            server.close()


async def _answered(ask: Ask, client: Client) -> Any:
    try:
        return await ask(client)
    except FairleadError as error:
        return type(error), str(error)


_READ: dict[bytes, tuple[Any, ...]] = {
    b"hash": ("HGETALL",),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"stream": ("XRANGE", "-", "+"),
    b"string": ("GET",),
}


# The keys of this database and of another that do not hold the same, as they are stored. A server
# compares what is stored in a fraction of the time that it takes to read it.
_DIFFERENT = """
local left_out, found = {}, {}
for i = 2, #ARGV do left_out[ARGV[i]] = true end
local function stored()
  local values = {}
  for _, key in ipairs(redis.call('KEYS', '*')) do
    if not left_out[key] then values[key] = redis.call('DUMP', key) .. redis.call('PTTL', key) end
  end
  return values
end
local own = stored()
redis.call('SELECT', ARGV[1])
local other = stored()
for key, value in pairs(own) do if other[key] ~= value then found[#found + 1] = key end end
for key in pairs(other) do if not own[key] then found[#found + 1] = key end end
return found"""


def everything(server: Any, keys: list[bytes] | None = None) -> dict[bytes, Any]:
    """All that a database holds but for the counts of the test, in a form that compares."""
    there = server.keys("*")
    keys = [key for key in there if key not in _COUNTS and (keys is None or key in keys)]
    asking = server.pipeline(transaction=False)
    for key in keys:
        asking.type(key)
    kinds = asking.execute()
    for key, kind in zip(keys, kinds, strict=True):
        command, *arguments = _READ[kind]
        asking.execute_command(command, key, *arguments)
        asking.pttl(key)
    read = asking.execute()
    return {
        key: (kind, _comparable(kind, value), left)
        for key, kind, value, left in zip(keys, kinds, read[::2], read[1::2], strict=True)
    }


def _comparable(kind: bytes, value: Any) -> Any:
    if kind == b"hash":
        return {_OWN.sub(b"", each): v for each, v in value.items()}
    if kind == b"zset":
        return sorted((score, _OWN.sub(b"", each)) for each, score in value)
    return value


async def begun(pair: Pair) -> None:
    """Let both know the queue, and in it the tenants a and b; a has something to do, b has not."""
    await pair.enqueue(submit(made(1)), submit(made(2), "b"))
    leases = await pair.do(lambda client: client.fetch(2))
    mine = [lease for lease in leases if lease.message.tenant == "b"]
    await pair.do(lambda client: client.settle(*map(completed, mine)))
    await pair.enqueue(submit(made(3)))
    assert pair.taken == 1


async def exchanged(
    pair: Pair,
    ends: list[Settlement],
    wanted: int = 0,
    *,
    start: int | None = None,
    now: float = NOW + 1,
) -> tuple[list[Leased], int, int]:
    """What was lent, how many ends went straight, and how many loans."""
    before = pair.count(ENDS), pair.count(LOANS)
    fetch = Fetch(queues=QUEUES, max=wanted, start=start) if wanted else None
    reply = await pair.do(lambda client: client.exchange(ends, fetch=fetch, now=now))
    return reply.leased, pair.count(ENDS) - before[0], pair.count(LOANS) - before[1]
