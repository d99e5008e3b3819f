"""The only one who exchanges: outcomes wait in an outbox, and travel with the next fetch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from fairlead.broker import Broker, Caller
from fairlead.broker.repeats import Insistence, late
from fairlead.broker.requests import MAX_EXCHANGE, Call, ExchangeReply, Fetch, LeaseRef, Settled
from fairlead.fallback.outcomes import Outcomes
from fairlead.model.errors import Ambiguous, BrokerError, OutOfOrder
from fairlead.model.lifecycle import Settlement, State
from fairlead.runtime.component import Outage
from fairlead.worker.inflight import Inflight
from fairlead.worker.outcome_outbox import Batch, OutcomeOutbox
from fairlead.worker.run.attempt import Attempt
from fairlead.worker.run.error_text import describe

log = logging.getLogger("fairlead.worker")

_LAST_ANSWER = 2.0  # seconds that the broker has to answer a worker that stops
_SILENCE = 1.0  # seconds without an answer after which outcomes go to the disk, away or not


class Syncer:
    """Carries outcomes to the broker and leases back, in one numbered exchange at a time.

    An outcome leaves the outbox when the broker has answered for it, whatever the answer. Until
    then it is repeated, even beyond the lease by our own clock: in an outage nobody else could
    take the task either, and the broker refuses what comes too late. With a spool it is kept there
    as soon as an exchange has failed, and outlives this process.

    An exchange is repeated under its number until there is a reply, whatever is said in between,
    unless the worker stops: the next number after a lost reply would leave tasks on loan that
    nobody here knows of, while our heartbeats keep them.
    """

    name = "syncer"

    def __init__(
        self,
        broker: Broker,
        caller: Caller,
        inflight: Inflight,
        outcomes: Outcomes | None = None,
        *,
        woken: Callable[[], None],
    ) -> None:
        """``outcomes``: the spool that takes them in an outage.

        ``woken`` is called when there is something to send again.
        """
        self._broker = broker
        self._inflight = inflight
        self._caller = caller
        self._spooled = outcomes
        self.outage = Outage(self.name, repeats=True)
        self._outbox = OutcomeOutbox(
            caller,
            outcomes,
            is_away=lambda: self.outage.since is not None or self._is_silent,
            spooling=inflight.spool,
            refused=inflight.unspool,
            woken=woken,
        )
        self.add = self._outbox.add  # a decided outcome; the next exchange carries it
        self._begun: list[Attempt] = []  # held ones, since the last exchange
        self._older: list[Attempt] = []  # and before it
        self._line = asyncio.Lock()
        self._outcomes, self._fetches = (
            Insistence(),
            Insistence(),
        )  # exchanges with outcomes, without
        self._gives_up_at = math.inf  # when an exchange under way is left without its answer
        self._under_way: asyncio.Timeout | None = None
        self._is_silent = False  # an exchange under way should have been answered by now
        self.answered_at = -math.inf  # when the broker last answered, by the loop's clock
        self.lent_at = 0.0  # when the last fetch began that was answered: it keeps all leases
        self.settled = 0  # outcomes that were applied
        self.fenced = 0  # outcomes that do not count: another worker has the task, or had it

    @property
    def until(self) -> float:
        """How long outcomes are repeated, by the loop's clock."""
        return self._outcomes.until

    @property
    def pending(self) -> int:
        """Outcomes that the next exchanges will carry."""
        return self._outbox.pending

    @property
    def unsettled(self) -> int:
        """Outcomes that the broker has not answered for."""
        return self._outbox.unsettled

    @property
    def refused(self) -> int:
        """Outcomes that do not count: this worker's, and those that it sent for dead ones."""
        return self.fenced + (0 if self._spooled is None else self._spooled.fenced)

    @property
    def is_behind(self) -> bool:
        """Whether the next exchange has held tasks to mark as begun."""
        return bool(self._older)

    @property
    def has_marks(self) -> bool:
        """Whether one of the next exchanges has."""
        return bool(self._older or self._begun)

    def mark(self, attempt: Attempt) -> bool:
        """Note that a held task has begun, perhaps in a thread; return whether it is the first."""
        self._begun.append(attempt)
        return len(self._begun) == 1

    def forget_marks(self) -> None:
        """Tell of none that has begun: in a slot process, whose worker does."""
        self._begun.clear()

    def take(self) -> Settlement | None:
        """Take the oldest outcome out again: in a slot process somebody else carries it."""
        return self._outbox.take()

    def enter(self) -> None:
        """Begin, perhaps not for the first time."""
        self._outbox.enter()

    async def hand_over(self) -> int:
        """Leave what is unsettled to others, in the spool; return how much that is."""
        return await self._outbox.hand_over()

    def insist_until(self, moment: float) -> None:
        """Repeat an unanswered exchange no longer than this moment of the loop's clock.

        What is under way then has two seconds from now at least: a broker that is there answers.
        One without outcomes is not repeated at all: whoever stops wants no more leases.
        """
        self._outcomes.end(moment)
        self._fetches.end(math.inf if moment == math.inf else -math.inf)
        self._gives_up_at = max(moment, asyncio.get_running_loop().time() + _LAST_ANSWER)
        if self._under_way is not None and not self._under_way.expired():
            self._under_way.reschedule(_when(self._gives_up_at))

    async def sync(
        self, fetch: Fetch | None = None, meanwhile: Callable[[], None] | None = None
    ) -> ExchangeReply | None:
        """Exchange up to 128 outcomes for new leases; None if there was nothing to say or ask.

        Tell which held tasks have begun, too. ``meanwhile`` begins what is held: the broker works
        while we do.
        """
        begun = self._next_marks()
        sync = self._exchange(fetch, [self._inflight.ref(each.lease) for each in begun])
        exchange: asyncio.Future[ExchangeReply | None] | None = None
        try:
            if meanwhile is None or not self._inflight.held:
                return await sync
            exchange = asyncio.ensure_future(sync)
            await asyncio.sleep(0)  # it is on its way
            meanwhile()
            return await exchange
        except BrokerError:
            self._older = begun + self._older  # to be told again
            raise
        finally:
            if exchange is not None:
                exchange.cancel()  # unless it is done

    def _next_marks(self) -> list[Attempt]:
        """What was held, and has begun since the broker last heard of it."""
        # Before the last exchange: most others end within one, and their outcome says it all.
        older, self._older, self._begun = self._older, self._begun, []
        lasting = [attempt for attempt in older if not attempt.over]
        self._older += lasting[MAX_EXCHANGE:]
        return lasting[:MAX_EXCHANGE]

    async def _exchange(
        self, fetch: Fetch | None, started: Sequence[LeaseRef]
    ) -> ExchangeReply | None:
        async with self._line:  # from choosing the outcomes to crossing them off
            if not self._outbox.pending and fetch is None and not started:
                return None
            batch = self._outbox.next()
            try:
                return await self._send(batch, fetch, started)
            except BrokerError:
                raise
            except Exception:
                if not batch.settlements or batch.in_doubt:
                    raise
            # One of them cannot be digested, and would come back with each exchange to come.
            for single in self._outbox.split(batch):
                await self._send_alone(single)
            return await self._send(self._outbox.next(), fetch) if fetch is not None else None

    def wait_call(self) -> Call:
        """The next number of the line, for a wait; nothing may be unsettled."""
        return Call(self._caller.incarnation, self._outbox.number())

    async def say_nothing(self) -> None:
        """Exchange nothing: a wait of this worker is handed nothing any more."""
        async with self._line:
            await self._send(self._outbox.next(), None)

    async def _send(
        self, batch: Batch, fetch: Fetch | None, started: Sequence[LeaseRef] = ()
    ) -> ExchangeReply:
        exchange = partial(self._broker.exchange, started=started, fetch=fetch)

        def as_due(call: Call) -> Awaitable[ExchangeReply]:
            """Delays count from the outcome: what is left of them, in each round."""
            return exchange(call, self._outbox.due(batch))

        as_is = partial(exchange, settlements=batch.settlements)
        verb = as_due if self._outbox.moments else as_is
        began = asyncio.get_running_loop().time()
        try:
            reply = await self._call(verb, batch)
        except (Ambiguous, asyncio.CancelledError):
            batch.in_doubt = True
            raise
        except OutOfOrder:  # this number will never be answered
            self._outbox.renumber()
            raise
        self.outage.over()
        self.answered_at = asyncio.get_running_loop().time()
        if fetch is not None:
            self.lent_at = began
        self._inflight.lent(reply.leased, batch.number)
        self._inflight.answer(batch.settlements, reply.settled)
        applied = reply.settled.count("applied")
        self.settled += applied
        if applied < len(reply.settled):
            for settlement, answer in zip(batch.settlements, reply.settled, strict=True):
                if answer not in ("applied", "later"):
                    self._refused(settlement, answer)
        await self._outbox.answered(batch, reply.settled)
        return reply

    async def _call(
        self, verb: Callable[[Call], Awaitable[ExchangeReply]], batch: Batch
    ) -> ExchangeReply:
        """Exchange a batch; ``Ambiguous`` if whoever stops does not wait for the answer."""
        limit = self._outcomes if batch.settlements else self._fetches
        over = asyncio.timeout_at(_when(self._gives_up_at))
        silence = None
        if self._spooled is not None:
            silence = asyncio.get_running_loop().call_later(_SILENCE, self._not_answered)
        try:
            async with over:
                self._under_way = over
                return await self._caller.call(
                    verb, limit, number=batch.number, failed=self._failed
                )
        except TimeoutError:
            if not over.expired():
                raise
            raise late(in_flight=True) from None
        finally:
            self._under_way = None
            if silence is not None:
                silence.cancel()
                self._is_silent = False

    def _not_answered(self) -> None:
        self._is_silent = True
        self._outbox.keep_soon()

    def _failed(self, error: BrokerError) -> None:
        self.outage.failed(error)
        self._outbox.keep_soon()

    async def _send_alone(self, single: Batch) -> None:
        try:
            await self._send(single, None)
        except BrokerError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not come again for ever
            single.settlements[0] = self._rejected(single.settlements[0], error)
            await self._send(single, None)

    def _rejected(self, settlement: Settlement, error: Exception) -> Settlement:
        fields = {
            "component": self.name,
            "task_id": settlement.id,
            "error": type(error).__name__,
        }
        # Without the error itself, whose text may show what it could not store.
        log.error("outcome cannot be stored: task %s is dead", settlement.id, extra=fields)
        return Settlement(
            id=settlement.id,
            token=settlement.token,
            to=State.DEAD,
            reason="rejected",
            error=describe(error),
        )

    def _refused(self, settlement: Settlement, answer: Settled) -> None:
        self.fenced += 1
        log.warning(
            "outcome fenced",
            extra={
                "component": self.name,
                "task_id": settlement.id,
                "token": settlement.token,
                "answer": answer,
            },
        )


def _when(moment: float) -> float | None:
    """Return a moment as ``asyncio.timeout_at`` takes it."""
    return None if moment == math.inf else moment
