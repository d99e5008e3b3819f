"""Real servers that die, freeze, forget, change places or fall silent, under load.

Producers and workers keep book of what they were told. In the end the books must agree with what is
stored: nothing acknowledged is lost, nothing is done twice, and nobody saw an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import Call, Fetch, LeaseRef, Submission
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import Ambiguous, Unreachable
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased
from tests.embedded.processes import kill, sweep, users
from tests.support.proxy import proxy
from tests.support.servers import Running, sentinels, server
from tests.support.store import completed, ref, submit

ALWAYS = {"appendfsync": "always"}
_SECONDS = 20.0  # for anything that is waited for


# -- the books ----------------------------------------------------------------------------------


class Line:
    """One incarnation: its name, and the numbers of its calls. By the real clock."""

    def __init__(self, broker: RedisBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self._numbers = itertools.count(1)

    def call(self) -> Call:
        return Call(self.name, next(self._numbers))

    async def enqueue(self, *submissions: Submission) -> list[str]:
        receipts = await self.broker.enqueue(self.call(), submissions)
        return [receipt.code for receipt in receipts]

    async def fetch(self, n: int, *, lease: float = 30.0, queue: str = "default") -> list[Leased]:
        order = Fetch(queues=(queue,), max=n, lease=lease)
        return (await self.broker.exchange(self.call(), fetch=order)).leased

    async def settle(self, *settlements: Settlement) -> list[str]:
        return list((await self.broker.exchange(self.call(), settlements)).settled)


class Load:
    """Producers and workers, and what each was told."""

    def __init__(self, *brokers: RedisBroker) -> None:
        self.accepted: list[str] = []
        self.completed: set[str] = set()
        self.lent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._brokers = brokers
        self._stopping = asyncio.Event()
        self._all_sent = asyncio.Event()

    async def grows(self, by: int = 20) -> None:
        """Wait until so many more were accepted, and so many more completed."""
        accepted, done = len(self.accepted) + by, len(self.completed) + by
        await soon(lambda: len(self.accepted) >= accepted and len(self.completed) >= done)

    async def produce(self, line: Line) -> None:
        for n in itertools.count():
            if self._stopping.is_set():
                return
            ids = [f"{line.name}-{n}-{i}" for i in range(3)]
            codes = await line.enqueue(*(submit(id, tenant=line.name) for id in ids))
            self.answers.update(codes)
            self.accepted += [id for id, code in zip(ids, codes, strict=True) if code == "accepted"]
            await asyncio.sleep(0.002)

    async def work(self, line: Line) -> None:
        ends: list[Settlement] = []
        while True:
            # Only what is looked for after the last producer had its answer is the last look: one
            # whose call is repeated since the server came back may be heard after all others.
            last = self._all_sent.is_set()
            order = Fetch(queues=("default",), max=8)
            reply = await line.broker.exchange(line.call(), ends, fetch=order)
            self.answers.update(reply.settled)
            for end, answer in zip(ends, reply.settled, strict=True):
                if answer == "applied":
                    self.completed.add(end.id)
            self.lent.update(lease.message.id for lease in reply.leased)
            ends = [completed(lease) for lease in reply.leased]
            if not ends:
                if last:
                    return
                await line.broker.wait(["default"], 0.2)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Under load; at its end everything that was accepted is worked off."""
        names = itertools.count()
        working = [
            asyncio.create_task(self.work(Line(broker, f"w{next(names)}")))
            for broker in self._brokers
            for _ in range(2)
        ]
        producing = [
            asyncio.create_task(self.produce(Line(broker, f"p{next(names)}")))
            for broker in self._brokers
            for _ in range(2)
        ]
        tasks = [*working, *producing]
        try:
            await self.grows()
            yield
            await self.grows()
            for task in tasks:
                assert not task.done(), task.exception()
            async with asyncio.timeout(_SECONDS):
                self._stopping.set()
                await asyncio.gather(*producing)
                self._all_sent.set()
                await asyncio.gather(*working)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def agrees(self) -> None:
        """Everything was accepted, lent and completed exactly once, and is stored like that."""
        broker = self._brokers[0]
        assert set(self.answers) == {"accepted", "applied"}, self.answers
        assert self.completed == set(self.accepted)
        assert set(self.lent.values()) == {1}
        assert await states(broker, self.accepted) == {State.COMPLETED}
        assert await broker.audit() == []


async def states(broker: RedisBroker, ids: Sequence[str]) -> set[State | None]:
    """The states of tasks; None for unknown ones."""
    found: set[State | None] = set()
    for i in range(0, len(ids), 500):
        records = await broker.find(ids[i : i + 500])
        found |= {None if record is None else record.state for record in records}
    return found


