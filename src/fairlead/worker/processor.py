"""Free slots -> fetch -> one attempt each -> outcomes: the pump of a worker."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fairlead.broker import Broker
from fairlead.broker.verbs import LEASE, MAX_EXCHANGE, ExchangeReply, Fetch
from fairlead.model.backoff import RetryPolicy
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import Outcome, Settlement, State, Unroutable, settle
from fairlead.model.message import Leased, Trace
from fairlead.model.ordering import QueueOrder
from fairlead.worker.context import Context
from fairlead.worker.deadlines import Deadlines
from fairlead.worker.execution import Attempt, Floor, begin
from fairlead.worker.forwarder import Forwarder
from fairlead.worker.inflight import Inflight
from fairlead.worker.router import Router
from fairlead.worker.syncer import Syncer
from fairlead.worker.threads import Threads
from fairlead.worker.writer import Writer

__all__ = ("Processor", "Raised")

log = logging.getLogger("fairlead.worker")

_SAFETY = 5.0  # seconds: a wake-up that was lost costs no more
_FIRST_PAUSE = 0.1  # seconds after an exchange that was refused, doubled each time
_LONGEST_PAUSE = 5.0  # seconds
_LAST_WORDS = 2.0  # seconds to deliver outcomes in once nothing runs any more
_EMPTY = 8  # wake-ups in a row for nothing before we distrust them
_UNROUTABLE = RetryPolicy()  # not asked for the unroutable; settle() wants one


class Raised(NamedTuple):
    """An exception that a handler raised, or ran into."""

    task_id: str
    task: str
    attempt: int
    exception: BaseException


class Processor:
    """Fetches as much as there are free slots, never more, and starts an attempt for each.

    Outcomes and fetch share one exchange. What finishes while one is in flight goes with the next.
    """

    name = "processor"

    def __init__(
        self,
        broker: Broker,
        syncer: Syncer,
        inflight: Inflight,
        router: Router,
        writer: Writer,
        threads: Threads,
        forwarder: Forwarder,
        *,
        order: QueueOrder,
        concurrency: int,
        patience: float,
        dice: Callable[[], float],
        exceptions: deque[Raised],
    ) -> None:
        self._broker = broker
        self._syncer = syncer
        self._inflight = inflight
        self._router = router
        self._writer = writer
        self._floor = Floor(threads, Deadlines(), self._finished, patience=patience)
        self._forwarder = forwarder
        self._concurrency = concurrency
        self._patience = patience
        self._dice = dice
        self._wake = asyncio.Event()  # something to exchange, or a slot that became free
        self._left = asyncio.Event()  # run() is over, or was never called
        self._left.set()
        self._halt = asyncio.Event()  # stop() was called
        self._empty = 0  # wake-ups in a row that brought nothing
        self.order = order
        self.lease = LEASE  # seconds
        self.started = 0  # attempts so far
        self.exceptions = exceptions

    async def run(self) -> None:
        """Fetch and run until ``stop`` is called, which settles the rest."""
        self._left.clear()
        failures = 0
        try:
            while not self._halt.is_set():
                try:
                    if not await self.process():
                        await self._rest()
                    failures = 0
                except BrokerError as error:
                    if failures == 0:
                        self._complain(error)
                    pause = min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE)
                    failures = min(failures + 1, 16)
                    await _within(pause, self._halt)
        finally:
            self._left.set()

    async def process(self) -> bool:
        """One exchange: outcomes out, tasks in. True if another should follow at once."""
        self._wake.clear()
        free = min(self._concurrency - len(self._inflight), MAX_EXCHANGE)
        queues = self.order.order()
        fetch = Fetch(queues=queues, max=free, lease=self.lease) if free > 0 else None
        reply = await self._syncer.sync(fetch)
        if reply is None:
            return False
        self._forwarder.expect(reply.due_in)
        if fetch is not None:
            self._learn(queues, free, reply)
            for lease in reply.leased:
                self._start(lease)
        full = len(self._inflight) >= self._concurrency
        again = not full and (reply.more or len(reply.leased) == free)
        return self._syncer.pending > 0 or (again and fetch is not None)

    async def drain(self) -> int:
        """Run all that is due now, and what comes of it; how many attempts that took."""
        before = self.started
        while True:
            if await self.process():
                continue
            if self._inflight:
                await self._wake.wait()
            elif not self._wake.is_set() and not await self._forwarder.forward():
                return self.started - before

    async def stop(self, grace: float) -> None:
        """Fetch no more, let attempts finish for ``grace`` seconds, hand the others back."""
        loop = asyncio.get_running_loop()
        self._halt.set()
        self._wake.set()
        # Whoever waits for a broker that is gone gives up: the process has to end some time.
        self._syncer.insist_until(loop.time() + grace + _LAST_WORDS)
        try:
            await self._left.wait()
            await self._settle_rest(grace)
        finally:
            # Here too when this is cancelled, which is how a second request to stop comes.
            self._syncer.insist_until(loop.time() + _LAST_WORDS)
            self._inflight.stop_all("release")
            await self._settle_rest(2 * self._patience + _LAST_WORDS)
            self._floor.deadlines.close()

    def restart(self) -> None:
        """Make ready for another run after a stop."""
        self._halt.clear()
        self._empty = 0
        self._syncer.insist_until(math.inf)

    # -- waiting -----------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Until there is something to exchange, or perhaps to fetch."""
        if self._wake.is_set():
            return
        if len(self._inflight) >= self._concurrency:
            await self._wake.wait()
            return
        loop = asyncio.get_running_loop()
        since = loop.time()
        bell = asyncio.ensure_future(self._broker.wait(self.order.order(), _SAFETY))
        bell.add_done_callback(self._rung)
        try:
            await self._wake.wait()
        finally:
            # No wait is left behind: a wake-up goes to one worker only, and one that we took must
            # be followed by a fetch of ours.
            if not bell.done():
                bell.cancel()
                await asyncio.wait([bell])
        if not bell.cancelled():
            timed_out = not bell.result() and loop.time() - since > _SAFETY / 2
            await self._distrust(0 if timed_out else self._empty + 1)

    def _rung(self, bell: asyncio.Future[bool]) -> None:
        self._wake.set()

    async def _distrust(self, empty: int) -> None:
        """Slow down if wake-ups bring nothing: a broker that is closed must not make us spin."""
        self._empty = empty
        if empty > _EMPTY:
            await asyncio.sleep(min(0.001 * 2 ** min(empty - _EMPTY, 10), 0.1))

    def _learn(self, queues: Sequence[str], asked: int, reply: ExchangeReply) -> None:
        """Tell the order of queues what each of them gave."""
        if reply.leased:
            self._empty = 0
        got = Counter(lease.message.queue for lease in reply.leased)
        if len(reply.leased) < asked and not reply.more:
            empty: Sequence[str] = queues
        else:  # it went on to a queue only when those before it had nothing more
            last = max((i for i, queue in enumerate(queues) if queue in got), default=0)
            empty = queues[:last]
        self.order.record(got, empty)

    # -- attempts ----------------------------------------------------------------------------

    def _start(self, lease: Leased) -> None:
        route = self._router.route(lease)
        if isinstance(route, Unroutable):
            settlement = settle(lease, route, _UNROUTABLE, dice=self._dice())
            log.warning("task unroutable", extra=_fields(lease, settlement, route.info.type))
            self._settled(settlement)
            return
        message = lease.message
        context = Context(
            lease,
            route.spec.name,
            self._writer,
            asyncio.get_running_loop(),
            correlation_id=_correlation(message.trace) or message.id,
        )
        self.started += 1
        self._inflight.add(begin(route, context, self._floor))

    def _finished(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._inflight.remove(attempt)
        self._wake.set()
        lease, assignment = attempt.lease, attempt.assignment
        if attempt.error is not None:
            name = assignment.spec.name
            self.exceptions.append(Raised(lease.message.id, name, lease.attempt, attempt.error))
        if outcome is None:
            log.warning("lease lost", extra={**attempt.fields(), "token": lease.token})
            return
        settlement = settle(
            lease,
            outcome,
            assignment.policy,
            dice=self._dice(),
            run_time=attempt.run_time,
            keep=assignment.keep,
        )
        if settlement.error is not None:
            fields = _fields(lease, settlement, settlement.error.type)
            fields["task"] = assignment.spec.name
            if settlement.to is State.DEAD:
                log.error("task dead", extra=fields)
            else:
                log.warning("attempt failed", extra=fields)
        self._settled(settlement)

    def _settled(self, settlement: Settlement) -> None:
        self._syncer.add(settlement)
        self._wake.set()

    async def _settle_rest(self, patience: float) -> None:
        """Exchange outcomes until nothing runs and nothing is unsent, at most so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        complained = False
        while self._inflight or self._syncer.pending:
            self._wake.clear()
            try:
                await self._syncer.sync()
            except BrokerError as error:
                if not complained:
                    self._complain(error)
                complained = True
                if loop.time() >= until:
                    return
                await asyncio.sleep(_FIRST_PAUSE)
                continue
            if self._inflight and not self._syncer.pending:
                left = until - loop.time()
                if not await _within(left, self._wake):
                    return

    def _complain(self, error: BrokerError) -> None:
        fields = {"component": self.name, "error": type(error).__name__}
        log.warning("broker failed", extra=fields)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Whether the event comes within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _correlation(trace: bytes) -> str:
    try:
        return Trace.decode(trace).correlation_id
    except ValueError:  # written by a later release: not worth a failed task
        return ""


def _fields(lease: Leased, settlement: Settlement, error: str) -> dict[str, object]:
    """What a log line tells of an attempt: never arguments, never the text of an error."""
    message = lease.message
    return {
        "task_id": message.id,
        "queue": message.queue,
        "tenant": message.tenant,
        "attempt": lease.attempt,
        "state": str(settlement.to),
        "reason": settlement.reason,
        "delay": settlement.delay,
        "error": error,
    }
