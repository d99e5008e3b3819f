"""Any commands in any order: after each, the stored tasks are what the contract says they are.

The machine knows a reference that is only dictionaries. With a server it drives two brokers side by
side, which must answer everything alike. FAIRLEAD_EXAMPLES multiplies its runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.verbs import (
    HEARTBEAT,
    MAX_PAGE,
    Alter,
    Altered,
    BeatReply,
    Call,
    Change,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    LimiterChange,
    Mail,
    Moved,
    QueueChange,
    Receipt,
    Settled,
    Snapshot,
    Submission,
    TaskRecord,
    TenantChange,
    Watched,
    WorkerRecord,
    Write,
)
from fairlead.model.errors import InvalidInput, OutOfOrder
from fairlead.model.events import EventId
from fairlead.model.lifecycle import FINAL, WAITING, Settlement, State, overruled
from fairlead.model.message import Leased
from fairlead.model.options import Dependency, Unique
from tests.support import servers
from tests.support.fair import EXAMPLES, examples
from tests.support.reference import Reference
from tests.support.store import ERROR, NOW, Client, completed, ids, submit
from tests.support.twins import on_server, twins


def _id(number: int) -> str:
    """Most ids look like those that Fairlead makes: a broker may know a shorter way for them."""
    return f"t{number}" if number % 3 == 0 else f"{number:032x}"


IDS = st.integers(0, 59).map(_id)
ANY = st.integers(0, 1_000)  # one of what there is, whatever that is
TENANTS = st.sampled_from("abc")
QUEUES = st.sampled_from(["x", "y"])
CLIENTS = st.sampled_from(["w1", "w2", "w3"])
LIMITERS = st.sampled_from([(), (), (), ("l1",), ("l1", "l2")])
POLICIES = st.sampled_from(["dead", "cancel", "wait", "run"])
UNIQUES = st.none() | st.builds(
    Unique,
    key=st.sampled_from(["k1", "k2"]),
    until=st.sampled_from(["started", "done", "window"]),
    window=st.sampled_from([1.0, 10.0]),
)
DEPENDENCIES = st.lists(st.builds(Dependency, ANY.map(str), st.booleans()), max_size=2)
SUBMISSIONS = st.builds(
    submit,
    IDS,
    TENANTS,
    QUEUES,
    level=st.integers(0, 3),
    limiters=LIMITERS,
    cost=st.sampled_from([1.0, 1.0, 1.0, 0.5, 3.0]),
    body=st.sampled_from([b"x", b"x", b"x", b"y"]),
    delay=st.sampled_from([0.0, 0.0, 0.0, 1.0, 7.0]),
    deadline=st.sampled_from([None, None, None, 5.0, 20.0]),
    after=st.just(()) | DEPENDENCIES,
    policy=POLICIES,
    unique=UNIQUES,
)
ENDS: list[dict[str, Any]] = [
    {"to": State.COMPLETED},
    {"to": State.COMPLETED, "result": b"r", "run_time": 0.5},
    {"to": State.RETRYING, "delay": 2.0, "error": ERROR, "run_time": 3.0},
    {"to": State.RETRYING, "delay": 5.0, "error": ERROR, "burn": False, "reason": "unroutable"},
    {"to": State.DEAD, "reason": "exhausted", "error": ERROR},
    {"to": State.QUEUED, "burn": False, "reason": "released"},
    {"to": State.SCHEDULED, "burn": False, "delay": 3.0, "reason": "snoozed"},
    {"to": State.CANCELLED},
    {"to": State.COMPLETED, "keep": 0.0},
    {"to": State.COMPLETED, "result": b"kept", "keep": 10.0},
    {"to": State.DEAD, "reason": "rejected", "keep": 0.0},
]
END = st.sampled_from(ENDS)
RARELY = st.sampled_from([False, False, False, True])
LIMITS = st.sampled_from([None, None, None, 0, 1, 2, 5])
RATES = st.sampled_from([None, None, 0.1, 0.5, 3.0])
BURSTS = st.sampled_from([1, 1, 2, 3])
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(QueueChange, queue=QUEUES, paused=RARELY),
    st.builds(QueueChange, queue=QUEUES, concurrency=LIMITS),
    st.builds(
        QueueChange,
        queue=QUEUES,
        max_waiting=st.sampled_from([None, None, 12]),
        max_tenant_waiting=st.sampled_from([None, None, 5]),
    ),
    st.builds(QueueChange, queue=QUEUES, rate=RATES, burst=BURSTS),
    st.builds(QueueChange, queue=QUEUES, charge_run_time=st.booleans()),
    st.builds(QueueChange, queue=QUEUES, warn_depth=st.sampled_from([None, 2, 5])),
    st.builds(
        QueueChange,
        queue=QUEUES,
        keep_completed=st.sampled_from([3600.0, 5.0]),
        keep_completed_count=st.sampled_from([10_000, 0, 2]),
        keep_completed_bytes=st.sampled_from([1_000_000, 450]),
        keep_dead=st.sampled_from([604_800.0, 15.0]),
    ),
    st.builds(TenantChange, tenant=TENANTS, queue=st.none() | QUEUES, rate=RATES, burst=BURSTS),
    st.builds(LimiterChange, name=st.sampled_from(["l1", "l2"]), rate=RATES, burst=BURSTS),
    st.builds(TenantChange, tenant=TENANTS, queue=st.none() | QUEUES, paused=RARELY),
    st.builds(TenantChange, tenant=TENANTS, queue=st.none() | QUEUES, concurrency=LIMITS),
    st.builds(TenantChange, tenant=TENANTS, weight=st.sampled_from([0.5, 1.0, 3.0])),
    st.builds(LimiterChange, name=st.sampled_from(["l1", "l2"]), concurrency=LIMITS),
)


def _resolved(submission: Submission, names: list[str]) -> Submission:
    """The submission with its dependencies by name instead of by number."""
    found = {names[int(d.id) % len(names)]: d.known for d in submission.depends_on}
    edges = tuple(Dependency(name, known) for name, known in found.items())
    return msgspec.structs.replace(submission, depends_on=edges)


F = TypeVar("F", bound=Callable[..., None])
OPS: dict[str, st.SearchStrategy[dict[str, Any]]] = {}  # by name: what it is called with
OFTEN: list[str] = []  # each as often as it is to be drawn


def op(weight: int, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """One thing the machine can do.

    Not a rule of its own: Hypothesis leaves out rules at random, and draws those that are left
    equally often. Few runs would get as far as a task that is lent, and hardly any beyond.
    """

    def add(method: F) -> F:
        OPS[method.__name__] = st.fixed_dictionaries(arguments)
        OFTEN.extend([method.__name__] * weight)
        return method

    return add


class BrokerMachine(RuleBasedStateMachine):
    """Drives one broker and the reference side by side."""

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(OFTEN))
        getattr(self, name)(**data.draw(OPS[name], name))

    def open(self) -> Store:
        return MemoryBroker(test_clock=True)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.broker = self.open()
        self.model = Reference(NOW)
        self.numbers: Counter[str] = Counter()
        self.granted: list[tuple[str, Leased]] = []  # every lease there ever was
        self.ends: dict[str, float] = {}  # of the leases of each incarnation
        self.tidied = True
        self.last_sweep: float | None = None
        self.guard = 0.0
        self.seen: EventId | None = None
        self.fresh: set[str] = set()
        self.crowded = False  # so many tasks that what one verb leaves is another's
        self.purged = False
        self.watched: set[tuple[str, str]] = set()
        self.mail: Counter[str] = Counter()  # the last letter that each client has seen
        self.readers: dict[str, EventId | None] = {}
        self.repeat: dict[str, tuple[Callable[[Call], Awaitable[Any]], Call, Any]] = {}

    def teardown(self) -> None:
        self.loop.run_until_complete(self.broker.close())
        self.loop.close()

    def run(self, answer: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await answer

        return self.loop.run_until_complete(wait())

    def numbered(self, client: str, verb: Callable[[Call], Awaitable[Any]]) -> Any:
        """Make the next call of a client, and remember how to repeat it."""
        self.numbers[client] += 1
        call = Call(client, self.numbers[client])
        reply = self.run(verb(call))
        self.repeat[client] = (verb, call, reply)
        return reply

    def follow(self) -> list[str]:
        """Let the reference carry out what the broker says it did; the kinds of events."""
        page = self.run(self.broker.events(after=self.seen, limit=MAX_PAGE))
        assert not page.gap
        for event in page.events:
            assert event.at <= self.model.now
            assert self.seen is None or self.seen < event.id
            self.seen = event.id
            self.model.follow(event, self.fresh)
        self.fresh.clear()
        return [event.kind for event in page.events]

    def must_be(self, expected: dict[str, State]) -> None:
        for id, state in expected.items():
            task = self.model.tasks[id]
            late = task.deadline is not None and task.deadline <= self.model.now
            assert task.state is state or (late and task.state is State.DEAD), id

    # -- producers --------------------------------------------------------------------------

    @op(8, client=CLIENTS, submissions=st.lists(SUBMISSIONS, min_size=1, max_size=8))
    def enqueue(self, client: str, submissions: list[Submission]) -> None:
        now = self.model.now
        names = [*self.model.tasks, *(s.message.id for s in submissions), "ghost"]
        submissions = [_resolved(submission, names) for submission in submissions]
        receipts: list[Receipt] = self.numbered(
            client, lambda call: self.broker.enqueue(call, submissions, now=now)
        )
        for submission, receipt in zip(submissions, receipts, strict=True):
            self.model.enqueued(submission, receipt)
            if receipt.code == "accepted":
                self.fresh.add(receipt.id)

    @op(
        2,
        client=CLIENTS,
        schedule=st.sampled_from(["s1", "s2"]),
        slots=st.lists(st.integers(0, 5).map(float), min_size=1, max_size=2),
        submission=SUBMISSIONS,
    )
    def fire(self, client: str, schedule: str, slots: list[float], submission: Submission) -> None:
        now = self.model.now
        names = [*self.model.tasks, submission.message.id, "ghost"]
        submission = _resolved(submission, names)
        firings = [Firing(schedule=schedule, slot=slot, submission=submission) for slot in slots]
        receipts: list[Receipt] = self.numbered(
            client, lambda call: self.broker.fire(call, firings, now=now)
        )
        for firing, receipt in zip(firings, receipts, strict=True):
            self.model.fired(firing, receipt)
            if receipt.code == "accepted":
                self.fresh.add(receipt.id)

    @op(
        1,
        client=CLIENTS,
        submission=SUBMISSIONS,
        many=st.sampled_from([105, 130]),
        rarely=st.integers(0, 9),
    )
    def enqueue_a_crowd(self, client: str, submission: Submission, many: int, rarely: int) -> None:
        """More tasks for one tenant, or more dependents of one task, than a call sees to."""
        if rarely or self.crowded:
            return
        self.crowded = True
        names = [*self.model.tasks, "ghost"]
        first = _resolved(msgspec.structs.replace(submission, unique=None, delay=0.0), names)
        crowd = []
        for n in range(many):
            message = msgspec.structs.replace(first.message, id=_id(100 + n))
            crowd.append(msgspec.structs.replace(first, message=message))
        now = self.model.now
        receipts: list[Receipt] = self.numbered(
            client, lambda call: self.broker.enqueue(call, crowd, now=now)
        )
        for given, receipt in zip(crowd, receipts, strict=True):
            self.model.enqueued(given, receipt)
            if receipt.code == "accepted":
                self.fresh.add(receipt.id)

    @op(1, client=CLIENTS, submission=SUBMISSIONS, which=st.integers(0, 1_000))
    def enqueue_child(self, client: str, submission: Submission, which: int) -> None:
        if self.granted:
            owner, lease = self.granted[which % len(self.granted)]
            fence = LeaseRef(lease.message.id, owner, lease.token)
            self.enqueue(client, [msgspec.structs.replace(submission, fence=fence)])

    # -- workers ----------------------------------------------------------------------------

    @op(
        6,
        client=CLIENTS,
        queues=st.sampled_from([("x",), ("y",), ("x", "y"), ("y", "x")]),
        size=st.integers(0, 8),
        start=st.none() | st.integers(0, 4),
        ends=st.lists(st.tuples(ANY, END, st.booleans()), max_size=4),
        marks=st.lists(st.integers(0, 1_000), max_size=2),
    )
    def exchange(
        self,
        client: str,
        queues: tuple[str, ...],
        size: int,
        start: int | None,
        ends: list[tuple[int, dict[str, Any], bool]],
        marks: list[int],
    ) -> None:
        settlements = [s for end in ends if (s := self._settlement(client, *end)) is not None]
        started = [r for mark in marks if (r := self._mark(client, mark)) is not None]
        fetch = Fetch(queues=queues, max=size, start=start, lease=30.0) if size else None
        now = self.model.now
        reply: ExchangeReply = self.numbered(
            client,
            lambda call: self.broker.exchange(
                call, settlements, started=started, fetch=fetch, now=now
            ),
        )
        ended = self._settled(client, settlements, started, reply)
        self.follow()
        if fetch is not None:
            self._fetched(client, fetch, reply)
        self.must_be(ended | dict.fromkeys(ids(reply.leased), State.RUNNING))

    @op(6, client=CLIENTS, size=st.integers(1, 8), held=st.sampled_from([False, False, True]))
    def fetch(self, client: str, size: int, held: bool) -> None:
        self.exchange(client, ("x", "y"), size, 1 if held else None, [], [])

    @op(8, which=ANY, ends=st.lists(END, min_size=1, max_size=4))
    def settle(self, which: int, ends: list[dict[str, Any]]) -> None:
        running = self.model.having(State.RUNNING)
        if running:
            owner = running[which % len(running)].owner
            mine = [(which + i, to, True) for i, to in enumerate(ends)]
            self.exchange(owner, ("x", "y"), which % 5, None, mine, [which])

    @op(1, which=ANY, to=END)
    def settle_with_an_old_token(self, which: int, to: dict[str, Any]) -> None:
        """By whoever holds the task now: id and incarnation match, only the token does not."""
        tokens = {t.message.id: (t.token, t.owner) for t in self.model.having(State.RUNNING)}
        old = [
            (tokens[lease.message.id][1], lease)
            for _, lease in self.granted
            if tokens.get(lease.message.id, (lease.token,))[0] != lease.token
        ]
        if old:
            owner, lease = old[which % len(old)]
            stale = Settlement(id=lease.message.id, token=lease.token, **to)
            now = self.model.now
            reply: ExchangeReply = self.numbered(
                owner, lambda call: self.broker.exchange(call, [stale], now=now)
            )
            assert reply.settled == ["fenced"]
            assert set(self.follow()) <= {"fenced"}

    @op(2, client=CLIENTS, size=st.integers(1, 4), times=st.integers(1, 3))
    def crash_again_and_again(self, client: str, size: int, times: int) -> None:
        for _ in range(times):
            self.fetch(client, size, held=False)
            self.crash(client, None)

    def _settlement(
        self, client: str, which: int, to: dict[str, Any], mine: bool
    ) -> Settlement | None:
        leases = self.model.leases(client)
        if mine and leases:
            id, task = sorted(leases.items())[which % len(leases)]
            return Settlement(id=id, token=task.token, **to)
        if self.granted:  # of anybody, at any time: most are over
            _, lease = self.granted[which % len(self.granted)]
            return Settlement(id=lease.message.id, token=lease.token, **to)
        return None

    def _mark(self, client: str, which: int) -> LeaseRef | None:
        if not self.granted:
            return None
        owner, lease = self.granted[which % len(self.granted)]
        return LeaseRef(lease.message.id, owner, lease.token)

    def _settled(
        self,
        client: str,
        settlements: list[Settlement],
        started: list[LeaseRef],
        reply: ExchangeReply,
    ) -> dict[str, State]:
        """Check the answers; what must have become of the settled tasks."""
        ended: dict[str, State] = {}
        for settlement, answer in zip(settlements, reply.settled, strict=True):
            task = self.model.tasks.get(settlement.id)
            if task is not None and settlement.id in ended:
                assert answer == ("unknown" if task.keep == 0.0 else "fenced")
                continue
            assert answer == self.model.settled(client, settlement)
            if task is not None and answer == "applied":
                to = overruled(settlement.to, cancel_requested=task.cancelling)
                ended[settlement.id] = to
        for mark, answer in zip(started, reply.started, strict=True):
            expected = self.model.answer(mark.id, mark.incarnation, mark.token)
            if mark.id in ended:  # and perhaps forgotten
                assert answer in ("fenced", "unknown")
            elif mark.incarnation != client and expected == "applied":
                assert answer == "fenced"
            else:
                assert answer == expected
        return ended

    def _fetched(self, client: str, fetch: Fetch, reply: ExchangeReply) -> None:
        model = self.model
        assert len(reply.leased) <= fetch.max
        at_once = fetch.max if fetch.start is None else fetch.start
        for place, lease in enumerate(reply.leased):
            assert lease.started == (place < at_once)
            assert lease.message.queue in fetch.queues
            assert lease.token > model.last_token
            assert lease.token >= int(model.now * 1_000_000)
            model.leased(client, lease)
            self.granted.append((client, lease))
        assert len({lease.token for lease in reply.leased}) <= 1
        model.last_token = max([model.last_token, *(lease.token for lease in reply.leased)])
        self.ends[client] = max(self.ends.get(client, 0.0), model.now + fetch.lease)
        for lease in reply.leased:
            assert all(running <= limit for limit, running in model.limits(lease.message))
        due = [t for t in model.having(State.SCHEDULED, State.RETRYING) if t.due is not None]
        assert reply.more or all(task.due is None or task.due > model.now for task in due)
        if len(reply.leased) < fetch.max and not reply.more:
            for queue in fetch.queues:
                assert not model.servable(queue), "work was left though there was room"

    @op(2, client=CLIENTS, lease=st.sampled_from([5.0, 30.0]), described=st.booleans())
    def beat(self, client: str, lease: float, described: bool) -> None:
        held = [LeaseRef(x.message.id, owner, x.token) for owner, x in self.granted[-6:]]
        held = [ref for ref in held if ref.incarnation == client]
        now = self.model.now
        worker = WorkerRecord(incarnation=client, queues=("x", "y"), details={"n": len(held)})
        reply: BeatReply = self.run(
            self.broker.beat(
                client, held, worker=worker if described else None, lease=lease, now=now
            )
        )
        mine = self.model.leases(client)
        lost = [r for r in held if self.model.answer(r.id, client, r.token) != "applied"]
        assert reply.lost == lost
        assert {ref.id for ref in reply.cancelled} == {i for i, t in mine.items() if t.cancelling}
        if mine:
            self.ends[client] = max(self.ends[client], self.model.now + lease)

    @op(1, client=CLIENTS, started=st.none() | st.lists(IDS, max_size=6))
    def crash(self, client: str, started: list[str] | None) -> None:
        expected = self.model.lost(client, started)
        moved: Moved = self.run(self.broker.give_back(client, started, now=self.model.now))
        assert (moved.count, moved.more) == (len(expected), False)
        self.follow()
        self.must_be(expected)

    @op(
        3,
        client=CLIENTS,
        which=st.lists(ANY, min_size=1, max_size=3),
        kind=st.sampled_from(["progress", "checkpoint", "xcom", "xcom"]),
        key=st.sampled_from(["k1", "k2"]),
        value=st.sampled_from([b"", b"1", b"22"]),
        ttl=st.sampled_from([1.0, 86_400.0]),
    )
    def write(
        self, client: str, which: list[int], kind: Any, key: str, value: bytes, ttl: float
    ) -> None:
        marks = [mark for each in which if (mark := self._mark(client, each)) is not None]
        mine = [LeaseRef(id, client, task.token) for id, task in self.model.leases(client).items()]
        leases = [*marks, *mine[:1]]
        writes = [Write(lease=each, kind=kind, key=key, value=value, ttl=ttl) for each in leases]
        now = self.model.now
        answers: list[Settled] = self.numbered(
            client, lambda call: self.broker.write(call, writes, now=now)
        )
        assert answers == [self.model.wrote(client, each) for each in writes]
        assert set(self.follow()) <= {"progress"}

    @op(1, tenant=TENANTS)
    def pull(self, tenant: str) -> None:
        keys = ["k1", "k2", "k3"]
        found = self.run(self.broker.pull(tenant, keys, now=self.model.now))
        assert found == self.model.pulled(tenant, keys)

    # -- those who wait ---------------------------------------------------------------------

    @op(3, client=CLIENTS, which=st.lists(ANY, min_size=1, max_size=4))
    def watch(self, client: str, which: list[int]) -> None:
        names = [*self.model.tasks, "ghost"]
        asked = [names[i % len(names)] for i in which]
        found: list[Watched] = self.run(self.broker.watch(client, asked, now=self.model.now))
        states = {id: task.state for id, task in self.model.tasks.items()}
        assert found == [Watched(id, states.get(id)) for id in asked]
        self.watched.update((client, id) for id in asked)

    @op(2, client=CLIENTS, confirm=st.booleans())
    def collect(self, client: str, confirm: bool) -> None:
        after = self.mail[client] if confirm else 0
        letters: list[Mail] = self.run(self.broker.collect(client, after, 0.0))
        numbers = [letter.number for letter in letters]
        assert numbers == sorted(set(numbers))
        assert all(number > after for number in numbers)
        for letter in letters:
            assert letter.kind == "cancel" or (client, letter.id) in self.watched
        self.mail[client] = max([self.mail[client], *numbers])

    @op(1, queues=st.sampled_from([("x",), ("y",), ("y", "x"), ("z",)]))
    def wait(self, queues: tuple[str, ...]) -> None:
        found = self.run(self.broker.wait(queues, 0.0))
        self.follow()
        assert found or not any(self.model.servable(queue) for queue in queues)
        assert self.run(self.broker.hello()).layout == 1

    @op(1, reader=st.sampled_from(["r1", "r2"]), limit=st.integers(1, 40), confirm=st.booleans())
    def read_events(self, reader: str, limit: int, confirm: bool) -> None:
        if self.purged:  # the events of a purge have no order that a limit could cut
            limit = MAX_PAGE
        after = self.readers.get(reader) if confirm else None
        page = self.run(self.broker.events(after=after, reader=reader, limit=limit))
        assert len(page.events) <= limit
        assert not page.gap
        self.readers[reader] = page.last if page.events else after

    # -- time and upkeep --------------------------------------------------------------------

    @op(5, seconds=st.sampled_from([0.5, 1.0, 3.0, 6.0, 9.0, 20.0]))
    def tick(self, seconds: float) -> None:
        self.model.now += seconds

    @op(1, days=st.sampled_from([0.05, 3.0, 8.0]), rarely=st.booleans())
    def long_silence(self, days: float, rarely: bool) -> None:
        if rarely:
            return
        self.model.now += days * 86_400
        self.repeat.clear()  # answers are kept for an hour

    @op(3)
    def sweep(self) -> None:
        now = self.model.now
        if self.last_sweep is None or now - self.last_sweep > HEARTBEAT:
            self.guard = now + HEARTBEAT
        self.last_sweep = now
        over = [
            client
            for client, end in self.ends.items()
            if end < now and self.model.leases(client) and now >= self.guard
        ]
        expected: dict[str, State] = {}
        for client in over:
            expected |= self.model.lost(client, None)
        moved: Moved = self.run(self.broker.sweep(now=now))
        assert moved.guarded == (now < self.guard)
        assert (moved.count, moved.more) == (len(expected), False)
        self.follow()
        self.must_be(expected)

    @op(2)
    def promote(self) -> None:
        now = self.model.now
        self.run(self.broker.promote(now=now))
        self.follow()
        for task in self.model.having(*WAITING):
            if task.state in {State.SCHEDULED, State.RETRYING}:
                assert task.due is not None
                assert task.due > now
            if not task.ever_started and not task.generation:
                assert task.deadline is None or now <= task.deadline

    @op(1)
    def deliver(self) -> None:
        self.run(self.broker.deliver(now=self.model.now))

    @op(1)
    def tidy(self) -> None:
        while self.run(self.broker.tidy(now=self.model.now)).more:
            pass
        self.tidied = True

    # -- operators --------------------------------------------------------------------------

    @op(
        4,
        client=CLIENTS,
        action=st.sampled_from(["cancel", "cancel", "requeue", "delete"]),
        which=st.lists(ANY, min_size=1, max_size=3),
        tenant=st.none() | TENANTS,
    )
    def alter(self, client: str, action: Any, which: list[int], tenant: str | None) -> None:
        now = self.model.now
        names = [*self.model.tasks, "ghost"]
        orders = list(dict.fromkeys(names[i % len(names)] for i in which))
        asked = [Alter(id=id, action=action, tenant=tenant) for id in orders]
        before = {id: self.model.tasks[id].state for id in orders if id in self.model.tasks}
        answers: list[Altered] = self.numbered(
            client, lambda call: self.broker.alter(call, asked, now=now)
        )
        for order, answer in zip(asked, answers, strict=True):
            task, state = self.model.tasks.get(order.id), before.get(order.id)
            if task is None or tenant not in (None, task.message.tenant):
                assert answer.code == "unknown"
            elif action == "cancel" and state in WAITING and len(orders) == 1:
                assert answer.code == "done"
            elif action == "cancel" and state is State.RUNNING:
                assert answer.code == "requested"
            elif (action == "requeue" and state is State.DEAD) or (
                action == "delete" and state in FINAL
            ):
                assert answer.code == "done"
            elif len(orders) == 1:
                assert (answer.code, answer.state) == ("unchanged", state)
        self.follow()
        for answer in answers:
            if answer.code == "done" and action == "cancel":
                assert self.model.tasks[answer.id].state is State.CANCELLED
            elif answer.code == "done" and action == "requeue":
                assert self.model.tasks[answer.id].state is State.QUEUED
            elif answer.code == "done":
                assert answer.id not in self.model.tasks
            elif answer.code == "requested":
                assert self.model.tasks[answer.id].cancelling

    @op(1, client=CLIENTS, queue=QUEUES, tenant=st.none() | TENANTS)
    def purge(self, client: str, queue: str, tenant: str | None) -> None:
        if self._order_matters(queue, tenant):
            return
        self.purged = True
        now = self.model.now
        self.numbered(client, lambda call: self.broker.purge(call, queue, tenant, now=now))
        self.follow()
        assert self.model.waiting(queue, tenant) == []

    def _order_matters(self, queue: str, tenant: str | None) -> bool:
        """Whether others would see in which order a purge ends these tasks: the store's own."""
        doomed = {task.message.id for task in self.model.waiting(queue, tenant)}
        others = [t for t in self.model.having(State.DEFERRED) if t.message.id not in doomed]
        tied = doomed.intersection(*[set().union(*(task.waits_for for task in others))])
        tied |= doomed.intersection(id for _, id in self.watched)
        return len(tied) > 1

    @op(4, client=CLIENTS, changes=st.lists(CHANGES, min_size=1, max_size=2))
    def configure(self, client: str, changes: list[Change]) -> None:
        now = self.model.now
        self.numbered(client, lambda call: self.broker.configure(call, changes, now=now))
        for change in changes:
            self.model.settings.change(change)

    @op(2, client=CLIENTS)
    def repeat_the_last_call(self, client: str) -> None:
        if client not in self.repeat:
            return
        verb, call, reply = self.repeat[client]
        again = self.run(verb(call))
        if isinstance(reply, ExchangeReply):
            assert (again.settled, again.started) == (reply.settled, reply.started)
            kept = [x for x in reply.leased if self._in_force(client, x)]
            assert [x for x in again.leased if self._in_force(client, x)] == kept
        else:
            assert again == reply
        assert self.follow() == [], "a repeated call changed something"

    @op(1, client=CLIENTS)
    def go_back_to_an_earlier_call(self, client: str) -> None:
        if client not in self.repeat:
            return
        _, call, _ = self.repeat[client]
        earlier = Call(client, call.number - 1)
        now = self.model.now
        with pytest.raises(OutOfOrder):
            self.run(self.broker.enqueue(earlier, [submit("late")], now=now))

        async def as_another_verb() -> None:  # at most one of the two is the verb of the last call
            await self.broker.enqueue(call, [], now=now)
            await self.broker.alter(call, [], now=now)

        with pytest.raises(InvalidInput):
            self.run(as_another_verb())
        assert self.follow() == []

    def _in_force(self, client: str, lease: Leased) -> bool:
        return self.model.answer(lease.message.id, client, lease.token) == "applied"

    # -- after every step -------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_twice(self) -> None:
        self.follow()
        model = self.model
        while self.crowded and self.run(self.broker.deliver(now=model.now)).more:
            self.follow()
        self.follow()
        known = list(model.tasks)
        records: list[TaskRecord | None] = self.run(self.broker.find(known, now=model.now))
        for id, record in zip(known, records, strict=True):
            model.compare(id, record)
        assert self._pages() == Counter(list(model.tasks))
        snapshot: Snapshot = self.run(self.broker.snapshot(now=model.now))
        states = Counter(task.state for task in model.tasks.values())
        assert snapshot.depth == sum(states[state] for state in WAITING)
        assert snapshot.ready == states[State.QUEUED]
        for state in (WAITING | {State.RUNNING}) - {State.QUEUED}:
            assert getattr(snapshot, state) == states[state], state
        for state in FINAL:  # what is past its retention is counted until it is tidied up
            assert getattr(snapshot, state) >= states[state], state
            assert getattr(snapshot, state) == states[state] or not self.tidied, state
        if self.tidied:
            for task in model.having(State.DEFERRED):
                assert task.waits_for <= model.tasks.keys(), "it waits for a forgotten task"
        self.tidied = False

    def _pages(self) -> Counter[str]:
        found: Counter[str] = Counter()
        cursor: str | None = None
        limit = 7 if len(self.model.tasks) < 20 else 60
        while True:
            page = self.run(self.broker.page(limit=limit, cursor=cursor, now=self.model.now))
            found.update(task.message.id for task in page.tasks)
            if (cursor := page.cursor) is None:
                return found

    @invariant()
    def the_audit_finds_nothing(self) -> None:
        assert self.run(self.broker.audit(now=self.model.now)) == []


