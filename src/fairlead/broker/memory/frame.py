"""Around every verb of the memory broker: the lock, the clock, the numbers, the wake-ups."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar, cast

from fairlead.broker.clock import Clock
from fairlead.broker.memory import flow
from fairlead.broker.memory.bell import Bell, Sleeper
from fairlead.broker.memory.records import Answered
from fairlead.broker.memory.shard import Shard
from fairlead.broker.verbs import Call
from fairlead.broker.waits import Takes
from fairlead.model.clock import follow
from fairlead.model.errors import InvalidInput, InvalidOption, OutOfOrder
from fairlead.runtime.forks import at_fork

__all__ = ("Frame",)

T = TypeVar("T")

_EVENT_BYTES = 16 * 1024 * 1024
_frames: weakref.WeakSet[Frame] = weakref.WeakSet()


class Frame:
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
        self._ahead = 0.0  # of the clock
        self._lock = threading.Lock()
        self._generation = os.urandom(8).hex()
        self.destination = f"memory://{self._generation}"  # see ``destination_of``
        self._shard = Shard(self._generation, event_bytes)
        self._bell = Bell()
        self._takes = Takes()
        self._event_sleepers: list[Sleeper] = []
        _frames.add(self)

    def _do(self, now: float | None, step: Callable[[Shard], T]) -> T:
        """Carry out one verb: set the clock, take the step, write its events, wake who must be."""
        with self._lock:
            shard = self._shard
            self._set_clock(now)
            before = shard.next_due() if self._bell else None
            try:
                return step(shard)
            finally:
                self._conclude(before)

    def _set_clock(self, now: float | None) -> None:
        self._shard.told = self._shard.eased = self._shard.digested = 0
        if now is None:
            now = self._shard.now if self._test_clock else self._time()
        elif not self._test_clock:
            raise InvalidOption("now", now, "left out, unless the broker has a test clock")
        if now > self._shard.now:  # never backwards
            self._shard.now = now

    def _time(self) -> float:
        wall, steady = self._clock.wall(), self._clock.steady()
        seen, self._steady = steady - self._steady, steady
        last = self._shard.now
        if last == 0.0:
            return wall
        now, self._ahead = follow(last, self._ahead, wall, seen)
        return now

    def _conclude(self, before: float | None) -> None:
        """After a step: write the events, wake whoever has to know."""
        shard = self._shard
        if shard.flows_changed:
            flow.conclude(shard)
        if shard.stream.flush(shard.now) and self._event_sleepers:
            self._event_sleepers[:] = [each for each in self._event_sleepers if each.wake()]
        if shard.rung:
            for name in shard.rung:
                queue = shard.queues[name]
                if shard.runnable(queue):
                    self._bell.ring(name)
                else:
                    shard.set_alarm(queue)
            shard.rung.clear()
        if self._bell:
            due = shard.next_due()
            if due is not None and (before is None or due < before):
                self._bell.rearm()

    def _numbered(self, verb: str, call: Call, now: float | None, step: Callable[[Shard], T]) -> T:
        return self._do(now, lambda shard: self._once(shard, verb, call, step))

    def _once(self, shard: Shard, verb: str, call: Call, step: Callable[[Shard], T]) -> T:
        """Take the step, unless this is the last number again: then the answers are the same."""
        name = call.incarnation
        last, ends = shard.answers.get(name), shard.idle_ends.get(name)
        # Whoever was cut off for long repeats its last call: a new one would lend beside it.
        kept = ends is not None and (ends > shard.now or name in shard.incarnations)
        if last is not None and kept:
            if call.number == last.number:
                if last.verb != verb:
                    raise InvalidInput(
                        f"exchange {call.number} was {last.verb}; it cannot be repeated as {verb}"
                    )
                shard.touch(name)
                return cast(T, _own(last.answer))
            if call.number < last.number:
                raise OutOfOrder(name, call.number, last.number)
        answer = step(shard)
        shard.answers[name] = Answered(call.number, verb, _own(answer))
        shard.touch(name)
        return answer

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self, *, child: bool) -> None:
        if child:  # whoever waited waits on loops of the parent
            self._bell = Bell()
            self._event_sleepers = []
            for box in self._shard.mailboxes.values():
                box.sleepers.clear()
        self._lock.release()


def _own(answer: object) -> object:
    """A list of one's own: what a caller does to its answers must not change the kept ones."""
    return list(answer) if isinstance(answer, list) else answer


def _fork_hooks() -> None:
    """Fork only between verbs, so that the child's copy is whole and its lock is free."""
    here = threading.local()  # several threads may fork

    def before() -> None:
        here.held = list(_frames)
        for frame in here.held:
            frame._before_fork()

    def after(*, child: bool) -> None:
        for frame in here.held:
            frame._after_fork(child=child)
        here.held = []

    at_fork(
        before=before,
        after_in_parent=lambda: after(child=False),
        after_in_child=lambda: after(child=True),
    )


_fork_hooks()
