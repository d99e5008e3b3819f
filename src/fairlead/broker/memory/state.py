"""What one shard holds: tasks, queues, leases, keys, mail. The moves on it are in ``shard``."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Literal

from fairlead.broker.memory import settings
from fairlead.broker.memory.documents import Documents, Trails
from fairlead.broker.memory.event_log import Stream
from fairlead.broker.memory.fair import Queue, Tenant
from fairlead.broker.memory.flow_state import Flow, Guard
from fairlead.broker.memory.leadership import Leaders
from fairlead.broker.memory.limits import Limiter
from fairlead.broker.memory.records import Answered, Incarnation, Mailbox, Task, xcom_bytes
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.memory.tombs import Tombs
from fairlead.broker.records import WorkerRecord
from fairlead.broker.requests import MAX_XCOM_BYTES, SHARD, Mail, Setting, TenantChange
from fairlead.broker.schedules import ScheduleRecord
from fairlead.model.clock import next_number
from fairlead.model.lifecycle import State

_DIGESTED = 1024 * 1024  # bytes of bodies that one call replaces by their digests
IDLE_FOR = 3600.0  # seconds that a queue without a task is kept, if nobody configured it


class ShardState:
    """Everything the memory broker knows."""

    def __init__(self, generation: str, event_bytes: int) -> None:
        self.now = 0.0
        self.closed = False
        self.token = 0
        self.last_sweep: float | None = None
        self.guard_until = 0.0
        self.tasks: dict[str, Task] = {}
        self.queues: dict[str, Queue] = {}
        self.trims: TimeIndex[str] = TimeIndex()  # when tidy has to look at a queue
        # (queue, tenant) with scheduled or retrying tasks, and when to look at them.
        self.due: TimeIndex[tuple[str, str]] = TimeIndex()
        self.deadlines: TimeIndex[str] = TimeIndex()  # waiting tasks that must start in time
        self.alarms: TimeIndex[tuple[str, str]] = (
            TimeIndex()
        )  # rates: (queue, tenant), ("", limiter)
        self.incarnations: dict[str, Incarnation] = {}
        self.lease_ends: TimeIndex[str] = TimeIndex()
        self.limiters: dict[str, Limiter] = {}
        self.declared: dict[tuple[str, ...], Setting] = {}
        self.tenant_settings: dict[tuple[str, str], TenantChange] = {}  # ("", t): in all queues
        self.unique: dict[tuple[str, str], str] = {}  # (tenant, key) -> id of the holder
        self.windows: TimeIndex[tuple[str, str]] = TimeIndex()  # unique keys held for a time
        # (tenant, key) -> value, when its TTL is over, id of the task that wrote it
        self.xcom_bytes: Counter[str] = Counter()  # what values of a tenant count for
        self.xcom: dict[tuple[str, str], tuple[bytes, float, str]] = {}
        self.xcom_ends: TimeIndex[tuple[str, str]] = TimeIndex()  # when to look at a value
        # Pins to be set again (True) or taken away, in order: id and sequence of the pinned task.
        self.tombs = Tombs()
        self.unpins: deque[tuple[bool, str, int]] = deque()
        self.digested = 0  # bytes of bodies that were dropped, or were to be, in this call
        self.told = 0  # tasks that were told of such an end, in this call
        self.eased = 0  # of these, how many lost a dependency and go on waiting
        # Parents, how they ended, and who has to be told.
        self.releases: deque[tuple[Task | Guard, State | None, deque[Task]]] = deque()
        self.flows: dict[str, Flow] = {}
        self.stages: TimeIndex[str] = TimeIndex()  # flows that are being written, and until when
        self.layouts: dict[str, Flow] = {}  # flows whose members have to be seen to, in order
        self.flow_ends: TimeIndex[str] = TimeIndex()  # when finished flows are forgotten
        self.members_kept = 0  # of finished flows
        self.flows_changed: dict[str, Flow] = {}  # in this call
        self.reserved: Counter[tuple[str, str]] = Counter()  # (queue, tenant); (queue, ""): in all
        self.reserved_bytes: Counter[tuple[str, str]] = Counter()  # by queue and tenant
        self.schedules: dict[str, ScheduleRecord] = {}
        self.ticks: TimeIndex[str] = TimeIndex()  # when to look at schedules
        self.documents = Documents()
        self.trails = Trails()
        self.leaders = Leaders()
        self.answers: dict[str, Answered] = {}
        self.mailboxes: dict[str, Mailbox] = {}
        self.letters = 0  # number of the last, in all mailboxes: it outlives a mailbox
        self.hours_forgotten = 0  # up to which hour counts were looked through
        self.idle_ends: TimeIndex[str] = (
            TimeIndex()
        )  # when to forget an incarnation's answers and mail
        self.workers: dict[str, WorkerRecord] = {}
        self.worker_ends: TimeIndex[str] = TimeIndex()
        self.worker_orders: dict[str, Literal["pause", "stop"]] = {}
        self.stream = Stream(generation, SHARD, event_bytes)
        self.rung: set[str] = set()  # queues that got runnable work in this call
        self.ended: dict[str, int] = {}  # by queue: tasks that ended in this call
        self._order: list[int] = []  # sequence numbers, in the order of acceptance
        self._by_sequence: dict[int, Task] = {}
        self._sequence = 0

    # -- looking things up ---------------------------------------------------------------------

    def find(self, id: str) -> Task | None:
        """The task, unless it is unknown or past its retention."""
        task = self.tasks.get(id)
        if task is None or (task.expires_at is not None and task.expires_at <= self.now):
            return None
        return task

    def queue(self, name: str) -> Queue:
        """The queue of this name, which begins to exist with its first use."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
            queue.emptied_at = self.now
            self.trims.set(name, self.now + IDLE_FOR)
        return queue

    def tenant(self, queue: Queue, name: str) -> Tenant:
        """The tenant's part of a queue, with whatever was configured for it."""
        tenant = queue.tenants.get(name)
        if tenant is None:
            tenant = queue.tenants[name] = Tenant(name, queue)
            if self.tenant_settings:
                settings.apply(tenant, self.tenant_settings)
        return tenant

    def limiter(self, name: str) -> Limiter:
        """The named limiter; it counts from its first use, even before it is configured."""
        limiter = self.limiters.get(name)
        if limiter is None:
            limiter = self.limiters[name] = Limiter(name)
        return limiter

    def walk(self, after: int, most: int) -> Iterable[Task | int]:
        """Up to ``most`` tasks accepted after a sequence number; numbers where one is gone."""
        start = bisect_left(self._order, after + 1)
        for sequence in self._order[start : start + most]:
            yield self._by_sequence.get(sequence, sequence)

    def reserve(self, share: tuple[str, str], many: int) -> None:
        """Keep room for members of flows that are no tasks yet, or (below 0) give it back."""
        for key in (share, (share[0], "")):
            self.reserved[key] += many
            if not self.reserved[key]:
                del self.reserved[key]

    def reserve_bytes(self, share: tuple[str, str], many: int) -> None:
        """The same for what they will count for."""
        self.reserved_bytes[share] += many
        if not self.reserved_bytes[share]:
            del self.reserved_bytes[share]

    def put_xcom(self, key: tuple[str, str], value: bytes, till: float, writer: str) -> bool:
        """Keep an XCom value, if its tenant has room for it; whether it has."""
        old = self.xcom.get(key)
        more = xcom_bytes(value, writer) - (xcom_bytes(old[0], old[2]) if old is not None else 0)
        if more > 0 and self.xcom_bytes[key[0]] + more > MAX_XCOM_BYTES:
            return False
        self.xcom_bytes[key[0]] += more
        self.xcom[key] = (value, till, writer)
        self.xcom_ends.set(key, till)
        return True

    def drop_xcom(self, key: tuple[str, str]) -> None:
        """Forget an XCom value."""
        value, _, writer = self.xcom.pop(key)
        self.xcom_bytes[key[0]] -= xcom_bytes(value, writer)
        if not self.xcom_bytes[key[0]]:
            del self.xcom_bytes[key[0]]

    def look_at(self, queue: Queue, at: float) -> None:
        """Have tidy look at a queue at this moment, if it would not earlier."""
        known = self.trims.get(queue.name)
        if known is None or at < known:
            self.trims.set(queue.name, at)

    def runnable(self, queue: Queue) -> bool:
        """Whether a fetch from this queue would find something now."""
        if self.closed or queue.paused or not queue.ready_weight:
            return False
        return queue.closed_until(self.now) is None

    def set_alarm(self, queue: Queue) -> None:
        """If only the queue's own rate holds its work back, see to it that somebody wakes up."""
        until = queue.closed_until(self.now) if queue.ready_weight and not queue.paused else None
        if until is not None and until is not math.inf:
            self.alarms.set((queue.name, ""), until)

    def note_empty(self, queue: Queue) -> None:
        """A task was forgotten: if it was the last, the queue goes in a while."""
        if queue.empty:
            queue.emptied_at = self.now
            self.look_at(queue, self.now + IDLE_FOR)

    def remove_queue(self, queue: Queue) -> None:
        """Forget a queue of which nothing is left, and what was declared for it.

        What was set for its tenants stays.
        """
        del self.queues[queue.name]
        self.declared.pop(("q", queue.name), None)
        self.trims.discard(queue.name)
        self.alarms.discard((queue.name, ""))
        self.rung.discard(queue.name)

    def weigh(self, task: Task) -> None:
        """Count what a task that is not finished counts for now, for its tenant."""
        size = task.counted_bytes()
        task.tenant.live_bytes += size - task.size
        task.size = size

    def must_start(self, task: Task) -> None:
        """Watch the deadline of a waiting task: at that very moment it may still start."""
        if task.deadline_at is not None:
            self.deadlines.set(task.id, math.nextafter(task.deadline_at, math.inf))

    def drop_body(self, task: Task) -> None:
        """Nothing will ever run it: the body goes at once, but for those beyond 1 MiB in a call."""
        size = len(task.message.body) + len(task.message.trace)
        self.digested += size
        if self.digested <= _DIGESTED or self.digested <= size:
            task.drop_body()

    # -- keys and mail -------------------------------------------------------------------------

    def release_unique(self, task: Task) -> None:
        """Free a task's unique key, if it is still the holder."""
        if task.unique is not None:
            key = (task.message.tenant, task.unique.key)
            if self.unique.get(key) == task.id:
                del self.unique[key]
                self.windows.discard(key)

    def mailbox(self, incarnation: str) -> Mailbox:
        """The incarnation's mailbox, kept for an hour after its last sign of life."""
        box = self.mailboxes.get(incarnation)
        if box is None:
            box = self.mailboxes[incarnation] = Mailbox()
        if incarnation not in self.idle_ends:
            self.touch(incarnation)
        return box

    def write_to(
        self,
        incarnation: str,
        kind: Literal["finished", "cancel", "lent"],
        id: str,
        *,
        state: State | None = None,
        token: int = 0,
    ) -> None:
        """Put a letter into an incarnation's mailbox."""
        self.letters = next_number(self.letters, self.now)
        letter = Mail(number=self.letters, kind=kind, id=id, state=state, token=token)
        self.mailbox(incarnation).put(letter)

    def touch(self, incarnation: str) -> None:
        """The incarnation called: keep its answers and its mail for another hour."""
        self.idle_ends.set(incarnation, self.now + 3_600.0)

    def dismiss(self, incarnation: str) -> None:
        """The incarnation is over: nobody will read its mail, and its worker is no more."""
        box = self.mailboxes.get(incarnation)
        if box is not None and not box.listened_to:
            del self.mailboxes[incarnation]
        if incarnation in self.workers:
            self.forget_worker(incarnation)

    def knows_worker(self, incarnation: str) -> bool:
        """Whether it is registered: heard of lately, or with leases."""
        ends = self.worker_ends.get(incarnation)
        return ends is not None and (ends > self.now or incarnation in self.incarnations)

    def forget_worker(self, incarnation: str) -> None:
        """Its record goes, and what it was ordered to do."""
        del self.workers[incarnation]
        self.worker_ends.discard(incarnation)
        self.worker_orders.pop(incarnation, None)
        self.tell_of_worker("worker_left", incarnation)

    def tell_of_worker(self, kind: str, incarnation: str) -> None:
        """Say that something happened to a worker."""
        self.stream.rows.append((kind, incarnation, "", "", "", 0, 0, ""))

    def next_due(self) -> float | None:
        """Seconds until there is something to promote, deliver or fire; 0 if there is now."""
        if self.releases or self.layouts or self.unpins:
            return 0.0
        agendas: tuple[TimeIndex[Any], ...] = (self.due, self.deadlines, self.alarms, self.ticks)
        firsts = [first[0] for agenda in agendas if (first := agenda.first()) is not None]
        return max(0.0, min(firsts) - self.now) if firsts else None
