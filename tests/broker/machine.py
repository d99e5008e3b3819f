"""The heart of the state machine: its state, the way of a task, and what must always hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.broker import Store
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.records import Snapshot, TaskRecord
from fairlead.broker.requests import (
    MAX_PAGE,
    MAX_STEP,
    Call,
    ExchangeReply,
    Fetch,
    Firing,
    LeaseRef,
    Receipt,
    Submission,
)
from fairlead.broker.schedules import ScheduleOrder
from fairlead.model.events import EventId
from fairlead.model.lifecycle import FINAL, WAITING, Settlement, State, apply_cancel
from fairlead.model.message import Leased
from tests.support.draws import ANY, CLIENTS, END, OFTEN, OPS, SUBMISSIONS, op, resolved, task_id
from tests.support.reference import Reference
from tests.support.store import NOW, ids

SCHEDULES = ("s1", "s2")
SLOTS = NOW + 1e9  # from here on: so late that they are never due


class Core(RuleBasedStateMachine):
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
        self.looks = 0
        self.last_sweep: float | None = None
        self.guard = 0.0
        self.seen: EventId | None = None
        self.fresh: set[str] = set()
        self.crowd = False  # whether one has come
        self.purged = False
        self.watched: set[tuple[str, str]] = set()
        self.mail: Counter[str] = Counter()  # the last letter that each client has seen
        self.readers: dict[str, EventId | None] = {}
        self.repeat: dict[str, tuple[Callable[[Call], Awaitable[Any]], Call, Any]] = {}
        orders = [
            ScheduleOrder(name=name, action="create", queue="default", next_at=SLOTS)
            for name in SCHEDULES
        ]
        planned = self.run(self.broker.plan(Call("planner", 1), orders, now=NOW))
        self.revisions = {answer.name: answer.revision for answer in planned}

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

    @property
    def crowded(self) -> bool:
        """Whether there may be so many tasks that what one verb leaves is another's."""
        return self.crowd or len(self.model.tasks) > MAX_STEP

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
        names = [*self.model.tasks, *(s.message.id for s in submissions), "ghost"]
        self.submit(client, [resolved(submission, names) for submission in submissions])

    def submit(self, client: str, submissions: list[Submission]) -> None:
        now = self.model.now
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
        schedule=st.sampled_from(SCHEDULES),
        slots=st.lists(st.integers(0, 5).map(float), min_size=1, max_size=2),
        submission=SUBMISSIONS,
    )
    def fire(self, client: str, schedule: str, slots: list[float], submission: Submission) -> None:
        now = self.model.now
        names = [*self.model.tasks, submission.message.id, "ghost"]
        submission = resolved(submission, names)
        firings = [
            Firing(
                schedule=schedule,
                slot=SLOTS + slot,
                submission=submission,
                revision=self.revisions[schedule],
                next_at=SLOTS + slot + 0.5,
            )
            for slot in slots
        ]
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
        many=st.sampled_from([MAX_STEP + 5, MAX_STEP + 30]),
        rarely=st.integers(0, 9),
    )
    def enqueue_a_crowd(self, client: str, submission: Submission, many: int, rarely: int) -> None:
        """More tasks for one tenant, or more dependents of one task, than a call sees to."""
        if rarely or self.crowd:
            return
        self.crowd = True
        names = [*self.model.tasks, "ghost"]
        first = resolved(msgspec.structs.replace(submission, unique=None, delay=0.0), names)
        crowd = []
        for n in range(many):
            message = msgspec.structs.replace(first.message, id=task_id(100 + n))
            crowd.append(msgspec.structs.replace(first, message=message))
        self.submit(client, crowd)

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
                to = apply_cancel(settlement.to, cancel_requested=task.cancelling)
                ended[settlement.id] = to
        for mark, answer in zip(started, reply.started, strict=True):
            expected = self.model.answer(mark.id, mark.incarnation, mark.token)
            task = self.model.tasks.get(mark.id)
            if task is not None and (mark.id in ended or task.state in FINAL):
                assert answer in ("fenced", "unknown")  # perhaps it was pushed out just now
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
            if record is not None:
                model.measure(id, record)
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

    def _stands(self, id: str) -> None:
        standing = self.run(self.broker.standing(id, now=self.model.now))
        self.model.compare(id, None if standing is None else standing.record)
        if standing is not None and standing.record.state is State.QUEUED:
            assert standing.tenants_ahead <= max(standing.tenants_ready - 1, 0)

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
    def one_of_the_long_looks_finds_nothing(self) -> None:
        """Each takes as long as a step itself, so they take turns: what is wrong stays wrong."""
        looks = (self._audit, self._listing, self._audit, self._last_ones)
        looks[self.looks % len(looks)]()
        self.looks += 1

    def _audit(self) -> None:
        assert self.run(self.broker.audit(now=self.model.now)) == []

    def _listing(self) -> None:
        now = self.model.now
        assert self._pages() == Counter(list(self.model.tasks))
        snapshot = self.run(self.broker.snapshot(now=now))
        stats = self.run(self.broker.stats(tenants=True, now=now))
        for name, counts in stats.queues.items():
            assert counts.deferred == snapshot.queues[name].deferred

    def _last_ones(self) -> None:
        for id in list(self.model.tasks)[-5:]:
            self._stands(id)
