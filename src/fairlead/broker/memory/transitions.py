"""The moves on a shard. Every move keeps counts, indexes and events true.

Nothing here decides what a task deserves: ``fairlead.model`` does. Nothing here is asynchronous or
locked: the broker calls it under its lock, one verb at a time.
"""

from __future__ import annotations

import math
from collections import deque

from fairlead.broker.memory import flow_state, pins
from fairlead.broker.memory.fair import IDLE, PARKED, PAUSED, READY, Queue, Tenant
from fairlead.broker.memory.flow_state import Guard
from fairlead.broker.memory.limits import Gate, Limiter
from fairlead.broker.memory.records import Task
from fairlead.broker.memory.state import ShardState
from fairlead.model.lifecycle import CREATION, FINAL, TRANSITIONS, WAITING, State, may_return
from fairlead.model.message import ErrorInfo
from fairlead.model.names import is_made
from fairlead.model.states import CANCELLED, COMPLETED, DEAD, QUEUED, RETRYING, RUNNING, SCHEDULED

_TRIMMED = 2  # finished tasks that one ending may push out of the retention
_STALE = 64  # holes in the order of acceptance that are not worth closing


class Shard(ShardState):
    """What one shard holds, and how it changes."""

    # -- the moves -----------------------------------------------------------------------------

    def emit(
        self, kind: str, task: Task, reason: str = "", attempt: int = 0, token: int = 0
    ) -> None:
        """Say that something happened to a task; attempt and token if it was under a lease."""
        message = task.message
        self.stream.rows.append(
            (kind, task.id, message.queue, message.tenant, task.state, token, attempt, reason)
        )

    def admit(self, task: Task, state: State) -> None:
        """Let a new task into the shard, in its first state."""
        if state not in CREATION:
            raise AssertionError(f"a task cannot begin as {state}")
        self._sequence += 1
        task.sequence = self._sequence
        self._order.append(self._sequence)
        self._by_sequence[self._sequence] = task
        self.tasks[task.id] = task
        task.state = state
        tenant, queue = task.tenant, task.tenant.queue
        tenant.known += 1
        tenant.counts[state] += 1
        queue.counts[state] += 1
        if state not in FINAL:
            tenant.live_bytes += task.size
        queue.tally.count("enqueued", tenant.name, self.now)
        if state in WAITING:
            self._waits(task, tenant, queue)

    def move(self, task: Task, to: State) -> None:
        """Change a task's state, and every count that hangs on it."""
        origin = task.state
        if to not in TRANSITIONS[origin]:
            raise AssertionError(f"task {task.id} cannot go from {origin} to {to}")
        task.state = to
        tenant, queue = task.tenant, task.tenant.queue
        counts = tenant.counts
        counts[origin] -= 1
        counts[to] += 1
        counts = queue.counts
        counts[origin] -= 1
        counts[to] += 1
        waits, waited = to in WAITING, origin in WAITING
        if waits and not waited:
            self._waits(task, tenant, queue)
        elif waited and not waits:
            del tenant.waiting[task.id]
            queue.depth -= 1
            if queue.warned and queue.depth < (queue.warn_depth or 0):
                queue.warned = False
        if to in FINAL:
            tenant.live_bytes, task.size = tenant.live_bytes - task.size, 0
            if not tenant.waiting and not tenant.counts[RUNNING]:
                queue.active.pop(tenant.name, None)
        elif origin in FINAL:
            self.weigh(task)

    def _waits(self, task: Task, tenant: Tenant, queue: Queue) -> None:
        tenant.waiting[task.id] = task
        queue.active[tenant.name] = tenant
        queue.depth += 1
        if queue.warn_depth is not None and queue.depth >= queue.warn_depth and not queue.warned:
            queue.warned = True
            self.stream.rows.append(
                ("warned", "", queue.name, "", "", 0, 0, f"{queue.depth} tasks wait")
            )

    def enter_level(self, task: Task, *, front: bool = False) -> None:
        """Put a queued task where fetch finds it, and its tenant among the runnable ones."""
        tenant = task.tenant
        tenant.push(task, front=front)
        status = tenant.status
        if status is READY:
            self.rung.add(tenant.queue.name)
        elif status is IDLE:
            if tenant.paused:
                tenant.status = PAUSED
            else:
                self.make_ready(tenant)
        elif status is PARKED and isinstance(tenant.parked_on, Limiter):
            # It may be the new head of the line, and need no room there.
            self.make_ready(tenant)

    def queue_up(self, task: Task, *, front: bool = False, waits_on: bool = False) -> None:
        """Make a task of another state queued; ``waits_on``: it never began, and waits on."""
        self._back_from_work(task)
        if not waits_on:
            timed = task.state in (SCHEDULED, RETRYING)
            task.since = task.due_at if timed else self.now
        self.move(task, QUEUED)
        task.due_at = None
        self.enter_level(task, front=front)

    def schedule(self, task: Task, to: State, at: float) -> None:
        """Make a task scheduled or retrying, due at a time."""
        self._back_from_work(task)
        self.move(task, to)
        task.due_at = at
        self.sleep(task, at)

    def sleep(self, task: Task, at: float) -> None:
        """See to it that somebody looks at a task, and at its tenant, when it is due."""
        tenant = task.tenant
        tenant.due.set(task.due_key, at)
        look = self.due.get(tenant.key)
        if look is None or at < look:
            self.due.set(tenant.key, at)

    def looked_at(self, tenant: Tenant, at: float | None) -> None:
        """Find out when to look at a tenant next that was looked at then.

        When its next task is due. If one is due already, the moment of the last look counts, so
        that tenants of which much is due take turns.
        """
        first = tenant.due.first()
        if first is None:
            self.due.discard(tenant.key)
        elif at is None or first[0] > self.now:
            self.due.set(tenant.key, first[0])
        else:
            self.due.set(tenant.key, max(first[0], min(at, self.now)))

    def _back_from_work(self, task: Task) -> None:
        if task.state is RUNNING:
            self.must_start(task)  # in time once more

    def leave_level(self, task: Task) -> None:
        """Empty a queued task's entry: fetch drops it when it comes across it."""
        if task.entry is None:
            return
        task.entry[0] = None
        task.entry = None
        tenant = task.tenant
        tenant.add_hole()
        if tenant.counts[QUEUED] == 0:  # nobody will come across it: drop them all now
            tenant.clear()
            self.unready(tenant, IDLE)
        elif tenant.status is PARKED and isinstance(tenant.parked_on, Limiter):
            self.make_ready(tenant)

    def finish(
        self,
        task: Task,
        to: State,
        *,
        reason: str = "",
        error: ErrorInfo | None = None,
        result: bytes | None = None,
        keep: float | None = None,
    ) -> None:
        """End a task: tell who waits for it, let dependents go on, keep what has to be kept."""
        origin = task.state
        if origin is not to:  # a task may be born finished
            self.move(task, to)
        if origin is not RUNNING:
            self._leave_line(task, origin)
        if task.deadline_at is not None:
            self.deadlines.discard(task.id)
        task.finished_at = self.now
        task.reason = reason
        if error is not None:
            task.error = error
        if result is not None:
            task.result = result
        if task.blocked_by is not None:
            self._detach(task)
        if task.unique is not None and task.unique.until != "window":
            self.release_unique(task)
        if to is CANCELLED and not may_return(to, reason):
            self.drop_body(task)
        if task.watchers is not None or task.dependents is not None:
            self._tell(task, to)
        task.tenant.queue.tally.count(to, task.tenant.name, self.now)
        if task.flow is not None:
            flow_state.count(self, task.flow, to)
        if task.uses or task.pins:
            self._keep(task, keep)
        else:
            self.shelve(task, keep)

    def _leave_line(self, task: Task, origin: State) -> None:
        if origin is QUEUED:
            self.leave_level(task)
        elif origin is SCHEDULED or origin is RETRYING:
            self.wake(task)

    def wake(self, task: Task) -> None:
        tenant = task.tenant
        at, look = tenant.due.get(task.due_key), self.due.get(tenant.key)
        if at is not None:
            tenant.due.discard(task.due_key)
            if look is None or at <= max(look, self.now):
                self.looked_at(tenant, look)

    def _keep(self, task: Task, keep: float | None) -> None:
        if task.uses:
            pins.release(self, task)
        if not (task.aside and pins.set_aside(task, keep)):
            self.shelve(task, keep)

    def shelve(self, task: Task, keep: float | None) -> None:
        """Keep a finished task from now on: for its own time, or for that of its queue."""
        queue = task.tenant.queue
        if keep is None and task.flow is not None and may_return(task.state, task.reason):
            keep = queue.dead.keep  # what a retry of the flow puts back, dead or cancelled
        self.look_at(queue, queue.shelf(task.state).add(task, self.now, keep))
        self.ended[queue.name] = self.ended.get(queue.name, 0) + 1
        if keep is not None and keep <= 0.0:
            self.forget(task)

    def _tell(self, task: Task, to: State) -> None:
        """Write to those who watch a task, and let those who wait for it be told in their turn."""
        for watcher in task.watchers or ():
            self.write_to(watcher, "finished", task.id, state=to)
        task.watchers = None
        if task.dependents is not None and not (to is COMPLETED and task.eases_one()):
            self.releases.append((task, to, deque(task.dependents.values())))

    def forget(self, task: Task) -> None:
        """Drop a finished task for good; who still waits for it will be told by ``deliver``."""
        tenant, queue, state = task.tenant, task.tenant.queue, task.state
        del self.tasks[task.id]
        del self._by_sequence[task.sequence]
        if len(self._order) > 2 * len(self._by_sequence) + _STALE:
            self._order = [number for number in self._order if number in self._by_sequence]
        tenant.known -= 1
        tenant.counts[state] -= 1
        queue.counts[state] -= 1
        shelf = queue.shelf(state)  # after the counts, by which it ranks the tenant
        if task.pins and task.aside:
            pins.leave(task)
            shelf.rank(tenant)
        else:
            shelf.remove(task)
        task.pins = 0  # whoever still wants its result is told that it is gone
        if task.dependents and state is not COMPLETED:
            self.releases.append((task, None, deque(task.dependents.values())))
        if tenant.known == 0:
            queue.retire(tenant)
            self.note_empty(queue)

    def trim(self, queue: str, most: int) -> int:
        """Forget finished tasks beyond the queue's retention."""
        trimmed = 0
        for shelf in (self.queues[queue].finished, self.queues[queue].dead):
            while trimmed < most and (id := shelf.pop_overdue(self.now)) is not None:
                task = self.tasks[id]
                if (task.expires_at or 0.0) > self.now:
                    self._drop(task)
                self.forget(task)
                trimmed += 1
        return trimmed

    def _drop(self, task: Task) -> None:
        """A task is forgotten before its time, to make room: its id is known on, if it was chosen.

        What is dead leaves an event.
        """
        if not is_made(task.id):
            self.tombs.put(task, task.expires_at or 0.0)
        if task.state is DEAD:
            task.tenant.queue.tally.add("dropped")
            self.emit("dropped", task, "keep_dead_bytes")

    def trim_ended(self) -> None:
        """Let each task that ended in this call push at most two others out of the retention."""
        for queue, count in self.ended.items():
            self.trim(queue, _TRIMMED * count)
        self.ended.clear()

    def _detach(self, task: Task) -> None:
        """Take a task out of the lists of those it waited for."""
        for parent_id in task.blocked_by or ():
            self.unlink(task, parent_id)
        task.blocked_by, task.wide = None, False

    def unlink(self, task: Task, parent_id: str) -> None:
        """Take a task out of the list of one that it waited for."""
        parent: Task | Guard | None = self.tasks.get(parent_id)
        if parent is None and task.flow is not None and task.flow.guard.id == parent_id:
            parent = task.flow.guard
        if parent is not None and parent.dependents is not None:
            parent.dependents.pop(task.id, None)
            if not parent.dependents:
                parent.dependents = None

    # -- leases --------------------------------------------------------------------------------

    def end_lease(self, task: Task, well: bool | None = None) -> None:
        """Take a running task from its incarnation and return its room; its state comes next.

        ``well`` is what the attempt says of what its limiters stand for.
        """
        incarnation = self.incarnations[task.incarnation]
        del incarnation.leases[task.id]
        if not incarnation.leases:
            del self.incarnations[task.incarnation]
            self.lease_ends.discard(task.incarnation)
        task.started_at = None
        if task.held:
            held, task.held = task.held, ()
            for limiter in held:
                limiter.give_back(well, task.token, now=self.now, last_token=self.token)
            for limiter in held:
                self.wake_limiter(limiter)

    def has_room_again(self, tenant: Tenant) -> None:
        """A task of this tenant stopped running: unpark it if that was what it waited for."""
        if tenant.status is PARKED and tenant.parked_on is tenant.gate:
            self.make_ready(tenant)
        queue = tenant.queue
        if queue.gate is not None and queue.ready_weight:
            self.rung.add(queue.name)

    # -- runnable or not -----------------------------------------------------------------------

    def make_ready(self, tenant: Tenant) -> None:
        """Put a tenant that is not ready among the runnable ones."""
        if tenant.status is READY:
            return
        self._unpark(tenant)
        tenant.queue.make_ready(tenant)
        self.rung.add(tenant.queue.name)

    def unready(self, tenant: Tenant, status: str) -> None:
        """Take a tenant out; if it was woken for room it did not take, the next one is woken."""
        self._unpark(tenant)
        tenant.queue.unready(tenant, status)
        self.pass_on(tenant)

    def park(self, tenant: Tenant, gate: Gate, until: float) -> None:
        """Take a tenant out until there is room under this limit."""
        self.unready(tenant, PARKED)
        tenant.parked_on = gate
        key = (tenant.queue.name, tenant.name)
        if isinstance(gate, Limiter):
            gate.add_waiter(tenant)
            key = ("", gate.name)
        if until is not math.inf:
            self.alarms.set(key, until)

    def _unpark(self, tenant: Tenant) -> None:
        if isinstance(tenant.parked_on, Limiter):
            tenant.parked_on.remove_waiter(tenant)
        tenant.parked_on = None

    def pass_on(self, tenant: Tenant) -> None:
        """A woken tenant was seen to; if the room it was woken for is still there, wake another."""
        limiter = tenant.woken_by
        if limiter is not None:
            tenant.woken_by = None
            self.wake_limiter(limiter, tenant.queue)

    def wake_limiter(self, limiter: Limiter, queue: Queue | None = None) -> None:
        """If there is room here, wake a tenant that waits for it: of this queue, or of each."""
        until = limiter.room(self.now)
        if until is None:
            for tenant in limiter.next_waiters(queue):
                tenant.woken_by = limiter
                self.make_ready(tenant)
        elif until is not math.inf:
            self.alarms.set(("", limiter.name), until)
        if limiter.idle:
            self.limiters.pop(limiter.name, None)
