"""A call whose reply is lost ends as if nothing had happened: same answers, nothing done twice.

One story uses every verb several times. It is told once undisturbed, and then once for each call of
each verb, whose reply is dropped (or broken off) after the server has carried the call out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import msgspec
import pytest

from fairlead.broker.documents import DocumentChange
from fairlead.broker.flows import FlowOrder
from fairlead.broker.records import WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.broker.requests import (
    LAYOUT,
    MAX_STEP,
    Alter,
    Fetch,
    Firing,
    LimiterChange,
    QueueChange,
    TenantChange,
    WorkerOrder,
    Write,
)
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.message import Leased
from fairlead.model.options import Unique
from tests.support.flows import parts_of
from tests.support.proxy import Fault, Proxy, proxy
from tests.support.servers import Running, server
from tests.support.store import (
    NOW,
    Client,
    completed,
    dead,
    events,
    failed,
    released,
    snoozed,
    submit,
)

# How often the story calls the script of each verb; hello is also said on every new connection.
TIMES = {
    "hello": 4,
    "enqueue": 13,
    "exchange": 24,
    "heartbeat": 4,
    "give_back": 3,
    "recover_expired": 4,
    "promote": 3,
    "deliver": 10,
    "expire": 5,
    "watch": 3,
    "collect": 5,
    "write": 4,
    "get_xcom": 4,
    "change_tasks": 8,
    "configure": 4,
    "write_documents": 2,
    "delete_documents": 2,
    "documents": 2,
    "note": 2,
    "notes": 1,
    "order_worker": 3,
    "lead": 3,
    "workers": 2,
    "settings": 1,
    "purge": 3,
    "delete_queue": 3,
    "fire": 3,
    "change_schedules": 3,
    "claim_schedules": 3,
    "events": 5,
    "stage": 3,
    "commit": 3,
    "change_flow": 3,
    "flows": 3,
    "members": 3,
    "can_fetch": 4,  # the question that wait asks
}
AT_ONCE = 6  # replies that are lost in one telling
# How often it sleeps until the server has something to tell.
SLEEPS = {"wait": 2, "collect": 1, "events": 1}

_COMMAND = {
    "wait": (b"BLPOP", b"}:bell"),
    "collect": (b"BLPOP", b"mailbell:"),
    "events": (b"XREAD",),
}
_FUNCTION = re.compile(rb"\r\nfairlead_([a-z_]+)_[0-9a-f]{16}\r\n")

Answer = tuple[str, object]
Plant = Callable[[Proxy], Fault]


# -- the story ----------------------------------------------------------------------------------


class Story:
    """What is asked, and what was answered. Goes by a test clock, so every telling is the same."""

    def __init__(self, broker: RedisBroker, running: Running) -> None:
        self.broker, self.running = broker, running
        self.answers: list[Answer] = []
        self.now = NOW
        self.p, self.w1, self.w2 = (Client(broker, name) for name in ("p", "w1", "w2"))

    async def tell(self) -> None:
        await self.settings()
        await self.work()
        await self.orders()
        await self.pins()
        await self.sleeping()
        await self.recovery()
        await self.upkeep()
        await self.flows()
        await self.ending()

    def say(self, what: str, answer: object) -> None:
        self.answers.append((what, answer))

    async def fetch(self, c: Client, n: int, *queues: str, lease: float = 30.0) -> list[Leased]:
        order = Fetch(queues=queues or ("default",), max=n, start=(n + 1) // 2, lease=lease)
        reply = await c.exchange(fetch=order, now=self.now)
        self.say("fetch", reply)
        return reply.leased

    async def hello(self) -> None:
        said = await self.broker.hello()
        self.say("hello", msgspec.structs.replace(said, now=0.0))  # of the server's own clock

    async def settings(self) -> None:
        p = self.p
        await self.hello()
        await p.configure(QueueChange(queue="default", warn_depth=5, concurrency=6))
        await p.configure(TenantChange(tenant="b", weight=2.0), LimiterChange(name="api", burst=1))
        await p.configure(LimiterChange(name="api", concurrency=1))
        await p.configure(QueueChange(queue="small", max_waiting=2))
        batch = [submit(f"t{n}", "ab"[n % 2], body=b"%d" % n) for n in range(8)]
        self.say("plain", await p.enqueue(*batch))
        self.say("again", await p.enqueue(batch[0], submit("t1", "b", body=b"other")))
        self.say("full", await p.enqueue(*(submit(f"s{n}", queue="small") for n in range(4))))
        unique = Unique(key="k", until="started")
        special = [
            submit("limited-1", "a", limiters=("api",)),
            submit("limited-2", "b", limiters=("api",)),
            submit("late", "a", delay=4.0),
            submit("brief", "b", delay=2.0, deadline=3.0),
            submit("one", "a", unique=unique),
            submit("two", "a", unique=unique),
            submit("child", "b", after=["t0", "late"]),
        ]
        self.say("special", await p.enqueue(*special))

    async def work(self) -> None:
        broker, w1 = self.broker, self.w1
        worker = WorkerRecord(incarnation="w1", host="h", pid=1, queues=("default",))
        self.say("beat", await broker.beat("w1", worker=worker, now=self.now))
        leases = await self.fetch(w1, 4)
        refs = [w1.ref(lease) for lease in leases]
        self.say("watch", await broker.watch("q", [r.id for r in refs] + ["late"], now=self.now))
        fenced = submit("grandchild", "a", fence=refs[0])
        self.say(
            "fenced",
            await self.p.enqueue(
                fenced, submit("x", fence=msgspec.structs.replace(refs[0], token=1))
            ),
        )
        self.say("started", await w1.exchange(started=refs[2:], now=self.now))
        writes = [
            Write(lease=refs[0], kind="progress", value=b"half"),
            Write(lease=refs[1], kind="checkpoint", value=b"here"),
            Write(lease=refs[2], kind="xcom", key="x", value=b"value", ttl=50.0),
        ]
        self.say("write", await w1.write(*writes))
        tenant = leases[2].message.tenant
        self.say("pull", await broker.pull(tenant, ["x", "y"], now=self.now))
        ends = [completed(leases[0], b"result"), failed(leases[1], delay=2.0)]
        self.say("settle", await w1.exchange(ends, now=self.now))
        self.say("write", await w1.write(writes[0], *writes[2:]))
        self.say("settle", await w1.exchange([dead(leases[2]), released(leases[3])], now=self.now))
        self.say("write", await w1.write(writes[2]))
        self.say("collect", await broker.collect("q", 0, 0.0))
        more = await self.fetch(w1, 6)
        self.say("pull", await broker.pull(tenant, ["x"], now=self.now))
        order = Fetch(queues=("default", "small"), max=2)
        ends = [snoozed(more[0], 3.0), *map(completed, more[1:3])]
        self.say("exchange", await w1.exchange(ends, fetch=order, now=self.now))
        self.dead = leases[2].message.id
        self.running_now = [lease.message.id for lease in more[3:]]

    async def orders(self) -> None:
        broker, p = self.broker, self.p
        self.say("watch", await broker.watch("q", [*self.running_now, "none"], now=self.now))
        self.say("cancel", await p.cancel(self.running_now[0]))
        self.say("cancel", await p.alter(*(Alter(id=id, action="cancel") for id in ("late", "t0"))))
        self.say("beat", await broker.beat("w1", now=self.now + 1))
        self.say("requeue", await p.requeue(self.dead))
        self.say("requeue", await p.requeue(self.dead))
        self.say(
            "delete",
            await p.alter(Alter(id="late", action="delete"), Alter(id="t7", action="delete")),
        )
        letters = await broker.collect("q", 0, 0.0)
        self.say("collect", letters)
        self.say("collect", await broker.collect("q", letters[0].number, 0.0))
        filling = [submit(f"f{n}", "abc"[n % 3], "bulk", delay=n % 2 * 9.0) for n in range(9)]
        self.say("bulk", await p.enqueue(*filling))
        self.say("purge", await p.purge("bulk", "a"))
        self.say("purge", await p.purge("bulk"))
        self.say("purge", await p.purge("none"))
        for _ in range(3):  # refused if anything is left, and then gone
            self.say("deleted", await broker.delete_queue(p.call(), "bulk", now=self.now))
        await self.schedules()
        await self.documents()

    async def documents(self) -> None:
        p, broker, now = self.p, self.broker, self.now
        fresh = [DocumentChange(kind="k", name=n, value=b"v", ttl=9.0, revision=0) for n in "aba"]
        gone = [DocumentChange(kind="k", name=n, value=None) for n in "ax"]
        for changes in (fresh, gone, gone, fresh):
            self.say("written", await broker.write_documents(p.call(), changes, now=now))
            if changes is not gone:
                self.say("documents", await broker.documents("k", now=now))
        for values in ([b"1", b"2"], [b"3"]):
            await broker.note(p.call(), "trail", values, now=now)
        self.say("notes", await broker.notes("trail", now=now))
        orders: tuple[WorkerOrder, ...] = ("pause", "stop", "resume")
        for order in orders:
            self.say("ordered", await broker.order_worker(p.call(), "w1", order, now=now))
        for holder, release in (("m1", False), ("m2", False), ("m1", True)):
            self.say("lead", await broker.lead("manager", holder, release=release, now=now))
        self.say("workers", await broker.workers(now=now))
        self.say("settings", await broker.settings("small", now=now))
        later = submit("later", "a", delay=60.0)
        self.say("later", await p.enqueue(later, now=now))
        run, move = Alter(id="later", action="run"), Alter(id="t1", action="prioritize", level=0)
        self.say("altered", await p.alter(run, move, now=now))

    async def schedules(self) -> None:
        p = self.p
        new = ScheduleOrder(name="cron", action="create", queue="default", next_at=NOW)
        self.say("plan", await p.plan(new, now=self.now))
        self.say("plan", await p.plan(new, now=self.now))
        for _ in range(3):
            self.say("tick", await self.broker.tick(now=self.now))
        [record] = await self.broker.schedules(now=self.now)
        for slot, id in ((60.0, "c1"), (60.0, "c2"), (120.0, "c3")):
            firing = Firing(
                schedule="cron",
                slot=NOW + slot,
                submission=submit(id, "c"),
                revision=record.revision,
                next_at=NOW + 120.0 if slot == 60.0 else None,
            )
            self.say("fire", await p.fire(firing))
        self.say("plan", await p.plan(ScheduleOrder(name="cron", action="pause"), now=self.now))
        self.say("schedules", await self.broker.schedules(now=self.now))

    async def pins(self) -> None:
        """Results that are read: pinned, released, pinned again, and deleted all the same."""
        p, w2, now = self.p, self.w2, self.now
        await p.enqueue(*(submit(f"p{n}", "a", "pins") for n in range(3)), now=now)
        first = await self.fetch(w2, 3, "pins")
        self.say("settle", await w2.exchange([completed(first[0], b"r", keep=1.0)], now=now))
        users = [submit(f"u{n}", "a", "pins", after=["p0", "p1"], uses=True) for n in range(2)]
        self.say("uses", await p.enqueue(*users, now=now))
        write = Write(lease=w2.ref(first[1]), kind="xcom", key="p", value=b"short", ttl=1.0)
        self.say("write", await w2.write(write, now=now))
        self.say("settle", await w2.exchange([completed(x) for x in first[1:]], now=now))
        one, two = await self.fetch(w2, 2, "pins")
        self.say("settle", await w2.exchange([completed(one), dead(two)], now=now))
        self.say("requeue", await p.requeue(two.message.id, now=now))
        self.say("tidy", await self.broker.tidy(now=now))
        self.say("pull", await self.broker.pull("a", ["p"], now=now))
        self.say("delete", await p.delete("p1", now=now))
        (two,) = await self.fetch(w2, 1, "pins")
        self.say("settle", await w2.exchange([completed(two)], now=now))
        self.say("deliver", await self.broker.deliver(now=now))

    async def sleeping(self) -> None:
        broker = self.broker
        self.say("wait", await broker.wait(["default"], 5.0))
        waiting = broker.wait(["idle"], 20.0)
        self.say(
            "wait",
            await self.while_asleep(waiting, lambda: self.p.enqueue(submit("i1", "z", "idle"))),
        )
        self.say("wait", await broker.wait(["none"], 0.05))
        [lease] = await self.fetch(self.w2, 1, "idle")
        self.say("watch", await broker.watch("r", ["i1"], now=self.now))
        end = completed(lease, b"r", keep=9.0)
        mail = await self.while_asleep(
            broker.collect("r", 0, 20.0), lambda: self.w2.exchange([end], now=self.now)
        )
        self.say("collect", mail)
        page = await broker.events(reader="reader", limit=7)
        self.say("events", page)
        self.say("events", await broker.events(after=page.last, reader="reader", limit=500))
        last = (await broker.events(after=page.last)).last
        more = broker.events(after=last, timeout=20.0)
        self.say(
            "events",
            await self.while_asleep(more, lambda: self.p.enqueue(submit("i2", "z", "idle"))),
        )

    async def while_asleep(
        self, call: Awaitable[object], then: Callable[[], Awaitable[object]]
    ) -> object:
        """Do something once the call sleeps at the server."""
        asleep = asyncio.ensure_future(call)
        until = time.monotonic() + 10.0
        while not int(self.running.admin("INFO", "clients")["blocked_clients"]):
            assert not asleep.done(), asleep.result()
            assert time.monotonic() < until, "it never fell asleep"
            await asyncio.sleep(0.002)
        self.say("meanwhile", await then())
        return await asyncio.wait_for(asleep, 15.0)

    async def recovery(self) -> None:
        broker = self.broker
        self.now += 5.0
        for _ in range(2):
            self.say("promote", await broker.promote(now=self.now))
        held = await self.fetch(self.w2, 3)
        self.say("beat", await broker.beat("w2", [self.w2.ref(x) for x in held], now=self.now))
        self.say("give back", await broker.give_back("w2", [held[0].message.id], now=self.now))
        self.say("give back", await broker.give_back("w2", now=self.now))
        self.say("beat", await broker.beat("w2", [self.w2.ref(x) for x in held], now=self.now))
        await self.fetch(Client(broker, "w3"), 2, lease=5.0)
        await self.fetch(Client(broker, "w4"), 1, lease=300.0)
        for step in (0.0, 9.0, 9.0, 1.0):
            self.now += step
            self.say("sweep", await broker.sweep(now=self.now))
        self.say("give back", await broker.give_back("w4", now=self.now))

    async def upkeep(self) -> None:
        broker, p = self.broker, self.p
        await self.hello()
        self.say("parent", await p.enqueue(submit("parent", "d", "fan"), now=self.now))
        many = 2 * MAX_STEP + MAX_STEP // 2
        children = [submit(f"d{n}", "d", "fan", after=["parent"]) for n in range(many)]
        self.say("children", await p.enqueue(*children, now=self.now))
        [parent] = await self.fetch(self.w1, 1, "fan")
        self.say("release", await self.w1.exchange([completed(parent)], now=self.now))
        for _ in range(3):
            self.say("deliver", await broker.deliver(now=self.now))
        await self.fetch(self.w1, 128, "fan")
        self.say("promote", await broker.promote(now=self.now))
        for step in (0.0, 60.0, 3600.0, 0.0):
            self.now += step
            self.say("tidy", await broker.tidy(now=self.now))
        self.say("pull", await broker.pull("a", ["x"], now=self.now))

    async def flows(self) -> None:
        broker, p = self.broker, self.p
        leaves = [f"l{n}" for n in range(70)]
        members = [submit("top", queue="flow"), *(submit(id, queue="flow") for id in leaves)]
        members.append(submit("end", queue="flow", after=["top", *leaves]))
        first, second = parts_of("flow", *members, size=40)
        for part in (first, second, parts_of("other", submit("o"))[0]):
            self.say("stage", await broker.stage(p.call(), part, now=self.now))
        for id in ("flow", "other", "none"):
            self.say("commit", await broker.commit(p.call(), id, now=self.now))
        self.say("flows", await broker.flows(["flow"], now=self.now))
        self.say("members", await broker.members("flow", now=self.now))
        for _ in range(4):  # flows take turns
            self.say("deliver", await broker.deliver(now=self.now))
        [top] = await self.fetch(self.w1, 1, "flow")
        self.say("failed", await self.w1.exchange([dead(top)], now=self.now))
        for action in ("retry", "cancel"):
            order = FlowOrder(flow="flow", action=action)
            self.say(action, await broker.alter_flow(p.call(), order, now=self.now))
            self.say("deliver", await broker.deliver(now=self.now))
        order = FlowOrder(flow="flow", action="cancel", tenant="nobody")
        self.say("cancel", await broker.alter_flow(p.call(), order, now=self.now))
        self.say("flows", await broker.flows(["flow", "other", "none"], now=self.now))
        self.say("members", await broker.members("flow", start=60, now=self.now))
        self.say("flows", await broker.flows(["flow"], now=self.now + 4000))
        self.say("members", await broker.members("none", now=self.now))

    async def ending(self) -> None:
        """What is stored in the end, as far as anybody can see it."""
        broker = self.broker
        await self.hello()
        await self.fetch(self.w2, 128, "default", "idle", "small", "bulk", "fan")
        snapshot = await broker.snapshot(now=self.now)
        self.say("snapshot", snapshot)
        self.say("stats", await broker.stats(tenants=True, now=self.now))
        self.say("workers", await broker.workers(now=self.now))
        found = await events(broker)
        self.say("events", found)
        ids = sorted({event.task for event in found} - {""})
        self.say("find", await broker.find(ids, now=self.now))


# -- tellings -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


class Undisturbed(msgspec.Struct):
    """The answers of the clean telling, and how often each verb was called in it."""

    answers: list[Answer]
    calls: Counter[str]


@pytest.fixture(scope="module")
def clean(valkey: Running) -> Undisturbed:
    async def tell() -> Undisturbed:
        seen: Counter[str] = Counter()

        def count(command: bytes) -> bool:
            function = _FUNCTION.search(command[:128])
            verb = function.group(1).decode().removesuffix("_timed") if function else ""
            seen.update([verb] if verb else [])
            seen.update(f"sleep {verb}" for verb in SLEEPS if sleeps(verb)(command))
            return False

        async with told(valkey, count) as (story, _):
            await story.tell()
            return Undisturbed(story.answers, seen.copy())  # without what the audit asks

    asyncio.run(tell())  # the first one loads the functions
    return asyncio.run(tell())


@contextlib.asynccontextmanager
async def told(
    running: Running, matching: Callable[[bytes], bool]
) -> AsyncIterator[tuple[Story, Proxy]]:
    """A story on an empty server that is reached through a proxy; sound in the end."""
    running.admin("FLUSHALL")
    meta = {"generation": "g", "layout": LAYOUT, "least": LAYOUT, "cap": 16 * 1024 * 1024}
    running.admin("HSET", "fl1:{0}:meta", *itertools.chain(*meta.items()))
    async with proxy(path=running.path, matching=matching) as between:
        broker = RedisBroker(between.url, test_clock=True)
        story = Story(broker, running)
        try:
            yield story, between
            assert await broker.audit(now=story.now) == []
            assert broker.changes == []
        finally:
            await broker.close()


def calls(verb: str) -> Callable[[bytes], bool]:
    part = f"\r\nfairlead_{verb}_".encode()
    return lambda command: part in command[:64]


def sleeps(verb: str) -> Callable[[bytes], bool]:
    parts = _COMMAND[verb]
    return lambda command: parts[0] in command[:24] and all(part in command for part in parts)


async def disturbed(
    running: Running, clean: Undisturbed, matching: Callable[[bytes], bool], plant: Plant
) -> None:
    """Tell the story with a fault in it, and compare."""
    async with told(running, matching) as (story, between):
        fault = plant(between)
        await story.tell()
        assert fault.happened.is_set(), "there was no such call"
    for found, wanted in zip(story.answers, clean.answers, strict=True):
        assert found == wanted


# -- tests --------------------------------------------------------------------------------------


def test_the_story_calls_every_verb_as_often_as_it_is_disturbed(clean: Undisturbed) -> None:
    found = {verb: clean.calls[verb] for verb in TIMES}
    at_least = {
        "hello",
        "can_fetch",
        "collect",
        "events",
    }  # those that go by the real clock may vary
    assert {v: n for v, n in found.items() if v not in at_least} == {
        v: n for v, n in TIMES.items() if v not in at_least
    }
    assert all(found[verb] >= TIMES[verb] for verb in at_least), found
    assert all(clean.calls[f"sleep {verb}"] >= SLEEPS[verb] for verb in SLEEPS), clean.calls


def together() -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each call of each verb once: calls of the same number, of a few verbs in one telling.

    A new connection says hello, so a reply to that is lost alone.
    """
    yield from ((number, ("hello",)) for number in range(1, TIMES["hello"] + 1))
    for number in range(1, max(TIMES.values()) + 1):
        verbs = [verb for verb, times in TIMES.items() if times >= number and verb != "hello"]
        apart = -(-len(verbs) // AT_ONCE)  # neighbors in the list are near each other in the story
        yield from ((number, tuple(verbs[place::apart])) for place in range(apart))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "verbs"), [*together()])
