"""Fair dispatch inside one queue: stride scheduling over tenants with a virtual clock.

Each runnable tenant has a tag; the lowest goes next and moves on by ``cost / weight``. The clock
follows the tags, and a tenant that (re)appears starts at it, so that nobody saves up credit while
idle and no stream of newcomers, who would all start at the lowest tag, can starve those who wait.
A tenant that cannot run is parked and leaves the heap until an event brings it back: every visit
either dispatches or parks, so the cost per task is O(log n) in tenants that have work.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from fairlead.broker.memory.counters import Counters
from fairlead.broker.memory.limits import Gate, Limiter
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.retention import Shelf
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.records import DEFAULTS
from fairlead.broker.requests import MAX_TENANT_BYTES, MAX_TENANT_PINNED
from fairlead.model.lifecycle import State
from fairlead.model.message import LEVEL_NAMES, LEVELS
from fairlead.model.priority_turns import TURNS
from fairlead.model.states import DEAD, QUEUED, RUNNING

UNIT: Final = 1_000  # weights are whole thousandths, so that their sum stays exact
STRIDE: Final = 1_000.0  # by how much one task of cost 1 moves a tenant of weight 1

_PACE = STRIDE * UNIT
IDLE, READY, PARKED, PAUSED = "idle", "ready", "parked", "paused"

_STALE = 64  # heap entries that are not worth a rebuild


class Tenant:
    """One tenant's work in one queue."""

    __slots__ = (
        "counts",
        "due",
        "gate",
        "holes",
        "known",
        "levels",
        "live_bytes",
        "name",
        "parked_on",
        "paused",
        "pinned_bytes",
        "queue",
        "status",
        "tag",
        "turn",
        "waiting",
        "weight",
        "woken_by",
    )

    def __init__(self, name: str, queue: Queue) -> None:
        self.name = name
        self.queue = queue
        self.weight = UNIT
        self.gate: Gate | None = None
        self.paused = False
        self.status = IDLE
        self.tag = 0.0
        self.levels: tuple[deque[list[Task | None]], ...] = _new_levels(len(LEVELS))
        self.counts: dict[State, int] = dict.fromkeys(State, 0)
        self.due: TimeIndex[tuple[int, str]] = TimeIndex()  # scheduled and retrying, by due_key
        self.waiting: dict[str, Task] = {}  # all that is not running and not finished
        self.live_bytes = 0  # what its tasks that are not finished count for
        self.pinned_bytes = 0  # and those that are kept because others will read them
        self.known = 0  # tasks in all, finished ones too
        self.holes = 0  # entries of tasks that are gone
        self.parked_on: Gate | None = None
        self.woken_by: Limiter | None = None
        self.turn = 0  # how many tasks below level 0 went since it last had none

    def __lt__(self, other: Tenant) -> bool:
        return self.name < other.name  # where tags, or whatever else orders them, are equal

    @property
    def key(self) -> tuple[str, str]:
        """What indexes of all queues know it by."""
        return (self.queue.name, self.name)

    @property
    def empty(self) -> bool:
        """Whether there is nothing left to know about it but its tag."""
        return self.known == 0

    def push(self, task: Task, *, front: bool = False) -> None:
        """Put a task at the back of its level, or at the front if it comes back unfinished."""
        entry: list[Task | None] = [task]
        task.entry = entry
        if task.level >= len(self.levels):  # few tenants have any below the fourth
            self.levels += _new_levels(len(LEVEL_NAMES) - len(self.levels))
        level = self.levels[task.level]
        if front:
            level.appendleft(entry)
        else:
            level.append(entry)

    def head(self) -> deque[list[Task | None]] | None:
        """The level whose turn it is; None if there is nothing. Its first entry may be dropped."""
        levels = self.levels
        if levels[0]:
            return levels[0]
        turn = 0 if self.queue.strict_priorities else TURNS.get(self.turn & 7, 0)
        if turn < len(levels) and levels[turn]:
            return levels[turn]
        for level in levels:
            if level:
                return level
        return None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Entries of each level, those of tasks that are gone among them."""
        unused = (0,) * (len(LEVEL_NAMES) - len(self.levels))
        return tuple(map(len, self.levels)) + unused

    def clear(self) -> None:
        """Drop what is left of entries whose tasks are gone, and begin the turns anew."""
        for level in self.levels:
            level.clear()
        self.holes = 0
        self.turn = 0

    def add_hole(self) -> None:
        """An entry was emptied; when most are, close the gaps."""
        self.holes += 1
        if self.holes > self.counts[QUEUED] + _STALE:
            self.levels = tuple(
                deque(entry for entry in level if entry[0] is not None) for level in self.levels
            )
            self.holes = 0


def _new_levels(count: int) -> tuple[deque[list[Task | None]], ...]:
    return tuple(deque() for _ in range(count))


class Queue:
    """A named lane: its tenants, its virtual clock, its counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.configured = False
        self.emptied_at = 0.0  # when it last had no task any more
        self.paused = False
        self.gate: Gate | None = None
        self.max_waiting: int | None = None
        self.max_tenant_waiting: int | None = None
        self.max_tenant_bytes: int | None = MAX_TENANT_BYTES
        self.max_tenant_pinned_bytes: int | None = MAX_TENANT_PINNED
        self.warn_depth: int | None = None
        self.warned = False
        self.charge_run_time = False
        self.strict_priorities = False
        self.average = 0.0  # seconds a task of cost 1 runs, smoothed
        self.gates: dict[str, Gate] = {}  # of tenants with limits; they outlast the tenant's work
        self.tenants: dict[str, Tenant] = {}
        self.active: dict[str, Tenant] = {}  # those with something waiting or running
        self.counts: dict[State, int] = dict.fromkeys(State, 0)
        self.depth = 0  # all that waits
        self.tally = Counters()
        self.finished = Shelf(
            states=(State.COMPLETED, State.CANCELLED),
            keep=DEFAULTS["keep_completed"],
            count=DEFAULTS["keep_completed_count"],
            size=DEFAULTS["keep_completed_bytes"],
        )
        self.dead = Shelf(
            states=(State.DEAD,), keep=DEFAULTS["keep_dead"], size=DEFAULTS["keep_dead_bytes"]
        )
        self.clock = 0.0
        self.ready_weight = 0
        self._heap: list[tuple[float, str, Tenant]] = []
        self._saved: TimeIndex[str] = (
            TimeIndex()
        )  # tags of empty tenants, until the clock passes them

    def shelf(self, state: State) -> Shelf:
        """Where tasks that ended in this state are kept."""
        return self.dead if state is DEAD else self.finished

    @property
    def empty(self) -> bool:
        """Whether no task of it is known."""
        return not any(self.counts.values())

    @property
    def aside(self) -> int:
        """Completed tasks that are kept because they are pinned."""
        done = self.counts[State.COMPLETED] + self.counts[State.CANCELLED]
        return done - len(self.finished)

    def first_over(self) -> float | None:
        """When the first task that is kept is over."""
        firsts = [shelf.first_over() for shelf in (self.finished, self.dead)]
        return min((each for each in firsts if each is not None), default=None)

    def closed_until(self, now: float) -> float | None:
        """Of its own limits: None if there is room, else when there will be."""
        gate = self.gate
        return gate.closed_until(self.counts[RUNNING], now) if gate is not None else None

    # -- who may run --------------------------------------------------------------------------

    def first(self) -> Tenant | None:
        """The runnable tenant with the lowest tag, ties by name; it stays where it is."""
        heap = self._heap
        while heap:
            tag, _, tenant = heap[0]
            if tenant.status is READY and tenant.tag == tag:
                return tenant
            heappop(heap)
        return None

    def make_ready(self, tenant: Tenant) -> None:
        """Let a tenant run: from the clock on, or from its own tag if that is later."""
        if tenant.tag < self.clock:
            tenant.tag = self.clock
        tenant.status = READY
        self.ready_weight += tenant.weight
        self._enter(tenant)

    def unready(self, tenant: Tenant, status: str) -> None:
        """Take a runnable tenant out; its heap entry is skipped later."""
        if tenant.status is READY:
            self.ready_weight -= tenant.weight
        tenant.status = status

    def charge(self, tenant: Tenant, cost: float) -> None:
        """Move a tenant's tag by what it used, or back by what it was charged too much."""
        tenant.tag += cost * STRIDE * UNIT / tenant.weight
        if tenant.status is READY:
            self._enter(tenant)

    def dispatched(self, tenant: Tenant, cost: float) -> None:
        """One task of this tenant went: move the clock and the tenant's tag on."""
        tag = tenant.tag
        # All ready tenants together move one stride per round; the clock keeps that pace, but
        # never leaves the tenant that is being served by more than one task.
        clock = self.clock + _PACE / self.ready_weight
        if clock < tag:
            clock = tag
        elif clock > tag + STRIDE:
            clock = tag + STRIDE
        if clock > self.clock:
            self.clock = clock
        tenant.tag = tag + cost * STRIDE * UNIT / tenant.weight
        heap = self._heap
        if heap and heap[0][2] is tenant:
            heapreplace(heap, (tenant.tag, tenant.name, tenant))
        else:
            self._enter(tenant)

    def set_weight(self, tenant: Tenant, weight: int) -> None:
        """Change a weight; it counts from the tenant's next dispatch on."""
        if tenant.status is READY:
            self.ready_weight += weight - tenant.weight
        tenant.weight = weight

    @property
    def ready_names(self) -> set[str]:
        """The tenants that the heap can still reach; for the audit."""
        return {t.name for tag, _, t in self._heap if t.status is READY and t.tag == tag}

    def _enter(self, tenant: Tenant) -> None:
        heap = self._heap
        heappush(heap, (tenant.tag, tenant.name, tenant))
        if len(heap) > 2 * len(self.tenants) + _STALE:
            self._heap = [(t.tag, t.name, t) for t in self.tenants.values() if t.status is READY]
            heapify(self._heap)

    # -- who is known -------------------------------------------------------------------------

    def retire(self, tenant: Tenant) -> None:
        """Forget an empty tenant, unless its tag must outlast a quick return."""
        if not tenant.empty or tenant.status is READY:
            return
        if tenant.tag > self.clock:
            self._saved.set(tenant.name, tenant.tag)
        else:
            self._saved.discard(tenant.name)
            self.tenants.pop(tenant.name, None)

    def drop_saved(self, most: int) -> None:
        """Forget empty tenants whose tags the clock has passed; they would start at it anyway."""
        for _ in range(most):
            name = self._saved.pop_due(self.clock)
            if name is None:
                return
            tenant = self.tenants.get(name)
            if tenant is not None and tenant.empty:
                del self.tenants[name]
