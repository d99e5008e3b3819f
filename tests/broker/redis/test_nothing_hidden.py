"""However much is stored, no call walks it: no command over everything, no long script.

The small form runs everywhere, and looks at the processor time that each call took from the server:
on a machine that does other things as well, wall time says more about those. ``FAIRLEAD_FULL=1``
makes it a million tasks and 100,000 dependents, for a machine that does nothing else: there the
server's own log of slow commands must be empty.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import fairlead.broker.redis as package
from benchmarks.server_probe import Probe
from fairlead.broker import Store
from fairlead.broker.flows import FlowOrder
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import MAX_STEP, Alter, Fetch
from fairlead.model.lifecycle import Settlement
from fairlead.model.message import Leased
from tests.support.fair import LiveClient
from tests.support.flows import parts_of
from tests.support.servers import Running, server
from tests.support.store import completed, dead, submit

LUA = Path(package.__file__).parent / "lua"
FULL = os.environ.get("FAIRLEAD_FULL", "") not in ("", "0")
QUEUED, TENANTS, DEPENDENTS, CANCELLED = (
    (1_000_000, 100_000, 100_000, 100_000) if FULL else (20_000, 2_000, 5_000, 5_000)
)
SLOW = 10.0  # milliseconds
ONCE = 5 * SLOW  # for a single call, in the best of the tries: it may have been disturbed
TRIES = 3

# Each of these looks at all that a key holds, or at all keys. DEL frees it before it answers.
FORBIDDEN = (
    *("KEYS", "SMEMBERS", "HGETALL", "HKEYS", "HVALS", "LREM", "LINSERT", "LTRIM", "SORT"),
    *("SINTER", "SUNION", "SDIFF", "ZUNIONSTORE", "ZINTERSTORE", "ZREMRANGEBYSCORE", "DEL"),
    *("FLUSHALL", "FLUSHDB", "RENAME", "COPY", "DUMP"),
)
# LREM counts from the nearer end, and stops at the last of those that the same step marked. There
# are at most 100 names that somebody leads, and they are looked at only to make room for another.
BOUNDED = {("lib/queue.lua", "LREM"), ("lead.lua", "HGETALL")}
RANGE = re.compile(r"'([LZX](?:REV)?RANGE(?:BYSCORE|BYLEX)?)',([^\n]*)")


# -- what is written --------------------------------------------------------------------------


def lines() -> Iterator[tuple[str, str]]:
    for path in sorted(LUA.rglob("*.lua")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield f"{path.relative_to(LUA)}:{number}", line.partition("--")[0]


def arguments(text: str) -> list[str]:
    """What stands between commas, up to the parenthesis that ends the call."""
    found: list[str] = []
    depth = start = 0
    plain = re.sub(r"'[^']*'", lambda match: "_" * len(match[0]), text)  # quoted signs mean nothing
    for place, sign in enumerate(plain):
        if sign == ")" and depth == 0:
            return [*found, text[start:place].strip()]
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()]


def unbounded(line: str) -> list[str]:
    """The ranges in a line of Lua that have no end, or one that counts from behind."""
    found = []
    for command, rest in RANGE.findall(line):
        args = arguments(rest)
        if command in ("LRANGE", "ZRANGE", "ZREVRANGE"):
            end = args[2].strip("'\"") if len(args) > 2 else "-1"
            bounded = not end.startswith("-")
        else:
            bounded = "'LIMIT'" in args or "'COUNT'" in args
        if not bounded:
            found.append(command)
    return found


def test_scripts_use_no_command_that_looks_at_everything() -> None:
    pattern = re.compile(rf"['\"]({'|'.join(FORBIDDEN)})['\"]", re.IGNORECASE)
    found = {
        (place.partition(":")[0], match[1])
        for place, line in lines()
        for match in pattern.finditer(line)
    }
    assert found == BOUNDED
    searches = [line for _, line in lines() if "'LPOS'" in line]
    assert searches
    assert all("'MAXLEN'" in line for line in searches)


def test_ranges_in_scripts_have_an_end() -> None:
    assert sum(len(RANGE.findall(line)) for _, line in lines()) >= 8
    assert [place for place, line in lines() if unbounded(line)] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("call('LRANGE', P .. 'x', 0, -1)", ["LRANGE"]),
        ("call('LRANGE', P .. 'x', 0, '-1')", ["LRANGE"]),
        ("call('ZRANGE', key(a, b), 0, -1, 'WITHSCORES')", ["ZRANGE"]),
        ("call('ZRANGEBYSCORE', key, '-inf', now)", ["ZRANGEBYSCORE"]),
        ("call('XRANGE', P .. 'events', '-', '+')", ["XRANGE"]),
        ("call('LRANGE', P .. 'x', gone, gone + most - 1)", []),
        ("call('ZRANGEBYSCORE', key, '(' .. exact(now), '+inf', 'LIMIT', 0, 5)", []),
    ],
)
def test_a_range_without_an_end_is_found(line: str, found: list[str]) -> None:
    assert unbounded(line) == found


# -- what is done -----------------------------------------------------------------------------


@pytest.fixture
def watched() -> Iterator[Running]:
    config = {"slowlog-log-slower-than": f"{1000 * SLOW:.0f}", "slowlog-max-len": "1000"}
    with server(config=config) as running:
        yield running


async def enqueue(c: LiveClient, first: int, count: int) -> None:
    # Tasks of a tenant come together, so that a call of 500 has no more tenants than it may.
    each = QUEUED // TENANTS
    for start in range(first, first + count, 500):
        await c.enqueue(*(submit(f"q.{n}", f"t{n // each}") for n in range(start, start + 500)))


async def work(c: LiveClient, tasks: int, queue: str) -> None:
    """Fetch and settle, a hundred at a time."""
    held: list[Leased] = []
    while tasks > 0 or held:
        done: list[Settlement] = [completed(lease) for lease in held]
        fetch = Fetch(queues=(queue,), max=min(100, max(tasks, 0))) if tasks > 0 else None
        reply = await c.broker.exchange(c.call(), done, fetch=fetch)
        assert set(reply.settled) <= {"applied"}
        held = reply.leased
        assert held or tasks <= 0
        tasks -= len(held)


async def release(c: LiveClient) -> None:
    """One parent that many wait for; its end lets them go, a few at a time."""
    await c.enqueue(submit("parent", "family", "deps"))
    for start in range(0, DEPENDENTS, 100):  # as many as a client sends at a time
        await c.enqueue(
            *(
                submit(f"d.{n}", "family", "deps", after=["parent"])
                for n in range(start, start + 100)
            )
        )
    await work(c, 1, "deps")
    while (await c.broker.deliver()).more:
        pass
    assert (await c.broker.snapshot()).queues["deps"].ready == DEPENDENTS


async def flow(c: LiveClient) -> None:
    """A root, many that wait for it, one that waits for many of these: failed, retried, ended."""
    leaves = [f"leaf.{n}" for n in range(DEPENDENTS)]
    members = [
        submit("root", "family", "flow"),
        *(submit(id, "family", "flow", after=["root"]) for id in leaves),
        submit("last", "family", "flow", after=leaves[-1000:]),
    ]
    for part in parts_of("flow", *members, tenant="family"):
        assert (await c.broker.stage(c.call(), part)).code == "staged"
    assert (await c.broker.commit(c.call(), "flow")).code == "committed"
    await delivered(c)
    fetch = Fetch(queues=("flow",), max=2)
    (lease,) = (await c.broker.exchange(c.call(), fetch=fetch)).leased
    await c.broker.exchange(c.call(), [dead(lease)])
    await delivered(c)
    order = FlowOrder(flow="flow", action="retry")
    assert await c.broker.alter_flow(c.call(), order) is not None
    await delivered(c)
    await work(c, 1, "flow")
    await delivered(c)
    order = FlowOrder(flow="flow", action="cancel")
    assert await c.broker.alter_flow(c.call(), order) is not None
    await delivered(c)
    (found,) = await c.broker.flows(["flow"])
    assert found is not None
    assert (found.completed, found.cancelled) == (1, DEPENDENTS + 1)
    assert len(await c.broker.members("flow", limit=500)) == 500


async def delivered(c: LiveClient) -> None:
    while (await c.broker.deliver()).more:
        pass


async def cancel(c: LiveClient) -> None:
    for start in range(QUEUED - CANCELLED, QUEUED, MAX_STEP):
        end = min(start + MAX_STEP, QUEUED)
        orders = [Alter(id=f"q.{n}", action="cancel") for n in range(start, end)]
        found = set[str]()
        while orders:
            answers = await c.broker.alter(c.call(), orders)
            found |= {answer.code for answer in answers}
            left = {answer.id for answer in answers if answer.code == "later"}
            orders = [order for order in orders if order.id in left]
        assert "done" in found
        assert found <= {"done", "unchanged", "later"}, "some were worked on before"


async def purge(c: LiveClient, queue: str) -> None:
    while (await c.broker.purge(c.call(), queue)).more:
        pass
    assert (await c.broker.snapshot()).queues[queue].depth == 0


async def maintain(c: LiveClient) -> None:
    """What a worker and a person at a dashboard ask for now and then."""
    await c.broker.beat(c.incarnation)
    for verb in (c.broker.sweep, c.broker.promote, c.broker.deliver, c.broker.tidy):
        await verb()
    await c.broker.snapshot()
    await c.broker.page(limit=100)
    await c.broker.events(limit=500)
    await c.broker.workers()


async def everything(broker: Store) -> None:
    c = LiveClient(broker, os.urandom(4).hex())
    await enqueue(c, 0, QUEUED)
    await maintain(c)
    await work(c, 5_000, "default")
    await release(c)
    await flow(c)
    await cancel(c)
    await maintain(c)
    await purge(c, "default")
    await purge(c, "deps")
    while (await broker.tidy()).more:
        pass


class Clocked:
    """A broker that notes how much processor time each call took from the server's main thread."""

    def __init__(self, broker: RedisBroker, probe: Probe) -> None:
        self._broker, self._probe = broker, probe
        self.spent: dict[str, list[float]] = {}  # milliseconds, by verb

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._broker, verb)

        async def clocked(*args: Any, **options: Any) -> Any:
            before = self._read()
            answer = await call(*args, **options)
            self.spent.setdefault(verb, []).append(1000 * (self._read() - before))
            return answer

        return clocked

    def _read(self) -> float:
        found = self._probe.info("cpu")
        return sum(float(found[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))


def logged(running: Running) -> Counter[str]:
    """What the server itself calls slow, and how often: functions, and other commands."""
    found: Counter[str] = Counter()
    for entry in running.admin("SLOWLOG", "GET", "-1"):
        words = [word.decode(errors="replace") for word in entry[3]]
        found[words[1] if words[0].upper() == "FCALL" else words[0]] += 1
    return found


def too_long(tries: list[dict[str, list[float]]]) -> list[str]:
    """Verbs of which three calls in four are slow in every try, or the longest is very slow."""
    found = []
    for verb in tries[0]:
        quarter = min(sorted(spent[verb])[len(spent[verb]) // 4] for spent in tries)
        longest = min(max(spent[verb]) for spent in tries)
        if quarter > SLOW or longest > ONCE:
            found.append(f"{verb}: {quarter:.1f} ms in most calls, {longest:.1f} ms in the longest")
    return found


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(3600 if FULL else 120)
async def test_nothing_looks_at_everything_and_nothing_takes_long(watched: Running) -> None:
    probe = Probe(watched.url)
    logs: list[Counter[str]] = []
    tries: list[dict[str, list[float]]] = []
    while not tries or (len(tries) < TRIES and (logs[-1] if FULL else too_long(tries))):
        watched.admin("FLUSHALL")
        watched.admin("SLOWLOG", "RESET")
        broker = RedisBroker(watched.url)
        clocked = Clocked(broker, probe)
        await everything(cast(Store, clocked))
        await broker.close()
        tries.append(clocked.spent)
        logs.append(logged(watched))
    probe.close()

    used = {name.removeprefix("cmdstat_").upper() for name in watched.admin("INFO", "commandstats")}
    assert used & set(FORBIDDEN) == {"FLUSHALL"}, "FLUSHALL is the test's own"
    assert {"FCALL", "LRANGE", "HSET"} <= used, "or it looked at something else"
    long = too_long(tries)
    assert not long, "\n".join(long)
    assert not FULL or not all(logs), f"slow in each of {TRIES} runs: {logs}"