async def soon(condition: Callable[[], Any], seconds: float = _SECONDS) -> None:
    """Wait for what nothing here can tell of by itself."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        await asyncio.sleep(0.005)


def asleep(running: Running, count: int) -> bool:
    return int(running.admin("INFO", "clients")["blocked_clients"]) >= count


@contextlib.asynccontextmanager
async def brokers(url: str, count: int = 1, **options: Any) -> AsyncIterator[list[RedisBroker]]:
    made = [RedisBroker(url, **options) for _ in range(count)]
    try:
        yield made
    finally:
        for broker in made:
            await broker.close()


@pytest.fixture
def durable() -> Iterator[Running]:
    """A server that has written to its disk whatever it acknowledged."""
    with server(aof=True, config=ALWAYS) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / ".fairlead"
    sweep(tmp_path)


# -- death --------------------------------------------------------------------------------------


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(durable: Running) -> None:
    async with brokers(durable.url, 2) as both:
        load = Load(*both)
        async with load.running():
            for times in (1, 2, 3):
                await asyncio.to_thread(durable.restart)
                await soon(partial(noticed, both, times))
                await load.grows()

        await load.agrees()
        assert all("restarted" in change for broker in both for change in broker.changes)


def noticed(those: list[RedisBroker], times: int) -> bool:
    return all(len(broker.changes) == times for broker in those)


async def test_with_a_fsync_each_second_a_killed_server_may_lose_the_last_moments_only() -> None:
    """It acknowledges writes that are in its memory only, while the disk is busy with earlier ones.

    So what may be lost is an end of what was accepted, never something in between, and nothing of
    what the server had written before that.
    """
    with server(aof=True, config={"appendfsync": "everysec"}) as running:
        async with brokers(running.url) as (broker,):
            line = Line(broker, "p")
            safe = [f"safe{n}" for n in range(50)]
            await line.enqueue(*map(submit, safe))
            await soon(lambda: written(running))
            late: list[str] = []
            for n in range(200):
                assert await line.enqueue(submit(f"late{n}")) == ["accepted"]
                late.append(f"late{n}")
            await asyncio.to_thread(running.restart)

            assert await states(broker, safe) == {State.QUEUED}
            kept = [record is not None for record in await broker.find(late)]
            assert kept == sorted(kept, reverse=True)
            assert await line.enqueue(submit("next")) == ["accepted"]
            assert await broker.audit() == []


def written(running: Running) -> bool:
    """Whether the server has nothing in memory that is not on its disk."""
    info = running.admin("INFO", "persistence")
    return bool(info["aof_pending_bio_fsync"] == 0 and info["aof_buffer_length"] == 0)


async def test_two_who_opened_one_directory_bring_one_server_back(home: Path) -> None:
    first, second = (EmbeddedValkey(home, fsync="always") for _ in range(2))
    endpoint = first.start()
    second.start()

    def revived(mine: EmbeddedValkey) -> Any:
        async def revive() -> None:
            await asyncio.to_thread(mine.ensure)

        return revive

    a, b = (RedisBroker(endpoint.url, revive=revived(mine)) for mine in (first, second))
    try:
        with users(1) as [stranger]:
            assert stranger.do(f"start {home}") == (endpoint.pid, False)
            load = Load(a, b)
            async with load.running():
                await asyncio.to_thread(kill, endpoint.pid)
                await load.grows()
            await load.agrees()
            pids = {first.ensure().pid, second.ensure().pid, stranger.do("ensure")[0]}
            assert len(pids) == 1
            assert pids != {endpoint.pid}
    finally:
        for broker in (a, b):
            await broker.close()
        for mine in (first, second):
            mine.stop()


# -- cut off, forgotten, emptied ----------------------------------------------------------------


async def test_clients_that_are_cut_off_again_and_again_do_everything_once(
    valkey: Running,
) -> None:
    async with brokers(valkey.url, 2) as both:
        load = Load(*both)
        async with load.running():
            for _ in range(10):
                valkey.admin("CLIENT", "KILL", "TYPE", "normal")
                await load.grows(5)

        await load.agrees()
        assert both[0].changes == both[1].changes == []


async def test_a_server_that_forgets_the_functions_is_told_again(valkey: Running) -> None:
    async with brokers(valkey.url, 2) as both:
        load = Load(*both)
        async with load.running():
            for _ in range(10):
                valkey.admin("FUNCTION", "FLUSH")
                await load.grows(5)

        await load.agrees()


async def test_a_server_that_is_emptied_is_noticed_and_used_like_a_new_one(
    valkey: Running,
) -> None:
    async with brokers(valkey.url) as (broker,):
        line = Line(broker, "w")
        await line.enqueue(submit("old"), submit("older"))
        before = await broker.hello()
        held = await line.fetch(2)
        page = await broker.events()
        valkey.admin("FLUSHALL")

        assert await line.settle(completed(held[0])) == ["unknown"]
        assert (await broker.hello()).generation != before.generation
        assert [("emptied" in change) for change in broker.changes] == [True]
        lost = (await broker.beat("w", [ref(held[1], "w")])).lost
        assert lost == [ref(held[1], "w")]
        assert (await broker.events(after=page.last)).gap
        assert await line.enqueue(submit("new")) == ["accepted"]
        [lease] = await line.fetch(5)
        assert lease.message.id == "new"
        assert lease.token > held[0].token
        assert await line.settle(completed(lease)) == ["applied"]
        assert await broker.audit() == []


async def test_a_server_that_is_emptied_under_load_goes_on_with_what_comes_then(
    valkey: Running,
) -> None:
    async with brokers(valkey.url, 2) as both:
        load = Load(*both)
        async with load.running():
            before = (await both[0].hello()).generation
            valkey.admin("FLUSHALL")
            done = set(load.completed)
            await load.grows()

        assert set(load.answers) <= {"accepted", "applied", "unknown"}
        assert len(load.completed - done) >= 20
        # One says hello by itself; the other may meet the new shard only, and hears of it then.
        assert sum(len(broker.changes) for broker in both) >= 1
        assert all([(await broker.hello()).generation != before for broker in both])
        assert [len(broker.changes) for broker in both] == [1, 1]
        assert await both[0].audit() == []


# -- another primary ----------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "made a replica"])
async def test_the_new_primary_is_found_under_load(how: str) -> None:
    with sentinels() as watched:
        async with brokers(watched.url, 2, patience=20.0) as both:
            load = Load(*both)
            async with load.running():
                await soon(lambda: caught_up(watched.primary))
                began = time.monotonic()
                if how == "killed":
                    watched.primary.kill()
                    await soon(lambda: leads(watched.replica))
                else:  # both lead until the old one is told; what it accepts meanwhile is lost
                    watched.sentinels[0].admin("SENTINEL", "FAILOVER", "main")
                    await soon(lambda: leads(watched.replica))
                    watched.primary.admin("REPLICAOF", "127.0.0.1", watched.replica.port)
                await load.grows()
                assert time.monotonic() - began < 20.0

            # A replica follows a moment behind: the last answers before may be forgotten.
            assert set(load.answers) <= {"accepted", "applied", "unknown", "fenced", "duplicate"}
            for broker in both:
                assert any("another one took its place" in change for change in broker.changes)
            assert await both[0].audit() == []
            assert await Line(both[0], "later").enqueue(submit("later")) == ["accepted"]


def leads(running: Running) -> bool:
    return bool(running.admin("ROLE")[0] == b"master")


def caught_up(primary: Running) -> bool:
    role = primary.admin("ROLE")
    return bool(role[2]) and int(role[2][0][2]) > 0


# -- silence ------------------------------------------------------------------------------------


@pytest.mark.long(10)
@pytest.mark.slow
@pytest.mark.serial
async def test_a_server_frozen_for_longer_than_the_leases_ends_none_of_them(
    valkey: Running,
) -> None:
    """The silence was the server's, and nobody's death: the guard gives everyone another chance."""
    async with brokers(valkey.url, 2, patience=30.0) as (broker, other):
        lines = [Line(broker, f"w{n}") for n in range(3)]
        await lines[0].enqueue(*(submit(f"t{n}", tenant=f"{n % 3}") for n in range(15)))
        assert (await broker.sweep()).guarded  # the first one ever, and over when the server thaws
        held = {line.name: await line.fetch(5, lease=8.0) for line in lines}
        lost: list[LeaseRef] = []
        swept: list[int] = []
        stop = asyncio.Event()

        async def beat(line: Line) -> None:
            refs = [ref(lease, line.name) for lease in held[line.name]]
            while not stop.is_set():
                lost.extend((await broker.beat(line.name, refs, lease=8.0)).lost)
                await pace(stop, 0.5)

        async def watch_over() -> None:
            while not stop.is_set():
                swept.append((await other.sweep()).count)
                await pace(stop, 0.1)

        tasks = [asyncio.create_task(beat(line)) for line in lines]
        tasks.append(asyncio.create_task(watch_over()))
        await soon(lambda: len(swept) > 2)
        valkey.pause()
        await asyncio.sleep(10.5)  # more than the lease, and more than a heartbeat
        valkey.resume()
        so_far = len(swept)
        await soon(lambda: len(swept) > so_far + 10)
        stop.set()
        await asyncio.gather(*tasks)

        assert lost == []
        assert sum(swept) == 0
        assert await Line(broker, "late").fetch(15) == []
        for line in lines:
            ends = [completed(lease) for lease in held[line.name]]
            assert await line.settle(*ends) == ["applied"] * 5
        assert await broker.audit() == []


async def pace(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


@pytest.mark.serial
async def test_in_a_black_hole_every_call_ends_when_patience_does(valkey: Running) -> None:
    async with proxy(path=valkey.path) as between:
        broker, stranger = (RedisBroker(between.url, patience=0.5) for _ in range(2))
        await broker.hello()
        calls = [call for _, call in every_verb(broker)]
        for call in calls:
            await call()  # each function is known to the server
        between.swallow()
        began = time.monotonic()
        outcomes = await asyncio.wait_for(
            asyncio.gather(*(call() for call in calls), stranger.hello(), return_exceptions=True),
            _SECONDS,
        )

        assert time.monotonic() - began < 10.0  # one timeout of 5 and not another
        assert [type(outcome) for outcome in outcomes[:-1]] == [Ambiguous] * len(calls)
        assert isinstance(outcomes[-1], Unreachable)
        between.heal()
        assert (await broker.hello()).generation == (await stranger.hello()).generation
        for call in calls:
            await call()
        for each in (broker, stranger):
            await each.close()


async def test_a_slow_server_slows_calls_and_breaks_none(valkey: Running) -> None:
    async with proxy(path=valkey.path) as between, brokers(between.url) as (broker,):
        between.delay = 0.02
        calls = [call for _, call in every_verb(broker)]
        for _ in range(2):
            await asyncio.wait_for(asyncio.gather(*(call() for call in calls)), _SECONDS)
        between.delay = 0.0
        assert between.connections <= 3  # one for the calls, and those that block
        assert await broker.audit() == []


def every_verb(broker: RedisBroker) -> list[tuple[str, Callable[[], Any]]]:
    """A harmless call of each verb, under a name of its own each: they may be sent at once."""

    def numbered(verb: str, *args: Any, **options: Any) -> Callable[[], Any]:
        line = Line(broker, f"caller of {verb}")
        return lambda: getattr(broker, verb)(line.call(), *args, **options)

    return [
        ("hello", broker.hello),
        ("enqueue", numbered("enqueue", [])),
        ("exchange", numbered("exchange", fetch=Fetch(queues=("none",), max=1))),
        ("wait", lambda: broker.wait(["none"], 0.0)),
        ("beat", lambda: broker.beat("w")),
        ("give_back", lambda: broker.give_back("w")),
        ("sweep", broker.sweep),
        ("promote", broker.promote),
        ("deliver", broker.deliver),
        ("tidy", broker.tidy),
        ("watch", lambda: broker.watch("w", ["none"])),
        ("collect", lambda: broker.collect("w", 0, 0.0)),
        ("write", numbered("write", [])),
        ("pull", lambda: broker.pull("a", ["none"])),
        ("alter", numbered("alter", [])),
        ("configure", numbered("configure", [])),
        ("purge", numbered("purge", "none")),
        ("delete_queue", numbered("delete_queue", "none")),
        ("fire", numbered("fire", [])),
        ("plan", numbered("plan", [])),
        ("tick", broker.tick),
        ("schedules", broker.schedules),
        ("events", broker.events),
        ("forget_reader", lambda: broker.forget_reader("none")),
    ]


@pytest.mark.serial
@pytest.mark.parametrize("fault", [pytest.param("black hole", marks=pytest.mark.slow), "restart"])
async def test_those_who_wait_hear_the_next_bell_after(fault: str, durable: Running) -> None:
    async with proxy(path=durable.path) as between, brokers(durable.url) as (outside,):
        inside = RedisBroker(between.url, patience=30.0)
        line = Line(outside, "w")
        await line.enqueue(submit("t"))
        [lease] = await line.fetch(1)
        await inside.watch("q", ["t"])
        last = (await inside.events()).last
        bell = asyncio.create_task(inside.wait(["default"], 60.0))
        mail = asyncio.create_task(inside.collect("q", 0, 60.0))
        news = asyncio.create_task(inside.events(after=last, timeout=60.0))
        await soon(lambda: asleep(durable, 3))
        if fault == "restart":
            await asyncio.to_thread(durable.restart)
        else:
            between.swallow()
            await asyncio.sleep(6.0)  # longer than anybody sleeps before looking again
            between.heal()
        assert not any([bell.done(), mail.done(), news.done()])
        await soon(lambda: asleep(durable, 3))
        began = time.monotonic()
        await line.enqueue(submit("next"))
        await line.settle(completed(lease))

        async with asyncio.timeout(_SECONDS):
            assert await bell
            assert [letter.id for letter in await mail] == ["t"]
            assert (await news).events[0].task == "next"
        assert time.monotonic() - began < 3.0  # they heard it: nobody looks again before 5
        await inside.close()
