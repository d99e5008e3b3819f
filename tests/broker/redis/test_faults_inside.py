"""Servers that answer, but are full, or were tampered with."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from fairlead.broker.documents import DocumentChange
from fairlead.broker.flows import FlowOrder
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.redis.keys import KINDS
from fairlead.broker.requests import (
    Alter,
    Call,
    Declaration,
    Fetch,
    Firing,
    LeaseRef,
    LimiterChange,
    QueueChange,
    TenantChange,
    Write,
)
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.errors import Refused
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.options import Unique
from tests.broker.redis.sample import DONE, MADE, PREFIX, SLOT, fill, staged_parts
from tests.support.copies import Copy
from tests.support.servers import Running, server
from tests.support.store import ERROR, NOW, Client, ref, submit
from tests.support.store import completed as complete

Probe = Callable[[Client, dict[str, int]], Awaitable[object]]

# -- a key of another type ----------------------------------------------------------------------

SLEEP = 0.5  # seconds
LATER = NOW + 35.0  # the leases of all workers are over
TASKS = ("running", "stopping", "in-gpu", "one", "slow-one", "rated-one")


def lent(c: Client, tokens: dict[str, int], id: str) -> LeaseRef:
    return LeaseRef(id, c.incarnation, tokens[id])


def end(tokens: dict[str, int], id: str, to: State, **more: Any) -> Settlement:
    return Settlement(id=id, token=tokens[id], to=to, **more)


async def fire_one(c: Client, _: dict[str, int]) -> object:
    [record] = await c.broker.schedules(["nightly"], now=NOW)
    firing = Firing(
        schedule="nightly", slot=SLOT, submission=submit("n1"), revision=record.revision
    )
    return await c.fire(firing, now=LATER)


async def enqueue_special(c: Client, _: dict[str, int]) -> object:
    unique = [Unique(key="until-done"), Unique(key="fresh", until="window", window=9.0)]
    return await c.enqueue(
        submit("n1", "r", unique=unique[0]),
        submit("n2", "q", unique=unique[1], deadline=9.0),
        submit("n3", "g", limiters=("gpu",)),
        submit("n4", after=["running", "two"]),
        submit("n5", delay=5.0),
        submit("n6", after=["pinned", DONE, "running"], uses=True),
        now=LATER,
    )


async def settle_all(c: Client, tokens: dict[str, int]) -> object:
    ends = [
        end(tokens, "running", State.COMPLETED, result=b"r"),
        end(tokens, "stopping", State.CANCELLED),
        end(tokens, "in-gpu", State.RETRYING, delay=1.0, error=ERROR),
        end(tokens, "one", State.DEAD, reason="exhausted", error=ERROR),
        end(tokens, "slow-one", State.QUEUED, burn=False, reason="released"),
    ]
    order = Fetch(queues=("default", "rated", "graph"), max=20)
    return await c.exchange(ends, fetch=order, now=LATER)


async def write_all(c: Client, tokens: dict[str, int]) -> object:
    lease = lent(c, tokens, "running")
    return await c.write(
        Write(lease=lease, kind="progress", value=b"more"),
        Write(lease=lease, kind="checkpoint", value=b"there"),
        Write(lease=lease, kind="xcom", key="other", value=b"value"),
        now=LATER,
    )


async def configure_all(c: Client, _: dict[str, int]) -> None:
    await c.configure(
        LimiterChange(name="gpu", concurrency=5),
        TenantChange(tenant="slow", rate=9.0),
        TenantChange(tenant="q", queue="default", concurrency=3),
        QueueChange(queue="rated", rate=5.0),
        Declaration(QueueChange(queue="declared", warn_depth=2000)),
        now=LATER,
    )


DOCUMENTS = [
    DocumentChange(kind="token", name="new", value=b"v", ttl=60.0),
    DocumentChange(kind="token", name="brief", value=None),
]


def alter(*orders: Alter) -> Probe:
    return lambda c, _: c.alter(*orders, now=LATER)


PROBES: dict[str, Probe] = {
    "hello": lambda c, _: c.broker.hello(),
    "enqueue, plain": lambda c, _: c.enqueue(submit("n1", "q"), submit("n2", "new"), now=LATER),
    "enqueue, special": enqueue_special,
    "exchange, plain end": lambda c, tokens: c.exchange(
        [end(tokens, "one", State.COMPLETED)], now=LATER
    ),
    "exchange, ends": settle_all,
    "exchange, fetch": lambda c, _: c.fetch(20, ["default", "rated", "graph"], now=LATER),
    "exchange, marks": lambda c, tokens: c.exchange(
        started=[lent(c, tokens, "running")], now=LATER
    ),
    "wait": lambda c, _: waited(c, "graph", "rated"),
    "take": lambda c, _: taken(c, "default"),
    "wait, asleep": lambda c, _: waited(c, "rated"),
    "beat": lambda c, tokens: c.broker.beat(
        "w1",
        [lent(c, tokens, id) for id in TASKS],
        worker=WorkerRecord(incarnation="w1", queues=("default",)),
        now=LATER,
    ),
    "beat, a new worker": lambda c, _: c.broker.beat(
        "w3", worker=WorkerRecord(incarnation="w3", order="pause"), now=LATER
    ),
    "order_worker": lambda c, _: c.broker.order_worker(c.call(), "w1", "stop", now=LATER),
    "order_worker, resume": lambda c, _: c.broker.order_worker(c.call(), "w1", "resume", now=LATER),
    "lead": lambda c, _: c.broker.lead("new", "m2", now=LATER),
    "lead, release": lambda c, _: c.broker.lead("manager", "m1", release=True, now=LATER),
    "give_back": lambda c, _: c.broker.give_back("w1", now=LATER),
    "sweep": lambda c, _: c.broker.sweep(now=LATER),
    "promote": lambda c, _: c.broker.promote(now=NOW + 70.0),
    "deliver": lambda c, _: c.broker.deliver(now=LATER),
    "tidy": lambda c, _: c.broker.tidy(now=NOW + 1e6),
    "watch": lambda c, _: c.broker.watch("w2", ["running", "completed", "two"], now=LATER),
    "collect": lambda c, _: c.broker.collect("w2", 0, 0.0),
    "collect, asleep": lambda c, _: c.broker.collect("w2", 10**6, SLEEP),
    "write": write_all,
    "pull": lambda c, _: c.broker.pull("r", ["key"], now=NOW),
    "alter, cancel": alter(
        *(
            Alter(id=id, action="cancel")
            for id in ("two", "scheduled", "deferred", "wide", "running")
        )
    ),
    "alter, requeue": alter(Alter(id="dead", action="requeue")),
    "alter, delete": alter(
        Alter(id="completed", action="delete"), Alter(id="parent", action="delete")
    ),
    "alter, run": alter(*(Alter(id=id, action="run") for id in ("scheduled", "retrying"))),
    "alter, prioritize": alter(
        *(
            Alter(id=id, action="prioritize", level=0)
            for id in (MADE, "chosen", "low", "scheduled", "deferred", "for-gpu")
        )
    ),
    "configure": configure_all,
    "purge": lambda c, _: c.purge("default", now=LATER),
    "purge, one tenant": lambda c, _: c.purge("graph", "a", now=LATER),
    "delete_queue": lambda c, _: c.broker.delete_queue(c.call(), "brief", now=LATER),
    "forget_reader": lambda c, _: c.broker.forget_reader("r"),
    "write_documents": lambda c, _: c.broker.write_documents(c.call(), DOCUMENTS, now=LATER),
    "delete_documents": lambda c, _: c.broker.write_documents(c.call(), DOCUMENTS[1:], now=LATER),
    "documents": lambda c, _: c.broker.documents("token", now=NOW),
    "documents, named": lambda c, _: c.broker.documents("token", ["stays"], now=NOW),
    "note": lambda c, _: c.broker.note(c.call(), "audit", [b"three"], now=LATER),
    "notes": lambda c, _: c.broker.notes("audit", now=NOW),
    "fire": fire_one,
    "plan": lambda c, _: c.plan(
        ScheduleOrder(name="new", action="create", queue="default", next_at=SLOT),
        ScheduleOrder(name="nightly", action="delete"),
        now=LATER,
    ),
    "tick": lambda c, _: c.broker.tick(now=SLOT),
    "schedules": lambda c, _: c.broker.schedules(now=NOW),
    "stage": lambda c, _: c.broker.stage(c.call(), staged_parts()[1], now=LATER),
    "stage, anew": lambda c, _: c.broker.stage(c.call(), staged_parts()[0], now=LATER),
    "commit": lambda c, _: c.broker.commit(c.call(), "flow-whole", now=LATER),
    "alter_flow, cancel": lambda c, _: c.broker.alter_flow(
        c.call(), FlowOrder(flow="flow-wide", action="cancel"), now=LATER
    ),
    "alter_flow, retry": lambda c, _: c.broker.alter_flow(
        c.call(), FlowOrder(flow="flow-wide", action="retry"), now=LATER
    ),
    "flows": lambda c, _: c.broker.flows(["flow-done", "flow-wide"], now=NOW),
    "members": lambda c, _: c.broker.members("flow-wide", now=NOW),
    "events": lambda c, _: c.broker.events(reader="reader"),
    "events, a new reader": lambda c, _: c.broker.events(reader="new"),
    "events, asleep": lambda c, _: asleep_for_events(c.broker),
    "find": lambda c, _: c.broker.find(["running", "deferred", "completed", "dead"], now=NOW),
    "snapshot": lambda c, _: c.broker.snapshot(now=NOW),
    "settings, queues": lambda c, _: c.broker.settings(now=NOW),
    "settings, tenants": lambda c, _: c.broker.settings(cursor="t0", now=NOW),
    "settings, limiters": lambda c, _: c.broker.settings(cursor="r0", now=NOW),
    "settings, one queue": lambda c, _: c.broker.settings("rated", now=NOW),
    "stats": lambda c, _: c.broker.stats(tenants=True, now=NOW),
    "standing": lambda c, _: c.broker.standing("deferred", now=NOW),
    "page": lambda c, _: c.broker.page(now=NOW),
    "workers": lambda c, _: c.broker.workers(now=NOW),
}


async def taken(c: Client, incarnation: str) -> object:
    """A wait of an incarnation for which something may lie there, with a broker of its own."""
    assert isinstance(c.broker, RedisBroker)
    broker = RedisBroker(c.broker.address, test_clock=True, patience=0.0)
    try:
        await broker.hello()
        return await broker.take(Call(incarnation, 1), ["empty"], 0.0, lambda: None)
    finally:
        await broker.close()


async def waited(c: Client, *queues: str) -> object:
    """With a broker of its own: whoever leaves may have something to pass on, in the background."""
    assert isinstance(c.broker, RedisBroker)
    broker = RedisBroker(c.broker.address, test_clock=True, patience=0.0)
    try:
        await broker.hello()
        return await broker.wait(queues, SLEEP)
    finally:
        await broker.close()


async def asleep_for_events(broker: Any) -> object:
    last = None
    while (page := await broker.events(after=last)).events:
        last = page.last
    return await broker.events(after=page.last, timeout=SLEEP)


# These look first, which may move tasks, and then sleep: two commands, each whole or not at all.
TWOFOLD = {"take", "wait", "wait, asleep", "collect, asleep", "events, asleep"}


# A bell that there is no reason to ring is taken away, whatever it is; an outbox is read for other
# shards only; offers are read where nothing waits, and one who enqueues does without them.
UNNOTICED = {"bell:", "mailbell:", "offers:", "outbox:"}


# Who sleeps on which keys; asked only about these, because the sleep costs time.
SLEEPERS = {"bell": "wait", "bell:": "wait", "mailbell:": "collect", "events": "events"}


_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')  # of a command, as MONITOR shows it


class Shard:
    """A shard with something of everything, as often as it is wanted."""

    def __init__(self, running: Running) -> None:
        self.client = redis.Redis(unix_socket_path=running.path)
        self.tokens: dict[str, int] = {}
        self.used: dict[str, set[bytes]] = {}  # by probe: what its commands name, keys among it
        self._copy = Copy(self.client)
        self._names: list[bytes] = []

    async def make(self, broker: RedisBroker) -> None:
        await fill(broker)
        for step in range(4):  # so that the next sweep is no longer under its guard
            await broker.sweep(now=NOW + 9.0 * step)
        for record in await broker.find(TASKS, now=NOW):
            assert record is not None
            self.tokens[record.message.id] = record.token
        self._names = sorted(bytes(name) for name in self.client.scan_iter(count=500))
        self._copy.take()

    async def watch(self, broker: RedisBroker) -> None:
        """Note what the commands of each probe name, those of its functions too."""
        with self.client.monitor() as monitor:  # type: ignore[no-untyped-call]
            for name, probe in PROBES.items():
                self.restore()
                self.client.echo("begin")
                await probe(numbered(broker), self.tokens)
                self.client.echo("end")
                said: list[bytes] = []
                while not said or b'"ECHO" "end"' not in said[-1]:
                    said.append(monitor.connection.read_response())
                begin = next(i for i, line in enumerate(said) if b'"ECHO" "begin"' in line)
                words = (word for line in said[begin:] for word in _WORD.findall(line))
                self.used[name] = {word.decode("unicode_escape").encode("latin1") for word in words}

    def digests(self) -> dict[bytes, bytes]:
        """What every key holds, whatever the order in which the server keeps it."""
        names = [bytes(name) for name in self.client.scan_iter(count=500)]
        found = self.client.execute_command("DEBUG", "DIGEST-VALUE", *names)  # type: ignore[no-untyped-call]
        return dict(zip(names, found, strict=True))

    def restore(self) -> None:
        self._copy.restore()

    def keys_of(self, kind: str) -> list[bytes]:
        """Some keys of a kind; of a family those of several owners."""
        prefix = f"{PREFIX}{kind}".encode()
        if not prefix.endswith(b":"):
            return [prefix]
        found = [key for key in self._names if key.startswith(prefix)]
        return found[:: max(1, len(found) // 3)][:3] or [prefix + b"default"]

    def changed(self, without: bytes) -> list[bytes]:
        """The keys that are not as they were made, but for one."""
        return [key for key in self._copy.differing() if key != without]


@pytest.fixture(scope="module")
def shard() -> Iterator[tuple[Running, Shard]]:
    with server() as running:
        made = Shard(running)

        async def make() -> None:
            async with opened(running, test_clock=True, event_bytes=4096) as broker:
                await made.make(broker)
                for probe in PROBES.values():  # from now on the server knows all functions
                    made.restore()
                    await probe(numbered(broker), made.tokens)
                await made.watch(broker)

        asyncio.run(make())
        yield running, made
        made.client.close()


def numbered(broker: RedisBroker) -> Client:
    """The incarnation that holds all leases, with a number that it has not used yet."""
    c = Client(broker, "w1")
    c.number = 1000
    return c


@contextlib.asynccontextmanager
async def opened(running: Running, **options: Any) -> AsyncIterator[RedisBroker]:
    broker = RedisBroker(running.url, **options)
    try:
        yield broker
    finally:
        await broker.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_key_of_another_type_is_refused_and_nothing_else_changes(
    kind: str, shard: tuple[Running, Shard]
) -> None:
    running, made = shard
    made.restore()
    refused: set[str] = set()
    wrong: list[str] = []
    keys = made.keys_of(kind)
    async with opened(running, test_clock=True, patience=0.0) as broker:
        await broker.hello()
        for key, (name, probe) in itertools.product(keys, PROBES.items()):
            if "asleep" in name and not name.startswith(SLEEPERS.get(kind, "nobody")):
                continue
            if key not in made.used[name]:  # whatever it holds makes no difference
                continue
            made.client.set(key, "a text")
            what = f"{name} with {key.decode()}"
            try:
                await probe(numbered(broker), made.tokens)
            except Refused as error:
                refused.add(name)
                if error.cause != "corrupt":
                    wrong.append(f"{what}: {error}")
                if name not in TWOFOLD and (changed := made.changed(without=key)):
                    wrong.append(f"{what} changed {changed}")
            except Exception as error:  # noqa: BLE001 - whatever else it is, it is wrong
                wrong.append(f"{what}: {type(error).__name__}: {error}")
            made.restore()
    assert wrong == []
    assert refused or kind in UNNOTICED


# -- out of memory ------------------------------------------------------------------------------


class Full:
    """A server without room for another task, with some waiting and some running."""

    def __init__(self, running: Running, broker: RedisBroker) -> None:
        self.running, self.broker = running, broker
        self.accepted: list[str] = []
        self._numbers = itertools.count(1)

    def call(self) -> Call:
        return Call("w", next(self._numbers))

    async def enqueue(self, id: str) -> str:
        [receipt] = await self.broker.enqueue(self.call(), [submit(id, body=b"x" * 5_000)])
        return receipt.code

    async def fetch(self, n: int) -> list[Any]:
        order = Fetch(queues=("default",), max=n)
        return (await self.broker.exchange(self.call(), fetch=order)).leased

    async def fill(self) -> None:
        for id in ("first", "second", "third"):
            await self.enqueue(id)
        broker = self.broker
        for call in self.upkeep().values():  # each function is known to the server
            await call()
        await broker.fire(self.call(), [])
        await broker.note(self.call(), "audit", [])
        used = int(self.running.admin("INFO", "memory")["used_memory"])
        self.running.admin("CONFIG", "SET", "maxmemory", used + 1_000_000)
        with pytest.raises(Refused) as caught:
            await self._until_refused()
        assert caught.value.cause == "oom"
        assert "memory" in str(caught.value)
        self.running.admin("CONFIG", "SET", "maxmemory", used)  # not even room for a reply

    async def _until_refused(self) -> None:
        for n in range(1000):
            assert await self.enqueue(f"filler{n}") == "accepted"
            self.accepted.append(f"filler{n}")

    def upkeep(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """What a system does all the time, or to get out of it."""
        broker = self.broker
        cancel = Alter(id="nobody", action="cancel")
        return {
            "sweep": broker.sweep,
            "promote": broker.promote,
            "deliver": broker.deliver,
            "tidy": broker.tidy,
            "tick": broker.tick,
            "collect": lambda: broker.collect("w", 0, 0.0),
            "wait": lambda: broker.wait(["default"], 0.0),
            "beat": lambda: broker.beat("w", worker=WorkerRecord(incarnation="w")),
            "order_worker": lambda: broker.order_worker(self.call(), "w", "pause"),
            "lead": lambda: broker.lead("manager", "m1"),
            "give_back": lambda: broker.give_back("nobody"),
            "alter": lambda: broker.alter(self.call(), [cancel]),
            "purge": lambda: broker.purge(self.call(), "nothing"),
            "delete_queue": lambda: broker.delete_queue(self.call(), "nothing"),
            "forget_reader": lambda: broker.forget_reader("nobody"),
            "delete_documents": lambda: broker.write_documents(self.call(), DOCUMENTS[1:]),
            "exchange": lambda: broker.exchange(self.call()),
        }

    def reads(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """What people look at when a server is full."""
        broker = self.broker
        return {
            "hello": broker.hello,
            "find": lambda: broker.find(["first"]),
            "schedules": broker.schedules,
            "snapshot": broker.snapshot,
            "stats": broker.stats,
            "standing": lambda: broker.standing("first"),
            "page": broker.page,
            "workers": broker.workers,
            "events": broker.events,
            "pull": lambda: broker.pull("a", ["x"]),
            "documents": lambda: broker.documents("token"),
            "notes": lambda: broker.notes("audit"),
            "settings": broker.settings,
        }


READS = (
    *("hello", "find", "snapshot", "stats", "standing", "page", "workers", "events", "pull"),
    *("documents", "notes", "settings"),
)


@pytest.fixture
async def full(valkey: Running) -> AsyncIterator[Full]:
    async with opened(valkey, patience=10.0) as broker:
        made = Full(valkey, broker)
        for read in made.reads().values():
            await read()
        await made.fill()
        yield made
        valkey.admin("CONFIG", "SET", "maxmemory", 0)
        assert await made.enqueue("after-all") == "accepted"
        assert await broker.audit() == []


async def test_a_full_server_takes_no_tasks_but_lets_them_end(full: Full) -> None:
    broker = full.broker
    firing = Firing(schedule="s", slot=1.0, submission=submit("fired"))
    with pytest.raises(Refused) as caught:
        await broker.fire(full.call(), [firing])
    assert caught.value.cause == "oom"

    leases = await full.fetch(3)
    assert len(leases) == 3
    refs = [ref(lease, "w") for lease in leases]
    assert (await broker.beat("w", refs)).lost == []
    reply = await broker.exchange(full.call(), [complete(leases[0], b"result")], started=refs[1:])
    assert (reply.settled, reply.started) == (["applied"], ["applied"] * 2)
    assert (await broker.give_back("w")).count == 2
    for call in full.upkeep().values():
        await call()
    more = True
    while more:
        more = (await broker.purge(full.call(), "default")).more


async def test_a_full_server_takes_no_documents_and_no_notes(full: Full) -> None:
    broker = full.broker
    for write in (
        lambda: broker.write_documents(full.call(), DOCUMENTS),
        lambda: broker.note(full.call(), "audit", [b"note"]),
    ):
        with pytest.raises(Refused) as caught:
            await write()
        assert caught.value.cause == "oom"
    assert (await broker.documents("token")).documents == []
    assert await broker.notes("audit") == []


async def test_a_full_server_is_filled_no_further_by_those_who_try_again(full: Full) -> None:
    for n in range(20):
        with pytest.raises(Refused):
            await full.enqueue(f"again{n}")
    full.running.admin("CONFIG", "SET", "maxmemory", 0)
    found = await full.broker.find([f"again{n}" for n in range(20)])
    assert found == [None] * 20
    found = await full.broker.find(full.accepted[:500])
    assert None not in found


@pytest.mark.parametrize("verb", READS)
async def test_a_full_server_can_be_looked_into(verb: str, full: Full) -> None:
    await full.reads()[verb]()


async def test_a_full_server_can_be_connected_to(full: Full) -> None:
    """Whoever was cut off, or comes new, can settle and give back."""
    [lease] = await full.fetch(1)
    full.running.admin("CLIENT", "KILL", "TYPE", "normal")
    reply = await full.broker.exchange(full.call(), [complete(lease)])
    assert reply.settled == ["applied"]
    async with opened(full.running, patience=1.0) as another:
        assert (await another.give_back("w")).count == 0
