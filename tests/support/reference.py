"""A broker's promises as plain dictionaries: what may be answered, and what must have become of it.

It does not say who is served next; it checks that what was handed out could be, and every change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Firing, Receipt, Settled, Submission, Write
from fairlead.model.events import EVENT_KINDS, Event
from fairlead.model.lifecycle import (
    FINAL,
    TRANSITIONS,
    WAITING,
    Settlement,
    State,
    apply_cancel,
    on_dependency,
)
from fairlead.model.message import LEVEL_NAMES, Leased, Message
from fairlead.model.options import Unique
from fairlead.model.retries import after_crash, may_have_run
from tests.support.fair import Settings

GOES_TO = {
    "started": State.RUNNING,
    "completed": State.COMPLETED,
    "retrying": State.RETRYING,
    "snoozed": State.SCHEDULED,
    "released": State.QUEUED,
    "recovered": State.QUEUED,
    "dead": State.DEAD,
    "cancelled": State.CANCELLED,
    "requeued": State.QUEUED,
}
SILENT = {
    *("fenced", "progress", "configured", "warned"),
    *(kind for kind in EVENT_KINDS if kind.startswith("worker_")),
}
RETENTION = (
    "keep_completed",
    "keep_completed_count",
    "keep_completed_bytes",
    "keep_dead",
    "keep_dead_bytes",
)
KEPT = {State.COMPLETED: 3600.0, State.CANCELLED: 3600.0, State.DEAD: 7 * 86400.0}  # seconds


@dataclass
class Task:
    """What is known of one task."""

    given: Submission
    state: State
    born: float
    rank: tuple[int, int]  # its place in its level: what was given back, then by arrival
    due: float | None = None
    waits_for: set[str] = field(default_factory=set)
    generation: int = 0
    attempts: int = 0
    crashes: int = 0
    token: int = 0
    owner: str = ""
    started: bool = False
    ever_started: bool = False
    cancelling: bool = False
    ends: int = 0  # terminal transitions in this generation
    released: int = 0  # transitions out of deferred in this generation
    finished: float = 0.0
    keep: float | None = None  # seconds, its own
    level: int | None = None  # that an operator gave it
    parts: int = 0  # bytes of its error, progress and checkpoint, as its record last had them

    @property
    def message(self) -> Message:
        return self.given.message

    @property
    def size(self) -> int:
        """What it counts for while it is not finished."""
        return 100 + len(self.message.body) + len(self.message.trace) + self.parts

    @property
    def lane(self) -> tuple[str, str, int]:
        level = self.message.level if self.level is None else self.level
        return self.message.queue, self.message.tenant, level

    @property
    def deadline(self) -> float | None:
        return None if self.given.deadline is None else self.born + self.given.deadline


@dataclass
class Reference:
    """Every task, lease and setting."""

    now: float
    tasks: dict[str, Task] = field(default_factory=dict)
    unique: dict[tuple[str, str], Task] = field(default_factory=dict)  # key -> last holder
    unsure: set[tuple[str, str]] = field(default_factory=set)  # keys of tasks that were requeued
    settings: Settings = field(default_factory=Settings)
    xcom: dict[tuple[str, str], tuple[bytes, float]] = field(default_factory=dict)  # till when
    slots: dict[str, float] = field(default_factory=dict)  # of schedules: the last that was fired
    buried: dict[str, Task] = field(default_factory=dict)  # forgotten before their time
    last_token: int = 0
    arrivals: int = 0

    # -- questions --------------------------------------------------------------------------

    def having(self, *states: State) -> list[Task]:
        return [task for task in self.tasks.values() if task.state in states]

    def leases(self, owner: str) -> dict[str, Task]:
        return {t.message.id: t for t in self.having(State.RUNNING) if t.owner == owner}

    def answer(self, id: str, owner: str, token: int) -> Settled:
        if (task := self.tasks.get(id)) is None:
            return "unknown"
        mine = task.state is State.RUNNING and (task.owner, task.token) == (owner, token)
        return "applied" if mine else "fenced"

    def waiting(self, queue: str, tenant: str | None = None) -> list[Task]:
        here = [task for task in self.having(*WAITING) if task.message.queue == queue]
        return [task for task in here if tenant in (None, task.message.tenant)]

    def bytes_with(self, message: Message) -> int:
        """What the tenant of a new task would have with it."""
        place = (message.queue, message.tenant)
        unfinished = [task for task in self.tasks.values() if task.state not in FINAL]
        has = sum(task.size for task in unfinished if task.lane[:2] == place)
        return has + 100 + len(message.body) + len(message.trace)

    def limits(self, message: Message) -> list[tuple[int, int]]:
        """Each limit that a task is under, and how many run under it now."""
        return self.settings.limits(message, [t.message for t in self.having(State.RUNNING)])

    def servable(self, queue: str) -> set[str]:
        """Tenants with queued work whom nothing holds back, whichever of it comes next."""
        ready = [t.message for t in self.having(State.QUEUED) if t.message.queue == queue]
        full = {m.tenant for m in ready if any(n >= limit for limit, n in self.limits(m))}
        slow = {m.tenant for m in ready if self.has_rate(m)}
        return {m.tenant for m in ready if not self.settings.paused(m)} - full - slow

    def has_rate(self, message: Message) -> bool:
        """Whether a rate may hold a task back; how long, the reference does not say."""
        queue, tenant = message.queue, message.tenant
        places: list[list[tuple[str, ...]]] = [
            [("queue", queue)],
            [("tenant", tenant, queue), ("tenant", tenant, "")],
        ]
        places += [[("limiter", name)] for name in message.limiters]
        return any(self.settings.get("rate", *each) is not None for each in places)

    def pulled(self, tenant: str, keys: Sequence[str]) -> list[bytes | None]:
        """The XCom values that are there."""
        found = [self.xcom.get((tenant, key), (None, 0.0)) for key in keys]
        return [value if till > self.now else None for value, till in found]

    # -- enqueue ----------------------------------------------------------------------------

    def enqueued(self, given: Submission, receipt: Receipt) -> None:
        """Check one receipt against every reason to refuse, and take the task in if accepted."""
        message = given.message
        refusals = dict(self._refusals(given))
        buried = self.buried.get(message.id)
        # The id is asked for first: what was forgotten answers although another has the unique key.
        by_id = not refusals or refusals.get("duplicate", receipt.id) != receipt.id == message.id
        if buried is not None and receipt.code in ("duplicate", "conflict") and by_id:
            same = message.same_content(buried.message)
            assert (receipt.code == "duplicate") == same or buried.state is State.CANCELLED
            assert (receipt.id, receipt.state) == (message.id, buried.state)
            return
        perhaps = given.unique is not None and (message.tenant, given.unique.key) in self.unsure
        if receipt.code != "accepted":
            assert receipt.code in refusals, (receipt, refusals)
            if receipt.code == "duplicate":
                assert receipt.id == refusals["duplicate"]
                known = self.tasks.get(receipt.id)  # a window outlasts its holder
                assert receipt.state == (known.state if known is not None else None)
            return
        assert not refusals or (perhaps and refusals.keys() == {"duplicate"}), refusals
        outcomes = {
            parent.id: on_dependency(self.tasks[parent.id].state, given.on_dependency_failure)
            for parent in given.depends_on
            if parent.id in self.tasks
        }
        self.arrivals += 1
        task = Task(given, State.QUEUED, self.now, (1, self.arrivals))
        self.tasks[message.id] = task
        self.buried.pop(message.id, None)
        task.due = self.now + given.delay if given.delay else None
        task.waits_for = {id for id, outcome in outcomes.items() if outcome == "wait"}
        if final := [o for o in outcomes.values() if isinstance(o, State)]:
            task.state, task.ends, task.finished = final[0], 1, self.now
        elif task.waits_for:
            task.state = State.DEFERRED
        elif task.due is not None:
            task.state = State.SCHEDULED
        assert (receipt.id, receipt.state) == (message.id, task.state)
        if given.unique is not None:
            self.unique[message.tenant, given.unique.key] = task

    def _refusals(self, given: Submission) -> Iterator[tuple[str, str]]:
        message, unique, fence = given.message, given.unique, given.fence
        if message.id in self.tasks:
            known = self.tasks[message.id]
            same = message.same_content(known.message)
            if same or known.state is State.CANCELLED:  # its body is gone
                yield "duplicate", message.id
            if not same:
                yield "conflict", message.id
        elif unique is not None:
            key = (message.tenant, unique.key)
            holder = self.unique.get(key)
            if holder is not None and (self._holds(holder) or key in self.unsure):
                yield "duplicate", holder.message.id
        whole = self.settings.get("max_waiting", ("queue", message.queue))
        if isinstance(whole, int) and len(self.waiting(message.queue)) >= whole:
            yield "queue_full", ""
        part = self.settings.get("max_tenant_waiting", ("queue", message.queue))
        if isinstance(part, int) and len(self.waiting(message.queue, message.tenant)) >= part:
            yield "tenant_full", ""
        most = self.settings.get("max_tenant_bytes", ("queue", message.queue))
        if isinstance(most, int) and self.bytes_with(message) > most:
            yield "tenant_bytes", ""
        if any(p.id not in self.tasks and not p.known for p in given.depends_on):
            yield "unknown_dependency", ""
        if fence and self.answer(fence.id, fence.incarnation, fence.token) != "applied":
            yield "fenced", ""

    def _holds(self, holder: Task) -> bool:
        unique = holder.given.unique or Unique(key="")
        if unique.until == "window":
            return self.now < holder.born + unique.window
        return holder.state not in FINAL and not (unique.until == "started" and holder.ever_started)

    def fired(self, firing: Firing, receipt: Receipt) -> None:
        """Check one receipt of a schedule's slot."""
        last = self.slots.get(firing.schedule)
        assert (receipt.code == "stale") == (last is not None and firing.slot <= last)
        if receipt.code == "stale":
            return
        self.enqueued(firing.submission, receipt)
        if receipt.code in ("accepted", "duplicate", "conflict"):
            self.slots[firing.schedule] = firing.slot

    # -- leases and settings ----------------------------------------------------------------

    def wrote(self, write: Write) -> Settled:
        """The answer that is due; keeps an XCom value."""
        lease = write.lease
        answer = self.answer(lease.id, lease.incarnation, lease.token)
        if answer == "applied" and write.kind == "xcom":
            key = (self.tasks[lease.id].message.tenant, write.key)
            self.xcom[key] = (write.value, self.now + write.ttl)
        return answer

    def settled(self, owner: str, settlement: Settlement) -> Settled:
        """The answer that is due; counts what an applied settlement counts."""
        answer = self.answer(settlement.id, owner, settlement.token)
        if answer == "applied":
            task = self.tasks[settlement.id]
            task.attempts += settlement.burn
            task.crashes = 0 if settlement.ran else task.crashes
            task.due = self.now + settlement.delay if settlement.delay else None
            stands = apply_cancel(settlement.to, cancel_requested=task.cancelling) is settlement.to
            task.keep = settlement.keep if stands else None
        return answer

    def leased(self, owner: str, lease: Leased) -> None:
        """Check one loan. A held task changes its state here, a started one by its event."""
        task = self.tasks[lease.message.id]
        if not lease.started:
            assert task.state is State.QUEUED, "only queued tasks are lent"
            self._first_of_its_level(task)
            task.state, task.token = State.RUNNING, lease.token
        assert task.state is State.RUNNING
        assert (task.started, task.token) == (lease.started, lease.token)
        task.owner = owner
        assert lease.message == task.message
        assert (lease.attempt, lease.generation) == (task.attempts + 1, task.generation)
        assert lease.crashes == task.crashes
        assert not self.settings.paused(task.message)
        assert task.deadline is None or task.generation or self.now <= task.deadline

    def lost(self, owner: str, started: Sequence[str] | None) -> dict[str, State]:
        """What must become of the tasks of an incarnation that is gone."""
        expected = {}
        for id, task in self.leases(owner).items():
            flags = task.message.flags
            unseen = may_have_run(started=task.started, attempts=task.attempts, flags=flags)
            charged = unseen if started is None else id in started
            task.attempts, task.crashes = task.attempts + charged, task.crashes + charged
            crashes, attempts = (task.crashes, task.attempts) if charged else (0, 0)
            expected[id], _ = after_crash(
                crashes, attempts, flags, cancel_requested=task.cancelling
            )
        return expected

    # -- events -----------------------------------------------------------------------------

    def follow(self, event: Event, fresh: set[str]) -> None:
        """Carry out what the broker says it did, if it may. ``fresh`` were just accepted."""
        if event.kind in SILENT:
            return
        task = self.tasks[event.task]
        assert (event.queue, event.tenant) == (task.message.queue, task.message.tenant)
        if event.kind == "deleted":
            assert task.state in FINAL
            del self.tasks[event.task]
        elif event.kind == "prioritized":
            assert (task.state, event.state) == (State(event.state), task.state)
            assert task.state in WAITING
            self.arrivals += 1
            task.level, task.rank = LEVEL_NAMES.index(event.reason), (1, self.arrivals)
        elif event.kind == "cancelling":
            assert task.state is State.RUNNING
            task.cancelling = True
        elif event.kind == "started" and task.state is State.RUNNING:
            assert not task.started, "an attempt begins once"
            task.started = task.ever_started = True
        elif event.task not in fresh or event.state != task.state:
            to = State(event.state)
            assert GOES_TO.get(event.kind, to) is to
            assert to in TRANSITIONS[task.state], f"{task.state} -> {to}"
            self._move(task, to, event.token, event.reason)

    def _move(self, task: Task, to: State, token: int = 0, reason: str = "") -> None:
        was, task.state = task.state, to
        if was in {State.SCHEDULED, State.RETRYING} and to is State.QUEUED:
            assert (task.due or 0.0) <= self.now or reason == "run"
        if was is State.DEFERRED and to not in FINAL:
            task.released += 1
            assert task.released == 1, "dependents are released once"
            assert not task.waits_for
            assert (to is State.SCHEDULED) == (task.due is not None and task.due > self.now)
        if to is State.RUNNING:
            self._first_of_its_level(task)
            task.token, task.started, task.ever_started = token, True, True
        if was is State.RUNNING:
            task.owner, task.token, task.started, task.cancelling = "", 0, False, False
        if to is State.QUEUED:
            self.arrivals += 1
            task.rank = (0, 0) if was is State.RUNNING else (1, self.arrivals)
        if was is State.DEAD:
            task.generation += 1
            task.attempts = task.crashes = task.ends = task.released = 0
            task.keep = None
            if task.given.unique is not None:
                self.unsure.add((task.message.tenant, task.given.unique.key))
        if to in FINAL:
            task.ends, task.finished = task.ends + 1, self.now
            assert task.ends == 1, "one terminal effect per generation"
            for child in self.having(State.DEFERRED):
                if on_dependency(to, child.given.on_dependency_failure) == "met":
                    child.waits_for.discard(task.message.id)
        assert reason != "expired" or (task.deadline or math.inf) <= self.now

    def _first_of_its_level(self, task: Task) -> None:
        """Each level of a tenant is first in, first out, behind what was given back."""
        for other in self.having(State.QUEUED):
            if task.lane == other.lane:
                assert task.rank <= other.rank, f"{other.message.id} was first"

    def measure(self, id: str, record: TaskRecord) -> None:
        """Note how much is stored of a task beside its message."""
        error = record.error
        size = len(record.progress or b"") + len(record.checkpoint or b"")
        size += 0 if error is None else len(error.message) + len(error.traceback)
        self.tasks[id].parts = size

    def compare(self, id: str, record: TaskRecord | None) -> None:
        """The record says what the reference says; only what is past its retention is gone."""
        task = self.tasks[id]
        if record is None:
            assert task.state in FINAL, f"{id} was {task.state} and is lost"
            keep = KEPT[task.state] if task.keep is None else task.keep
            queue = ("queue", task.message.queue)
            changed = any(self.settings.get(name, queue) is not None for name in RETENTION)
            assert changed or self.now >= task.finished + keep, f"{id} was forgotten too soon"
            self.buried[id] = task
            del self.tasks[id]
            return
        if (task.state, record.state) == (State.DEFERRED, State.SCHEDULED):  # no event tells of it
            self._move(task, State.SCHEDULED)
        assert (record.state, record.generation) == (task.state, task.generation)
        assert (record.attempts, record.crashes) == (task.attempts, task.crashes)
        kept = (record.token, record.incarnation, record.cancelling)
        assert kept == (task.token, task.owner, task.cancelling)
        message = msgspec.structs.replace(task.message, level=task.lane[2])
        assert record.message == message or task.state is State.CANCELLED  # without its body
        deferred = task.state is State.DEFERRED  # a parent may be past its retention, not tidied up
        assert sorted(record.waiting_for) == (sorted(task.waits_for) if deferred else [])
        if deferred:
            policy = task.given.on_dependency_failure
            parents = [self.tasks[parent] for parent in task.waits_for if parent in self.tasks]
            assert all(on_dependency(parent.state, policy) == "wait" for parent in parents)
