"""Free slots -> fetch -> one attempt each -> outcomes: the pump of a worker."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Literal

from fairlead.broker import Broker
from fairlead.broker.requests import LEASE, ExchangeReply, Fetch
from fairlead.model.errors import BrokerError
from fairlead.model.message import Leased
from fairlead.model.queue_order import QueueOrder
from fairlead.model.retries import ALONE
from fairlead.runtime.component import within
from fairlead.worker.capacity import Ask, Capacity
from fairlead.worker.coalescer import Coalescer
from fairlead.worker.forwarder import Forwarder
from fairlead.worker.inflight import Inflight, Kind
from fairlead.worker.run.threads import Threads
from fairlead.worker.runner import Runner
from fairlead.worker.subscriber import Subscriber
from fairlead.worker.syncer import Syncer
from fairlead.worker.work_waiter import WorkWaiter

_SAFETY = 15.0  # seconds; brokers look after lost wake-ups themselves, this is in case one does not
_PAUSE = 0.1  # seconds after a wait that failed
_LAST_WORDS = 2.0  # seconds to deliver outcomes in once nothing runs any more
_ALMOST_ONE = math.nextafter(1.0, 0.0)
_STUCK_PAUSE = 1.0  # seconds between two tries to have a thread again
_TELL = 0.02  # seconds after which a held task that has begun is told to the broker
_HOLD = 0.25  # seconds between two looks at what is held and has not begun
_QUEUE_OF, _CRASHES_OF = attrgetter("message.queue"), attrgetter("crashes")


class Processor:
    """Fetches as much as can begin, and starts an attempt for each.

    Outcomes and fetch share one exchange. What finishes while one is in flight goes with the next.
    So that short handlers need not wait for it, as many tasks are held in hand as they finish in
    ten milliseconds. A held task is charged to nobody, and goes back when the worker stops.
    """

    name = "processor"

    def __init__(
        self,
        broker: Broker,
        syncer: Syncer,
        inflight: Inflight,
        runner: Runner,
        threads: Threads,
        forwarder: Forwarder,
        capacity: Capacity,
        subscriber: Subscriber,
        coalescer: Coalescer,
        *,
        order: QueueOrder,
        patience: float,
    ) -> None:
        self._broker = broker
        self._syncer = syncer
        self._inflight = inflight
        self._threads = threads
        self._forwarder = forwarder
        self._runner = runner
        self._subscriber = subscriber
        self._capacity = capacity
        self.concurrency = capacity.concurrency
        self._kept = True  # somebody keeps our leases; otherwise nothing may be fetched
        self._patience = patience
        self._coalescer = coalescer
        self._wake = coalescer.wake
        self._waiter = WorkWaiter(
            broker, syncer, inflight,
            woken=self._wake, hurry=coalescer.hurry, handed=self._begin_handed,
            begun=self._handed_has_begun, executor=runner.executor,
        )  # fmt: skip
        self._left = asyncio.Event()  # run() is over, or was never called
        self._left.set()
        self._halt = asyncio.Event()  # stop() was called
        self.halting = self._woken = False  # the same as these two events, for quick looks
        self.resting: frozenset[str] = frozenset()  # who asks to fetch no more
        self.order = order
        self.lease = LEASE  # seconds

    async def run(self) -> None:
        """Fetch and run until ``stop`` is called, which settles the rest."""
        self._left.clear()
        try:
            while not self._halt.is_set():
                try:
                    if await self.process():
                        await asyncio.sleep(0)  # whatever the broker answers, others have a turn
                    else:
                        await self._wait_for_work()
                    await self._coalesce()
                except BrokerError as error:
                    # Of the wait for work: the next exchange is repeated until the broker answers.
                    self._syncer.outage.failed(error)
                    await within(_PAUSE, self._halt)
            await self._waiter.withdraw()
        finally:
            self._left.set()

    async def process(self) -> bool:
        """One exchange: outcomes out, tasks in. True if another should follow at once."""
        self._sleep()
        if self._inflight.held:
            self._give_back(self._capacity.stale(self._runner.now()))  # other workers may be idle
        ask = self._ask()
        fetch = None
        if ask is not None:
            at_once = max(min(ask.certain, ask.most), 0)
            fetch = Fetch(queues=ask.queues, max=ask.most, start=at_once, lease=self.lease)
        self._coalescer.sent(self._syncer.pending)
        reply = await self._syncer.sync(fetch, meanwhile=self._fill)
        if reply is None:
            await self._waiter.withdraw()  # nothing else has ended it
            return self._syncer.pending > 0
        self._forwarder.expect(reply.due_in)
        again = False
        if ask is not None:
            self._take(reply.leased)
            self._learn(ask, reply)
            again = reply.more or ask.cut or len(reply.leased) == ask.most
            self._coalescer.answered(more=again)
        if self._threads.stuck:
            self._threads.give_back()
        if self._syncer.pending > 0 or (again and self._ask() is not None):
            return True
        self._fill()
        self._give_back(self._capacity.lacking(self._runner.now()))  # another worker may be idle
        return self._syncer.pending > 0  # what could not be begun goes back

    def _ask(self, now: float | None = None) -> Ask | None:
        """What to fetch: what can begin, and what is held in hand beyond that; None: nothing."""
        if self.resting or not self._kept:
            return None
        if not self._threads.revive():
            self._threads.give_back()  # what is fetched may need a thread
            return None
        return self._capacity.ask(self.order.order(), self._runner.now() if now is None else now)

    def _take(self, leases: Sequence[Leased]) -> None:
        """Hold what was lent; what there are slots for begins as soon as the broker is busy."""
        self._inflight.held.extend(leases)
        if self.halting or self.resting or not self._kept:
            self.hand_back()  # nothing new begins once a stop was asked for

    def take_over(self, leases: Sequence[Leased]) -> None:
        """Hold what another worker lent, and begin it with the next exchange."""
        self._take(leases)
        self._coalescer.hurry()

    def _fill(self) -> None:
        """Begin what is held, as far as there are slots, and threads and processes."""
        running, held, start = self._inflight.running, self._inflight.held, self._runner.start
        takes_all, fits, passed = self._capacity.takes_all, self._capacity.fits, []
        while held and len(running) < self.concurrency:
            lease = held.popleft()
            if (takes_all and not lease.crashes) or fits(lease):
                start(lease)
            else:
                passed.append(lease)
        if passed:
            held.extendleft(reversed(passed))

    def hand_back(self, queues: Collection[str] | None = None) -> None:
        """Give back what is held and has not begun: all of it, or that of some queues."""
        held = self._inflight.held
        self._give_back([x for x in held if queues is None or x.message.queue in queues])

    def _give_back(self, leases: Sequence[Leased]) -> None:
        for lease in reversed(leases):  # each goes to the front of its line
            self._inflight.held.remove(lease)
            self.release(lease)

    def release(self, lease: Leased) -> None:
        """Give back a task that was held, and is so no more."""
        self._runner.release(lease)
        self._coalescer.hurry()

    @property
    def wants(self) -> bool:
        """Whether it would fetch if there were anything: it has room, and nobody told it not to."""
        return not self.halting and self._ask() is not None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for work, and nothing that was lent is here or on its way here."""
        return self._forwarder.covered and not (self._inflight or self._inflight.held)

    @property
    def kept(self) -> bool:
        """Whether somebody keeps our leases. Nothing is fetched while nobody does."""
        return self._kept

    @kept.setter
    def kept(self, kept: bool) -> None:
        if kept and not self._kept:
            self._coalescer.hurry()
        self._kept = kept

    def be_quiet(self, quiet: bool = True, by: Literal["signal", "order"] = "signal") -> None:
        """Fetch no more, or again if nobody else asks for rest; what runs goes on."""
        self.resting = self.resting | {by} if quiet else self.resting - {by}
        if quiet:
            self.hand_back()
        self._coalescer.hurry()

    async def drain(self, limit: int | None = None) -> int:
        """Run all that is due now, and what comes of it; how many attempts that took.

        Retries get their full backoff: dice would let some of them run now and others later.
        More than ``limit`` attempts are taken for a chain without an end, and are an error.
        """
        started, dice = self._runner.started, self._runner.dice
        started.clear()
        self._runner.dice = lambda: _ALMOST_ONE
        try:
            while True:
                again = await self.process()
                if limit is not None and sum(started.values()) > limit:
                    raise self._runner.endless(limit)
                if again:
                    continue
                if self._inflight or self._threads.stuck:
                    # What runs may wait for something that it has enqueued.
                    await self._wait_for_work()
                elif not self._wake.is_set() and not await self._forwarder.forward():
                    return sum(started.values())
        finally:
            self._runner.dice = dice

    async def stop(self, grace: float) -> None:
        """Fetch no more, let attempts finish for ``grace`` seconds, hand the others back.

        Attempts that are handed back have their patience to end. Once nothing runs any more, a
        broker that does not answer is waited for no longer than two seconds.
        """
        loop = asyncio.get_running_loop()
        self._halt.set()
        self.halting = True
        self._wake.set()
        self.hand_back()
        self._inflight.withdraw_all()
        self._syncer.insist_until(loop.time() + (grace if self._inflight else _LAST_WORDS))
        try:
            await self._left.wait()
            await self._settle_rest()
        finally:
            # Here too when this is cancelled, which is how a second request to stop comes.
            self._inflight.stop_all("release")
            if self._inflight:
                self._syncer.insist_until(loop.time() + self._patience + _LAST_WORDS)
            await self._settle_rest()
            self._runner.close()

    def restart(self) -> None:
        """Make ready for another run after a stop."""
        self._halt.clear()
        self.halting = False
        self.resting = frozenset()
        self._waiter.reset_backoff()
        self._syncer.insist_until(math.inf)

    # -- waiting -----------------------------------------------------------------------------

    async def _wait_for_work(self) -> None:
        """Until there is something to exchange, or perhaps to fetch."""
        while await self._wait_once():
            pass

    async def _coalesce(self) -> None:
        """Let a few outcomes come together while tasks come one by one."""
        while not self.halting:
            pause = self._coalescer.pause(self._syncer.pending)
            if pause <= 0.0:
                return
            self._fill()
            if self._inflight.held:
                return  # all slots are taken
            self._sleep()
            await within(pause, self._wake)

    async def _wait_once(self) -> bool:
        """The same, or until a task was handed over: True, if that is all."""
        if self._wake.is_set():
            return False
        if self._threads.stuck:
            await within(_STUCK_PAUSE, self._wake)
            return False
        if self._syncer.has_marks:
            await within(_TELL, self._wake)
            return False
        now = self._runner.now()  # one for both: a look that fell due in between would be missed
        ask, look_in = self._ask(now), self._capacity.look_in(now)
        if ask is not None and ask.cut:
            return False  # another look is due
        patience = _HOLD if self._inflight.held else min(_SAFETY, look_in)
        if ask is None:
            await within(patience, self._wake)
            return False
        if self._inflight and await self._waiter.yield_briefly():
            return False
        if self._waiter.is_open:  # of the last rest; an exchange has ended it
            await self._waiter.over()
            return True
        unread = self._subscriber.unread
        if self._waiter.woken_in_vain and unread and await self._subscriber.receive():
            return False  # a wake-up that brought nothing may have been one for mail
        self._forwarder.covered = True
        try:
            end = await self._waiter.wait(ask, patience, self.lease, unread)
        finally:
            self._forwarder.covered = False
        if end == "found":
            self._coalescer.hurry()
        if end != "handed" or self.halting or self._syncer.pending:
            return False
        self._sleep()
        return True

    def _begin_handed(self, leases: Sequence[Leased]) -> None:
        """Begin what was handed over while we waited."""
        self._take(leases)
        self._fill()

    def _handed_has_begun(
        self, ask: Ask, leases: Sequence[Leased], tell: Callable[[], None]
    ) -> None:
        self._learn(ask, ExchangeReply(now=0.0, leased=list(leases)))
        tell()

    def _learn(self, ask: Ask, reply: ExchangeReply) -> None:
        """Tell the order of queues what each of them gave, and the capacity what kind it was."""
        if reply.leased:
            self._waiter.reset_backoff()
        several = len(ask.queues) > 1  # otherwise it is known where they come from
        got = Counter(map(_QUEUE_OF, reply.leased) if several else ask.queues * len(reply.leased))
        if len(reply.leased) < ask.most and not reply.more:
            empty: Sequence[str] = ask.queues
        else:  # it went on to a queue only when those before it had nothing more
            last = max((i for i, queue in enumerate(ask.queues) if queue in got), default=0)
            empty = ask.queues[:last]
        if self._capacity.mixed or max(map(_CRASHES_OF, reply.leased), default=0) >= ALONE:
            self._fill()
            now = self._runner.now()
            lacking = self._capacity.lacking(now)
            got = self._capacity.learn(ask.queues, reply.leased, lacking, empty, now)
        self.order.record(got, empty)

    # -- stopping ----------------------------------------------------------------------------

    async def _settle_rest(self) -> None:
        """Exchange outcomes until nothing runs and nothing is unsent, or there is no more time."""
        loop = asyncio.get_running_loop()
        while self._inflight or self._syncer.unsettled:
            self._sleep()
            try:
                self._coalescer.sent(self._syncer.pending)
                await self._syncer.sync()
            except BrokerError as error:
                self._syncer.outage.failed(error)
                if loop.time() >= self._syncer.until:
                    return
                await asyncio.sleep(_PAUSE)
                continue
            if self._syncer.pending or self._syncer.is_behind:
                continue
            left = self._syncer.until - loop.time()
            waits = self._inflight or self._syncer.unsettled
            if waits and not await within(left, self._wake):
                return

    def _sleep(self) -> None:
        """Nothing is known to do from now on."""
        self._woken = False
        self._wake.clear()

    def attempts_over(self, kind: Kind, count: int) -> None:
        """Begin what is held, and exchange: attempts of a kind have freed their slots."""
        self._capacity.ended(kind, count)
        if self._inflight.held and not self.halting:
            self._fill()
        if not self._woken:
            self._woken = True
            self._wake.set()
        if self.halting and not self._inflight:
            self._syncer.insist_until(asyncio.get_running_loop().time() + _LAST_WORDS)
