"""Spooled tasks that run in this process while the broker is away; their ends are sent later.

A task is claimed by a record, on disk before its handler begins. Its end is another one, which
stands for the task from then on. A process that dies in between leaves a task that is claimed and
has no end: it is sent to the broker like any other. The background loop alone calls ``step``, and
never while it drains: so nothing is claimed that is being sent.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairlead.broker.requests import Submission
from fairlead.fallback.codec import SpooledTask, decode_submission, moment_now
from fairlead.fallback.local_outcomes import LocalOutcomes, encode_end, end_here
from fairlead.fallback.local_queue import Candidate, LocalQueue
from fairlead.fallback.threads import in_thread
from fairlead.model.errors import InvalidInput, InvalidOption
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Leased, Message
from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime import fault_injection
from fairlead.spool import Entry, Kind, Record

if TYPE_CHECKING:
    from fairlead.fallback.fallback import Fallback

_PAGE, _PAGES = 256, 8  # records in a read, and reads in a step
_WINDOW = 1_000  # tasks that are looked at ahead of those that run
_AGAIN = 1.0  # seconds after the disk did not take a record
_LAST = 0.5  # seconds that handlers have to stop when the process ends

log = logging.getLogger("fairlead.fallback")

#: Called from any thread with the id of a task and what follows its attempt; None: it did not run.
Finished = Callable[[str, Settlement | None], None]


class Handlers(Protocol):
    """Runs attempts in this process. What ``start`` is given comes back through ``Finished``."""

    def can_run(self, message: Message) -> bool:
        """Whether a handler here can run it by itself."""
        ...

    def start(self, leases: Sequence[Leased]) -> None:
        """Begin attempts."""
        ...

    def close(self, timeout: float) -> None:
        """Stop what runs, and wait so many seconds for it. Blocks."""
        ...


MakeHandlers = Callable[[Finished], Handlers]


class _Run(NamedTuple):
    """A task that was claimed."""

    sequence: int
    task: SpooledTask


class LocalTasks:
    """What runs here, and what has ended here and is still in the spool."""

    def __init__(
        self,
        fallback: Fallback,
        make: MakeHandlers | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``make`` opens handlers when there is something to run; None: nothing runs here."""
        self.ran = 0  # tasks that ended here, since the process began
        self.outcomes = LocalOutcomes(fallback.spool)
        self._fallback = fallback
        self._make = make
        self._clock = clock
        self._handlers: Handlers | None = None
        self._is_stopped = make is None
        self._running: dict[str, _Run] = {}  # by id
        self._over: deque[tuple[str, Settlement | None]] = deque()  # from other threads
        self._candidates = LocalQueue()
        self._after = 0  # the last record that was looked at
        self._changes = -1  # of state, when that began
        self._is_told = False  # that tasks run here
        self._count = self._left = 0  # tasks that ended, and did not, since then
        self._unwritten = ""  # why the last record could not be written

    # -- what others ask ------------------------------------------------------------------------

    def holds(self, submission: Submission) -> bool:
        """Whether a task is not to be sent, nor to begin: it runs here, or its end is to be sent.

        The same goes for one that depends on a task whose end is to be sent.
        """
        if submission.ended is not None or not (len(self.outcomes) or self._running):
            return False
        id = submission.message.id
        if id in self.outcomes or id in self._running:
            return True
        return any(each.id in self.outcomes for each in submission.depends_on)

    # -- what the background loop does ----------------------------------------------------------

    async def step(self, is_doubted: Callable[[int], bool]) -> float:
        """Keep the ends of what ran, and begin more; the seconds until something is to be done.

        ``is_doubted`` says of a record that the broker may have its task.
        """
        wait = await self._keep_ends()
        if self._is_stopped:
            return wait
        ready, soon = self._away()
        if not ready:
            if not self._running and not self._fallback.outages.away():
                await self._end()
            return min(wait, soon)
        await self.outcomes.index()
        more = await self._look(ready, is_doubted)
        if not await self._begin(ready, is_doubted):
            self._changes = -1  # those that were not begun are looked at again
            return min(wait, _AGAIN)
        due = self._candidates.next_due()
        if due is not None:
            wait = min(wait, max(due - self._clock(), 0.0))
        is_full = len(self._running) >= self._fallback.options.local_concurrency
        return 0.0 if more and not is_full else min(wait, soon)

    async def finish(self) -> None:
        """Stop what runs, and keep what has ended: the process ends."""
        await in_thread(lambda: self.stop(_LAST))
        await self._keep_ends()

    def stop(self, timeout: float) -> None:
        """Let nothing run here any more, and wait so many seconds for it. From any thread."""
        self._is_stopped = True
        handlers, self._handlers = self._handlers, None
        if handlers is not None:
            handlers.close(timeout)

    def _away(self) -> tuple[set[str], float]:
        """Return the shards that have been away for a while, and when the next one has been."""
        outages, settling = self._fallback.outages, self._fallback.options.settling
        ready, soon = set(), math.inf
        for shard in outages.away():
            left = settling - outages.away_for(shard)
            if left <= 0.0:
                ready.add(shard)
            else:
                soon = min(soon, left)
        return ready, soon

    # -- choosing -------------------------------------------------------------------------------

    async def _look(self, shards: set[str], is_doubted: Callable[[int], bool]) -> bool:
        """Look at records behind the last ones; whether there are more to look at."""
        outages = self._fallback.outages
        if self._changes != outages.changes:  # those of other shards may run now
            self._changes, self._after, self._candidates = outages.changes, 0, LocalQueue()
        for _ in range(_PAGES):
            if len(self._candidates) >= _WINDOW:
                return False
            records = await in_thread(lambda: self._fallback.spool.pending(self._after, _PAGE))
            if not records:
                return False
            self._after = records[-1].sequence
            for record in records:
                task = self._runnable(record, shards, is_doubted)
                if task is not None:
                    self._add(record, task)
        return True

    def _add(self, record: Record, task: SpooledTask) -> None:
        message = task.submission.message
        candidate = Candidate(message.level, record.sequence, message.id, message.tenant)
        delay = task.due(moment_now()).delay
        if delay > 0.0:
            self._candidates.add_later(self._clock() + delay, candidate)
        else:
            self._candidates.add(candidate)

    def _runnable(
        self, record: Record, shards: set[str], is_doubted: Callable[[int], bool]
    ) -> SpooledTask | None:
        """Return the task of a record if it may run here, now or when it is due."""
        if record.kind is not Kind.SUBMISSION or record.started or is_doubted(record.sequence):
            return None
        try:
            task = decode_submission(record.payload)
        except InvalidInput:  # the drain rejects it, visibly
            return None
        made, message = task.submission, task.submission.message
        asks = made.depends_on or made.unique or made.fence or made.ended or message.limiters
        # A chosen id may be known to the broker, and so may one whose reply was lost.
        if asks or ":" in message.id or task.doubt is not None or self.holds(made):
            return None
        if message.queue not in self._fallback.options.local_queues:
            return None
        if self._fallback.shard_of(message) not in shards or task.due(moment_now()).deadline == 0.0:
            return None
        handlers = self._opened()
        return task if handlers is not None and handlers.can_run(message) else None

    def _opened(self) -> Handlers | None:
        if self._handlers is None and self._make is not None and not self._is_stopped:
            self._handlers = self._make(self._finished)
        return self._handlers

    # -- claims ---------------------------------------------------------------------------------

    async def _begin(self, shards: set[str], is_doubted: Callable[[int], bool]) -> bool:
        """Claim as many tasks as there is room for, and begin them; False: the disk takes none."""
        chosen: dict[str, _Run] = {}
        free = self._fallback.options.local_concurrency - len(self._running)
        while len(chosen) < free:
            candidate = self._candidates.next(self._clock())
            if candidate is None:
                break
            record = await in_thread(partial(self._record, candidate.sequence))
            task = None if record is None else self._runnable(record, shards, is_doubted)
            if record is not None and task is not None and candidate.id not in chosen:
                chosen[candidate.id] = _Run(record.sequence, task)
        if not chosen:
            return True
        self._running |= chosen
        fault_injection.reached("local_claiming")
        started = {run.sequence: (Kind.LOCAL_STARTED, b"") for run in chosen.values()}
        written = await self._append(started)
        fault_injection.reached("local_claimed")
        begun = [run.task for run in chosen.values() if written[run.sequence]]
        for id, run in chosen.items():
            if not written[run.sequence]:
                del self._running[id]
        handlers = self._opened()
        if begun and handlers is not None:
            self._tell_begin()
            handlers.start([_lease(task) for task in begun])
        return len(begun) == len(chosen)

    def _tell_begin(self) -> None:
        if not self._is_told:
            self._is_told, self._count, self._left = True, 0, 0
            queues = ", ".join(sorted(self._fallback.options.local_queues))
            log.warning("tasks of these queues run in this process now: %s", queues)

    def _record(self, sequence: int) -> Record | None:
        records = self._fallback.spool.pending(sequence - 1, 1)
        return records[0] if records and records[0].sequence == sequence else None

    # -- ends -----------------------------------------------------------------------------------

    def _finished(self, id: str, settlement: Settlement | None) -> None:
        self._over.append((id, settlement))
        self._fallback.wake()

    async def _keep_ends(self) -> float:
        """Write the ends of attempts; the seconds until that is to be tried again."""
        over = [self._over.popleft() for _ in range(len(self._over))]
        ended: dict[str, Settlement] = {}
        for id, settlement in over:
            if settlement is not None and settlement.to in (State.COMPLETED, State.DEAD):
                ended[id] = end_here(settlement)
            else:  # the broker gets it as it was enqueued
                self._left += 1
                del self._running[id]
        if not ended:
            return math.inf
        fault_injection.reached("local_ended")
        runs = {id: self._running[id] for id in ended}
        written = await self._append(
            {
                run.sequence: (Kind.LOCAL_DONE, encode_end(run.task, ended[id]))
                for id, run in runs.items()
            }
        )
        fault_injection.reached("local_kept")
        wait = math.inf
        for id, run in runs.items():
            if written[run.sequence] is False:
                self._over.append((id, ended[id]))
                wait = _AGAIN
                continue
            del self._running[id]
            if written[run.sequence]:
                self.outcomes.add(run.task.submission.message, ended[id])
                self.ran += 1
                self._count += 1
        return wait

    async def _append(self, records: Mapping[int, tuple[Kind, bytes]]) -> dict[int, bool | None]:
        """Write what becomes of tasks, by their sequences; all of it in one go.

        False for one that the disk does not take, None for one that is not in the spool any more.
        """
        entries = [Entry(kind, data, about) for about, (kind, data) in records.items()]
        answers = await asyncio.gather(*map(self._append_one, entries))
        return dict(zip(records, answers, strict=True))

    async def _append_one(self, entry: Entry) -> bool | None:
        try:
            await self._fallback.spool.aappend([entry])
        except SpoolFailed as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                log.warning("what runs here cannot be recorded; tried again: %s", error)
            return False
        except InvalidOption:  # it was in the spool for too long, and is rejected
            return None
        self._unwritten = ""
        return True

    async def _end(self) -> None:
        """The broker is back, and nothing runs here any more."""
        handlers, self._handlers = self._handlers, None
        if handlers is None:
            return
        await in_thread(lambda: handlers.close(_LAST))
        if self._is_told:
            self._is_told = False
            fields = {"ran": self._count, "left": self._left}
            text = "no more tasks run in this process: %d ended here, %d are left to the broker"
            log.warning(text, self._count, self._left, extra=fields)


def _lease(task: SpooledTask) -> Leased:
    """Return a task as a worker would get it. Its token is like those of brokers: the time."""
    return Leased(
        message=task.submission.message,
        token=int(time.time() * 1e6),
        attempt=1,
        enqueued_at=task.moment.wall,
    )
