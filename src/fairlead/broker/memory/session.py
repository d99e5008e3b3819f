"""Around every verb of the memory broker: the lock, the clock, the numbers, the wake-ups."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar, cast

from fairlead.broker import checks
from fairlead.broker.clock import Clock
from fairlead.broker.memory import flow_state
from fairlead.broker.memory.records import Answered
from fairlead.broker.memory.transitions import Shard
from fairlead.broker.memory.wakeups import Sleeper, Wakeups
from fairlead.broker.requests import Call
from fairlead.broker.waits import Takes
from fairlead.model.clock import follow
from fairlead.model.errors import InvalidOption, OutOfOrder
from fairlead.runtime.process_hooks import at_fork

T = TypeVar("T")

_EVENT_BYTES = 16 * 1024 * 1024
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """One lock, one shard, one verb at a time; callers may be on loops of several threads."""

    def __init__(
        self,
        *,
        test_clock: bool = False,
        event_bytes: int = _EVENT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._test_clock = test_clock
        self._clock = clock or Clock()
        self._steady = self._clock.steady()  # at the last verb
        self.ahead = 0.0  # of the clock
        self.lock = threading.Lock()
        self.generation = os.urandom(8).hex()
        self.destination = f"memory://{self.generation}"  # see ``destination_of``
        self.shard = Shard(self.generation, event_bytes)
        self.bell = Wakeups()
        self.takes = Takes()
        self.event_sleepers: list[Sleeper] = []
        _sessions.add(self)

    def do(self, now: float | None, step: Callable[[Shard], T]) -> T:
        """Carry out one verb: set the clock, take the step, write its events, wake who must be."""
        with self.lock:
            shard = self.shard
            self.set_clock(now)
            before = shard.next_due() if self.bell else None
            try:
                return step(shard)
            finally:
                self.conclude(before)

    def set_clock(self, now: float | None) -> None:
        self.shard.told = self.shard.eased = self.shard.digested = 0
        if now is None:
            now = self.shard.now if self._test_clock else self._time()
        elif not self._test_clock:
            raise InvalidOption("now", now, "left out, unless the broker has a test clock")
        if now > self.shard.now:  # never backwards
            self.shard.now = now

    def _time(self) -> float:
        wall, steady = self._clock.wall(), self._clock.steady()
        seen, self._steady = steady - self._steady, steady
        last = self.shard.now
        if last == 0.0:
            return wall
        now, self.ahead = follow(last, self.ahead, wall, seen)
        return now

    def conclude(self, before: float | None) -> None:
        """After a step: write the events, wake whoever has to know."""
        shard = self.shard
        if shard.flows_changed:
            flow_state.conclude(shard)
        if shard.stream.flush(shard.now) and self.event_sleepers:
            self.event_sleepers[:] = [each for each in self.event_sleepers if each.wake()]
        if shard.rung:
            for name in shard.rung:
                queue = shard.queues[name]
                if shard.runnable(queue):
                    self.bell.ring(name)
                else:
                    shard.set_alarm(queue)
            shard.rung.clear()
        if self.bell:
            due = shard.next_due()
            if due is not None and (before is None or due < before):
                self.bell.rearm()

    def numbered(self, verb: str, call: Call, now: float | None, step: Callable[[Shard], T]) -> T:
        return self.do(now, lambda shard: self.once(shard, verb, call, step))

    def once(self, shard: Shard, verb: str, call: Call, step: Callable[[Shard], T]) -> T:
        """Take the step, unless this is the last number again: then the answers are the same."""
        name = call.incarnation
        last, ends = shard.answers.get(name), shard.idle_ends.get(name)
        # Whoever was cut off for long repeats its last call: a new one would lend beside it.
        kept = ends is not None and (ends > shard.now or name in shard.incarnations)
        if last is not None and kept:
            if call.number == last.number:
                if last.verb != verb:
                    raise checks.other_verb(call.number, last.verb, verb)
                shard.touch(name)
                return cast(T, _own(last.answer))
            if call.number < last.number:
                raise OutOfOrder(name, call.number, last.number)
        answer = step(shard)
        shard.answers[name] = Answered(call.number, verb, _own(answer))
        shard.touch(name)
        return answer

    def _before_fork(self) -> None:
        self.lock.acquire()

    def _after_fork(self, *, child: bool) -> None:
        if child:  # whoever waited waits on loops of the parent
            self.bell = Wakeups()
            self.event_sleepers = []
            for box in self.shard.mailboxes.values():
                box.sleepers.clear()
        self.lock.release()


def _own(answer: object) -> object:
    """A list of one's own: what a caller does to its answers must not change the kept ones."""
    return list(answer) if isinstance(answer, list) else answer


def _fork_hooks() -> None:
    """Fork only between verbs, so that the child's copy is whole and its lock is free."""
    here = threading.local()  # several threads may fork

    def before() -> None:
        here.held = list(_sessions)
        for session in here.held:
            session._before_fork()

    def after(*, child: bool) -> None:
        for session in here.held:
            session._after_fork(child=child)
        here.held = []

    at_fork(
        before=before,
        after_in_parent=lambda: after(child=False),
        after_in_child=lambda: after(child=True),
    )


_fork_hooks()
