"""What a worker can begin: slots for all attempts, threads for sync, processes for isolated ones.

A broker knows nothing of kinds; a worker learns the kind of a task from its name, once it has it.
So it asks each queue for what it can begin of what comes from there: one thread free and nothing
but sync tasks in the queue means one task. See docs/decisions/0021-capacity-by-kind.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET

from fairlead.broker.requests import MAX_EXCHANGE
from fairlead.model.message import Leased, task_name
from fairlead.model.names import DEFAULT_QUEUE
from fairlead.model.registry import Registry, TaskSpec
from fairlead.model.retries import ALONE
from fairlead.worker.inflight import Inflight, Kind
from fairlead.worker.prefetch import Prefetch

_LOOK = 16  # tasks that are asked for behind those that cannot begin
_MOST_HELD = 128  # tasks held that cannot begin; no look behind more of them
_FIRST_PAUSE = 0.1  # seconds until the next look, doubled each time that nothing could begin
_LONGEST_PAUSE = 1.0  # seconds
_UNLIKELY = 1.0, 5.0  # the same two, where only one kind is known to come
_HOLD = 0.25  # seconds after which what is held and cannot begin goes back
_MEMORY = 8  # tasks over which the share of a kind in a queue forgets
_SCARCE: tuple[Literal["thread", "process"], ...] = ("thread", "process")


class Ask(NamedTuple):
    """What to fetch: from these queues, in this order, so many."""

    queues: tuple[str, ...]
    most: int
    certain: int  # of these, how many can begin whatever their kind
    cut: bool = False  # another queue should be asked next, for another number; never waited for


class _Queue:
    """What comes from one queue."""

    __slots__ = ("empty", "kinds", "look_at", "pause", "shares")

    def __init__(self, kinds: Collection[Kind]) -> None:
        self.kinds = set(kinds)  # of its registered tasks, and of those that came
        self.shares = {kind: float(self.kinds == {kind}) for kind in _SCARCE}
        self.empty = True  # it had nothing more to give
        self.look_at = 0.0  # when to look behind what cannot begin, by the loop's clock
        self.pause = _FIRST_PAUSE

    def rest(self, now: float) -> None:
        """Nothing that came could begin: look later."""
        first, longest = (_FIRST_PAUSE, _LONGEST_PAUSE) if len(self.kinds) > 1 else _UNLIKELY
        self.pause = max(self.pause, first)
        self.look_at = now + self.pause
        self.pause = min(2 * self.pause, longest)


class Capacity:
    """Counts what runs by kind, and says how much may be asked for."""

    def __init__(
        self,
        registry: Registry,
        inflight: Inflight,
        *,
        concurrency: int,
        threads: int,
        processes: int,
    ) -> None:
        self._registry = registry
        self._inflight = inflight
        self.concurrency = concurrency
        self._limits: dict[Kind, int] = {
            "loop": concurrency,
            "thread": threads,
            "process": processes,
        }
        self._kinds: dict[str, Kind] = {}  # by task
        self._only: Kind | None = None  # the kind of all tasks, if there is only one
        self._queues: dict[str, _Queue] = {}
        self.paces: dict[Kind, Prefetch] = {kind: Prefetch() for kind in self._limits}
        self._seen: set[tuple[str, int]] = set()  # what was held at the last look at its age
        self._seen_at = 0.0

    @property
    def mixed(self) -> bool:
        """Whether the tasks are of several kinds."""
        return self._only is None

    @property
    def takes_all(self) -> bool:
        """Whether a slot is all that an attempt needs which never crashed."""
        return self._only == "loop"

    def ended(self, kind: Kind, count: int) -> None:
        """Some attempts of this kind are over."""
        self.paces[kind].ended += count

    def kind(self, lease: Leased) -> Kind:
        """What an attempt needs; a slot alone if no handler here knows the task."""
        if lease.crashes >= ALONE and self._limits["process"]:
            return "process"
        if self._only is not None:
            return self._only
        return self._kinds.get(task_name(lease.message.body), "loop")

    def room(self, kind: Kind) -> int:
        """How many attempts of this kind could begin now."""
        inflight = self._inflight
        free = self.concurrency - len(inflight)
        return min(free, self._limits[kind] - inflight.kinds[kind])

    def fits(self, lease: Leased) -> bool:
        """Whether it could begin now."""
        return self.room(self.kind(lease)) > 0

    def lacking(self, now: float) -> list[Leased]:
        """What is held and needs a thread or a process that is not free, nor will be at once.

        Of each kind as many may be held as end in ten milliseconds.
        """
        held = self._inflight.held
        if not held or len(self._inflight) >= self.concurrency:
            return []
        spare = {kind: pace.ahead(now) for kind, pace in self.paces.items()}
        lacking = []
        for lease in held:
            kind = self.kind(lease)
            if self.room(kind) > 0:
                continue
            spare[kind] -= 1
            if spare[kind] < 0:
                lacking.append(lease)
                if kind != self._only:
                    self._only = None  # an app of one kind, but for what has to run alone
        return lacking

    def stale(self, now: float) -> list[Leased]:
        """What has been held for a quarter of a second, or up to twice as long."""
        if now - self._seen_at <= _HOLD:
            return []
        held = {(lease.message.id, lease.token): lease for lease in self._inflight.held}
        stale = [lease for key, lease in held.items() if key in self._seen]
        self._seen, self._seen_at = set(held), now
        return stale

    # -- how much to ask for -------------------------------------------------------------------

    def ask(self, order: Sequence[str], now: float) -> Ask | None:
        """What to fetch; None if nothing could begin, and enough is held beyond that."""
        inflight = self._inflight
        self._look_up_tasks()
        most = MAX_EXCHANGE if inflight.room is None else min(MAX_EXCHANGE, inflight.room)
        if self._only is not None:
            room = self.room(self._only)
            most = min(most, room + self.paces[self._only].ahead(now) - len(inflight.held))
            return Ask(tuple(order), most, room - len(inflight.held)) if most > 0 else None
        # Beyond what is held of each kind; what cannot begin leaves the slots to others.
        held = Counter(map(self.kind, inflight.held))
        ahead = {kind: pace.ahead(now) for kind, pace in self.paces.items()}
        spare: dict[Kind, int] = {
            kind: self.room(kind) + ahead[kind] - held[kind] for kind in _SCARCE
        }
        most = min(most, self.concurrency - len(inflight) + ahead["loop"] - held["loop"])
        if most <= 0:
            return None
        kinds: set[Kind] = set(self._kinds.values()) or {"loop"}
        certain = min(self.room(kind) - held[kind] for kind in kinds)
        queues: list[str] = []
        waits = False  # one of them is likely to give something
        for name in order:
            queue = self._queue(name)
            limit = self._most_of(queue, spare)
            if queue.empty or limit >= most:  # an empty one is listened to, not looked into
                queues.append(name)
                waits = waits or not queue.empty
                continue
            if limit < 1:
                if not self._looks(queue, now):
                    continue
                limit = _LOOK
            if not waits:
                queues.append(name)
                most = int(limit)
            return Ask(tuple(queues), most, certain, cut=True)
        return Ask(tuple(queues), most, certain) if queues else None

    def look_in(self, now: float) -> float:
        """Seconds until a queue should be looked into that is left alone now."""
        waiting = [queue.look_at - now for queue in self._queues.values() if queue.look_at > now]
        return min(waiting, default=math.inf)

    def _most_of(self, queue: _Queue, spare: Mapping[Kind, int]) -> float:
        """How many tasks of this queue are likely to find room."""
        most = math.inf
        for kind in _SCARCE:
            share = queue.shares[kind]
            if share > 0.0:
                most = min(most, (spare[kind] + 0.5) // share)
        return most

    def _looks(self, queue: _Queue, now: float) -> bool:
        """Whether to look behind what cannot begin: any task may come from any queue."""
        return (
            now >= queue.look_at
            and len(self._inflight.held) < _MOST_HELD
            and (self._inflight.room is None or self._inflight.room > _LOOK)
        )

    # -- what came -----------------------------------------------------------------------------

    def learn(
        self,
        asked: Sequence[str],
        leases: Iterable[Leased],
        lacking: Sequence[Leased],
        empty: Collection[str],
        now: float,
    ) -> Counter[str]:
        """Take note of what a fetch of these queues brought, and what is held and cannot begin.

        Return how many of those that came can begin, by queue.
        """
        stuck = {(lease.message.id, lease.token) for lease in lacking}
        came: set[str] = set()
        worth: set[str] = set()  # looks into these queues found what there is more room for
        began: Counter[str] = Counter()
        for lease in leases:
            kind, queue = self.kind(lease), self._queue(lease.message.queue)
            came.add(lease.message.queue)
            if (lease.message.id, lease.token) not in stuck:
                began[lease.message.queue] += 1
                if self.room(kind) > 0:
                    worth.add(lease.message.queue)
            queue.kinds.add(kind)
            for each in _SCARCE:
                share = queue.shares[each]
                queue.shares[each] = share + (float(kind == each) - share) / _MEMORY
        for name in asked:
            self._queue(name).empty = name in empty
        for lease in lacking:  # it will stand at the front of its line again
            kind, queue = self.kind(lease), self._queue(lease.message.queue)
            queue.empty = False
            if kind != "loop":
                queue.shares[kind] = 1.0
        for name in came | {lease.message.queue for lease in lacking}.intersection(asked):
            queue = self._queue(name)
            if name in worth:
                queue.pause, queue.look_at = _FIRST_PAUSE, 0.0
            elif not began[name]:
                queue.rest(now)
        return began

    def _queue(self, name: str) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            specs = [spec for spec in self._registry if _queue_of(spec) == name]
            queue = self._queues[name] = _Queue({self._kinds[spec.name] for spec in specs})
        return queue

    def _look_up_tasks(self) -> None:
        """Work out the kinds of the registered tasks; some may have come since."""
        if len(self._kinds) == len(self._registry):
            return
        self._kinds = {spec.name: self._kind_of(spec) for spec in self._registry}
        kinds = set(self._kinds.values())
        self._only = kinds.pop() if len(kinds) == 1 else None
        self._queues.clear()

    def _kind_of(self, spec: TaskSpec) -> Kind:
        if spec.isolation and self._limits["process"]:
            return "process"
        return "loop" if spec.is_async else "thread"


def _queue_of(spec: TaskSpec) -> str:
    return DEFAULT_QUEUE if spec.options.queue is UNSET else spec.options.queue
