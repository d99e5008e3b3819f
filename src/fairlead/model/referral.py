"""Who else can run a task that a worker does not know, and when to ask them again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_ASKED = 8  # workers that are asked about one batch of tasks
_AHEAD = 128  # tasks beyond its slots at most that a worker may be given to hold
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0  # seconds that a task rests that came back
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0  # seconds that a task rests for which there is no room
_FORGET = 60.0  # seconds after which it is as if it had never come back
_MOST = 1_000  # tasks that are remembered


class Candidate(NamedTuple):
    """A worker as far as it matters for handing it a task."""

    incarnation: str
    queues: frozenset[str]
    versions: Mapping[str, int]  # by the name of each task that it knows
    concurrency: int
    running: int

    @property
    def room(self) -> int:
        """How many loans it may have: what it runs, and as much again to begin next."""
        return self.concurrency + min(self.concurrency, _AHEAD)

    def knows(self, task: str, version: int, queue: str) -> bool:
        """Return whether it can run a call of this version, and serves the queue."""
        return queue in self.queues and self.versions.get(task, 0) >= version


def candidates(
    task: str, version: int, queue: str, workers: Iterable[Candidate]
) -> list[Candidate]:
    """Return up to eight workers that can run the task, the least busy first.

    Of those that are about as busy the order stays: whoever asks should mix them.
    """
    able = [worker for worker in workers if worker.knows(task, version, queue)]
    return sorted(able, key=lambda each: 4 * each.running // max(each.concurrency, 1))[:_ASKED]


class Pressure:
    """For how long tasks rest that nobody has room for: as long as there has been none.

    A backlog is then looked at every few seconds, not all the time. How many batches are refused
    does not matter: ten of them within a moment say no more than one.
    """

    def __init__(self) -> None:
        self.pause = _FIRST_WAIT  # seconds until the tasks of the last batch are tried again
        self._began = self._last = -math.inf  # when something was refused, without a gap since

    def felt(self, now: float, *, refused: bool) -> None:
        """Take note of whether all of a batch found room."""
        if not refused or now > self._last + 2 * self.pause:
            self._began, self.pause = now, _FIRST_WAIT
        if refused:
            self._last = now
            self.pause = min(max(now - self._began, _FIRST_WAIT), _LONGEST_WAIT)


class Returns:
    """Remembers which tasks were handed on, so that none goes round and round.

    A task that comes back rests before it is handed on again, for longer each time.
    """

    def __init__(self) -> None:
        self._times: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how often, until when

    def pause(self, id: str, now: float) -> float:
        """Return for how many seconds a task should rest; 0: it may be handed on now."""
        times, until = self._times.pop(id, (0, 0.0))
        if now > until + _FORGET:
            times = 0
        rests = times % 2 == 1  # it was handed on the last time
        pause = min(_FIRST_PAUSE * 2 ** (times // 2), _LONGEST_PAUSE) if rests else 0.0
        self._times[id] = times + 1, now + pause
        if len(self._times) > _MOST:
            self._times.popitem(last=False)
        return pause

    def refused(self, id: str) -> None:
        """Take back that a task was handed on: nobody had room for it."""
        times, until = self._times.pop(id, (0, 0.0))
        if times > 1:
            self._times[id] = times - 1, until


class TurnedDown(NamedTuple):
    """A task that nobody knew when it came, and how it stood then."""

    task: str
    version: int
    queue: str
    generation: int
    attempts: int

    @property
    def key(self) -> tuple[str, int, str]:
        """What decides who can run it."""
        return self.task, self.version, self.queue

    @property
    def seen(self) -> dict[str, int]:
        """What changes when something happens to it."""
        return {"generation": self.generation, "attempts": self.attempts}