async def test_a_lost_reply_changes_no_answer(
    number: int, verbs: tuple[str, ...], valkey: Running, clean: Undisturbed
) -> None:
    seen: Counter[str] = Counter()

    def is_one(command: bytes) -> bool:
        verb = next((verb for verb in verbs if calls(verb)(command)), "")
        seen[verb] += 1
        return verb != "" and seen[verb] == number

    def plant(between: Proxy) -> Fault:
        return [between.drop_reply(place) for place in range(1, len(verbs) + 1)][-1]

    await disturbed(valkey, clean, is_one, plant)


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        ("enqueue", 1),
        ("exchange", 1),
        ("exchange", 7),
        ("heartbeat", 2),
        ("get_xcom", 1),
        ("collect", 2),
        ("events", 2),
        ("hello", 1),
        ("watch", 1),
    ],
)
async def test_a_reply_that_breaks_off_changes_no_answer(
    verb: str, number: int, valkey: Running, clean: Undisturbed
) -> None:
    await disturbed(valkey, clean, calls(verb), lambda p: p.cut_reply(number))


@pytest.mark.parametrize(
    ("verb", "number"), [(verb, k) for verb, times in SLEEPS.items() for k in range(1, times + 1)]
)
async def test_a_wake_up_that_is_lost_wakes_nevertheless(
    verb: str, number: int, valkey: Running, clean: Undisturbed
) -> None:
    await disturbed(valkey, clean, sleeps(verb), lambda p: p.drop_reply(number))


@pytest.mark.parametrize(
    ("command", "number"),
    [("CLIENT", 1), ("INFO", 1), ("FUNCTION", 1), ("FUNCTION", 2), ("FCALL", 1), ("FCALL", 2)],
)
async def test_a_reply_lost_while_a_server_is_met_changes_no_answer(
    command: str, number: int, valkey: Running, clean: Undisturbed
) -> None:
    def plant(between: Proxy) -> Fault:
        valkey.admin("FUNCTION", "FLUSH")  # as on a new server: functions are loaded on first use
        return between.drop_reply(number)

    await disturbed(valkey, clean, lambda sent: f"\r\n{command}\r\n".encode() in sent[:32], plant)


async def test_every_reply_of_a_verb_may_be_lost(valkey: Running, clean: Undisturbed) -> None:
    """Each first try of exchange is lost: what is repeated is never carried out twice."""
    async with told(valkey, calls("exchange")) as (story, between):
        faults = [between.drop_reply(2 * k + 1) for k in range(TIMES["exchange"])]
        await story.tell()
        assert all(fault.happened.is_set() for fault in faults)
    assert story.answers == clean.answers
