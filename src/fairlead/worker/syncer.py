"""The only writer of outcomes: they wait in an outbox and travel with the next fetch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from fairlead.broker import Broker, Caller
from fairlead.broker.repeats import Insistence
from fairlead.broker.verbs import (
    MAX_BYTES,
    MAX_EXCHANGE,
    Call,
    ExchangeReply,
    Fetch,
    LeaseRef,
    Settled,
)
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import Settlement, State
from fairlead.runtime.component import Outage
from fairlead.worker.failure import describe
from fairlead.worker.inflight import Inflight

__all__ = ("Syncer",)

log = logging.getLogger("fairlead.worker")

_LATER = 1.0  # seconds before an outcome is sent again whose shard is away


class Syncer:
    """Carries outcomes to the broker and leases back, in one numbered exchange at a time.

    An outcome leaves the outbox when the broker has answered for it, whatever the answer. Until
    then it is repeated, even beyond the lease by our own clock: in an outage nobody else could
    take the task either, and the broker refuses what comes too late.

    An exchange is repeated under its number until there is a reply, whatever is said in between,
    unless the worker stops: the next number after a lost reply would leave tasks on loan that
    nobody here knows of, while our heartbeats keep them.
    """

    name = "syncer"

    def __init__(self, broker: Broker, caller: Caller, inflight: Inflight) -> None:
        self._broker = broker
        self._inflight = inflight
        self._caller = caller
        self._outbox: deque[Settlement] = deque()
        self._off: list[Settlement] = []  # to be sent again when the timer goes off
        self._timer: asyncio.TimerHandle | None = None
        self.woken: Callable[[], None] = _nothing  # called when there is something to send again
        self._line = asyncio.Lock()
        self._outcomes, self._fetches = (
            Insistence(),
            Insistence(),
        )  # exchanges with outcomes, without
        self.outage = Outage(self.name)
        self.answered_at = -math.inf  # when the broker last answered, by the loop's clock
        self.settled = 0  # outcomes that were applied
        self.fenced = 0  # outcomes that do not count: another worker has the task, or had it

    @property
    def until(self) -> float:
        """How long outcomes are repeated, by the loop's clock."""
        return self._outcomes.until

    @property
    def pending(self) -> int:
        """Outcomes that the next exchanges will carry."""
        return len(self._outbox)

    @property
    def unsettled(self) -> int:
        """Outcomes that the broker has not answered for."""
        return len(self._outbox) + len(self._off)

    def add(self, settlement: Settlement) -> None:
        """Take a decided outcome; the next exchange carries it."""
        self._outbox.append(settlement)

    def take(self) -> Settlement | None:
        """Take the oldest outcome out again: in a slot process somebody else carries it."""
        return self._outbox.popleft() if self._outbox else None

    def insist_until(self, moment: float) -> None:
        """Repeat an unanswered exchange no longer than this moment of the loop's clock.

        One without outcomes is not repeated at all then: whoever stops wants no more leases.
        """
        self._outcomes.end(moment)
        self._fetches.end(math.inf if moment == math.inf else -math.inf)

    async def sync(
        self, fetch: Fetch | None = None, started: Sequence[LeaseRef] = ()
    ) -> ExchangeReply | None:
        """Exchange up to 128 outcomes for new leases; None if there was nothing to say or ask.

        ``started`` are tasks that were held and have begun since: the broker should know.
        """
        async with self._line:  # from choosing the outcomes to crossing them off
            batch = self._batch()
            if not batch and fetch is None and not started:
                return None
            try:
                return await self._send(batch, fetch, started)
            except BrokerError:
                raise
            except Exception:
                if not batch:
                    raise
            # One of them cannot be digested, and would come back with each exchange to come.
            for settlement in batch:
                await self._send_alone(settlement)
            return await self._send([], fetch) if fetch is not None else None

    def _batch(self) -> list[Settlement]:
        """The oldest outcomes, as many as one exchange carries: 128 of them, or 4 MiB."""
        batch: list[Settlement] = []
        size = 0
        for settlement in islice(self._outbox, MAX_EXCHANGE):
            batch.append(settlement)
            size += len(settlement.result or b"")
            if size >= MAX_BYTES:
                break
        return batch

    async def _send(
        self,
        batch: Sequence[Settlement],
        fetch: Fetch | None,
        started: Sequence[LeaseRef] = (),
    ) -> ExchangeReply:
        number = 0

        async def verb(call: Call) -> ExchangeReply:
            nonlocal number
            number = call.number
            return await self._broker.exchange(call, batch, started=started, fetch=fetch)

        limit = self._outcomes if batch else self._fetches
        reply = await self._caller.call(verb, limit, failed=self.outage.failed)
        self.outage.over()
        self.answered_at = asyncio.get_running_loop().time()
        self._inflight.lent(reply.leased, number)
        for settlement, answer in zip(batch, reply.settled, strict=True):
            self._outbox.popleft()
            if answer == "later":
                self._put_off(settlement)
                continue
            self._inflight.over(settlement.id, settlement.token)
            if answer == "applied":
                self.settled += 1
            else:
                self._refused(settlement, answer)
        return reply

    def _put_off(self, settlement: Settlement) -> None:
        """Send it again in a while: its shard is away, and others have something to do."""
        self._off.append(settlement)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATER, self._again)

    def _again(self) -> None:
        self._timer = None
        self._outbox.extend(self._off)
        self._off.clear()
        self.woken()

    async def _send_alone(self, settlement: Settlement) -> None:
        try:
            await self._send([settlement], None)
        except BrokerError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not come again for ever
            self._outbox[0] = self._rejected(settlement, error)
            await self._send([self._outbox[0]], None)

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


def _nothing() -> None:
    pass