class ValkeyMachine(BrokerMachine):
    """Drives the memory broker and one on Valkey, which must answer alike."""

    def open(self) -> Store:
        return twins(super().open(), on_server("valkey"))


class RedisMachine(BrokerMachine):
    """The same with a Redis server."""

    def open(self) -> Store:
        return twins(super().open(), on_server("redis"))


MADE = "0123456789abcdef" * 2  # an id as Fairlead makes them


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_tasks_with_ids_that_fairlead_makes_are_served_in_the_same_order(size: int) -> None:
    c = Client(twins(MemoryBroker(test_clock=True), on_server("valkey")))
    await c.configure(TenantChange(tenant="a", weight=3.0))
    for n, tenant in enumerate("abc" * 5):
        await c.enqueue(*(submit(f"{100 * n + i:032x}", tenant) for i in range(20)))
    for _ in range(0, 300, size):
        done = (await c.fetch(size))[::2]
        assert await c.settle(*map(completed, done)) == ["applied"] * len(done)
    assert await c.broker.audit(now=NOW) == []
    await c.broker.close()


async def test_a_settlement_with_an_old_token_is_fenced_for_an_id_that_fairlead_made() -> None:
    c = Client(twins(MemoryBroker(test_clock=True), on_server("valkey")))
    [old] = await c.run(submit(MADE))
    assert (await c.broker.give_back("w1", [], now=NOW)).count == 1
    [new] = await c.fetch()
    assert await c.settle(completed(old)) == ["fenced"]
    assert await c.settle(completed(new)) == ["applied"]
    assert await c.broker.audit(now=NOW) == []
    await c.broker.close()


TestMemory = pytest.mark.timeout(120 * EXAMPLES)(BrokerMachine.TestCase)
TestMemory.settings = examples(150)
TestValkey = pytest.mark.timeout(240 * EXAMPLES)(ValkeyMachine.TestCase)
TestValkey.settings = examples(60)
TestRedis = pytest.mark.timeout(240 * EXAMPLES)(
    pytest.mark.skipif(servers.binary("redis") is None, reason="there is no Redis server here")(
        RedisMachine.TestCase
    )
)
TestRedis.settings = examples(15)
