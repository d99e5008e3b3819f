"""Sends tasks and flows that are due from the ledger to the broker.

Claim, push, confirm: three steps, each whole by itself, and no transaction is open while the broker
is spoken to. Whatever is interrupted between two of them is found again as a claim. Such claims are
released only when the recorder has read all that the broker has to tell: a task that came in, ran
and was forgotten meanwhile is over by then, and is not sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fairlead.broker import Store
from fairlead.broker.repeats import Limit
from fairlead.broker.requests import Receipt
from fairlead.client.stored_submissions import decode_submission
from fairlead.ledger.ledger import Ledger
from fairlead.ledger.rows import ClaimedTask
from fairlead.manager.counts import Counts
from fairlead.manager.dependencies import parents_in
from fairlead.manager.flow_dispatcher import FlowDispatcher
from fairlead.manager.leader_term import Term
from fairlead.manager.push import Failures, Sent, Settlement, batches, fate, resolved
from fairlead.model.errors import (
    Ambiguous,
    BrokerError,
    InvalidInput,
)
from fairlead.model.ledger_errors import LedgerError, LostLeadership
from fairlead.runtime import fault_injection
from fairlead.runtime.component import within
from fairlead.runtime.randomness import generator

BATCH = 500  # rows that are claimed at a time
_POLL = 5.0  # seconds after which it looks, though nothing woke it
_LEAST = 0.01  # seconds
_AWAY = 2.0  # seconds, about, after which tasks are sent again to a server that is away
_FRESH = 1.0  # seconds since when a broker counts as there
_TRYING = 2.0  # seconds after which a batch that failed in part is given up
_PROBE = 0.5  # seconds that a server has that failed lately

log = logging.getLogger("fairlead.manager")


class Dispatcher:
    """Sends what is due, for one term.

    ``catch_up`` records all that the broker has to tell by now. ``wake`` is set when somebody has
    committed something that is due.
    """

    name = "dispatcher"

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        term: Term,
        catch_up: Callable[[], Awaitable[object]],
        counts: Counts,
        *,
        wake: asyncio.Event | None = None,
        batch: int = BATCH,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._term = term
        self._catch_up = catch_up
        self._counts = counts
        self._flows = FlowDispatcher(store, ledger, term, counts, dice=dice)
        self._wake = asyncio.Event() if wake is None else wake
        self._batch = batch
        self._dice = dice
        self._failures = Failures()
        self._is_sure = False  # that no claim stands but those in hand
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Send whatever is due, until somebody says to finish."""
        while not self._stopping:
            self._wake.clear()
            sent = await self.dispatch_all()
            if sent or self._stopping:
                continue
            self._counts.put("lag", 0)
            seconds = await self._ledger.next_due()
            pause = _POLL if seconds is None else min(max(seconds, _LEAST), _POLL)
            if not await within(pause, self._wake) and pause == _POLL:
                await self._look_for_claims()

    async def _look_for_claims(self) -> None:
        """While nothing is in hand no claim should stand: somebody may have had the row locked."""
        if (await self._ledger.lag()).claimed:
            self._is_sure = False

    async def finish(self, seconds: float) -> None:
        """Begin nothing more, and wait so long at most for what is in hand."""
        self._stopping = True
        self._wake.set()
        await within(seconds, self._idle)

    # -- steps ----------------------------------------------------------------------------------

    async def dispatch_once(self) -> int:
        """Send one batch of tasks; how many rows were settled."""
        async with self._step():
            claimed = await self._claim()
            return await self._settle(await self._push(claimed)) if claimed else 0

    async def dispatch_all(self) -> int:
        """Send all that is due; how many rows were settled.

        While one batch is pushed the next is claimed, and the one before it confirmed.
        """
        count = 0
        async with self._step():
            claimed = await self._claim()
            pushed: Settlement | None = None
            while claimed or pushed is not None:
                claiming = _nothing() if self._ends(claimed) else self._claim()
                pushing = self._push(claimed) if claimed else _none()
                settling = self._settle(pushed) if pushed is not None else _zero()
                round = await asyncio.gather(claiming, pushing, settling, return_exceptions=True)
                claimed, pushed, settled = await self._sound(*round)
                count += settled
            if not self._stopping:
                count += await self._flows.dispatch_all(lambda: self._stopping)
        return count

    async def _sound(
        self,
        claimed: list[ClaimedTask] | BaseException,
        pushed: Settlement | BaseException | None,
        settled: int | BaseException,
    ) -> tuple[list[ClaimedTask], Settlement | None, int]:
        """Return what a round came to, or raise its error.

        What was claimed in a round that failed was not sent, so it does not stay claimed.
        """
        if not (
            isinstance(claimed, BaseException)
            or isinstance(pushed, BaseException)
            or isinstance(settled, BaseException)
        ):
            return claimed, pushed, settled
        if not isinstance(claimed, BaseException) and claimed:
            back = Settlement(put_back=[(row.id, 0.0, "unsent") for row in claimed])
            with contextlib.suppress(LedgerError):  # then they are found as claims
                await self._settle(back)
        errors = [e for e in (claimed, pushed, settled) if isinstance(e, BaseException)]
        raise next((e for e in errors if isinstance(e, LostLeadership)), errors[0])

    async def release(self) -> int:
        """Make claims pending again that nobody is pushing any more; how many.

        First a call to the broker, so that nothing arrives later that was sent under them; then
        the recorder reads what came of them.
        """
        await self._term.touch()
        await self._catch_up()
        fault_injection.reached("caught_up")
        count, more = 0, True
        while more:
            released = await self._ledger.release_claims(term=self._term.number, limit=self._batch)
            count += len(released)
            more = len(released) == self._batch
        count += len(await self._ledger.release_flow_claims(term=self._term.number))
        fault_injection.reached("released")
        self._counts.add("released", count)
        return count

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[None]:
        """Around a step: what is in doubt is released before it, and is in doubt if it fails."""
        self._idle.clear()
        try:
            if not self._is_sure:
                await self.release()
            elif self._term.idle() > _FRESH:
                await self._term.touch()  # nothing is claimed while the broker is away
            self._is_sure = False
            yield
            self._is_sure = True
        finally:
            self._idle.set()

    def _ends(self, claimed: Sequence[ClaimedTask]) -> bool:
        return self._stopping or len(claimed) < self._batch

    # -- claim, push, confirm --------------------------------------------------------------------

    async def _claim(self) -> list[ClaimedTask]:
        claimed = await self._ledger.claim_tasks(term=self._term.number, limit=self._batch)
        if claimed:
            self._counts.add("scanned", len(claimed))
            self._counts.put("lag", round(max(row.late for row in claimed), 3))
            fault_injection.reached("claimed")
        return claimed

    async def _push(self, claimed: Sequence[ClaimedTask]) -> Settlement:
        """Send rows; what they become. If the broker fails, none of them is left claimed.

        Unless nobody can say whether it took them: those are released like claims of others.
        """
        into = Settlement()
        items = await self._readable(claimed, into)
        error = await self._push_parts(items, into)
        if isinstance(error, Ambiguous):
            await self._settle(into)
            raise error
        if error is not None:
            # If the broker is away as a whole the pause is for everybody, and made by the caller.
            seconds = _AWAY * (0.5 + self._dice()) if into.confirmed else 0.0
            reason, known = type(error).__name__.lower(), into.ids()
            back = [(row.id, seconds, reason) for row in claimed if row.id not in known]
            into.put_back.extend(back)
            self._counts.add("failed", len(back))
            if not into.confirmed:
                await self._settle(into)
                raise error
        fault_injection.reached("pushed")
        return into

    async def _push_parts(self, items: Sequence[Sent], into: Settlement) -> BrokerError | None:
        """Send what can be sent; the error of what was not, Ambiguous if some is in doubt."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _TRYING
        failure: BrokerError | None = None
        for part, is_suspect in self._failures.parts(items):
            for batch in batches(part):
                if failure is not None and loop.time() > until:
                    return failure
                limit = Limit(loop.time() + _PROBE) if is_suspect else None
                try:
                    await self._push_batch(batch, into, limit)
                except BrokerError as error:
                    self._failures.add(batch)
                    failure = failure if isinstance(failure, Ambiguous) else error
                else:
                    self._failures.forget(batch)
        return failure

    async def _readable(self, claimed: Sequence[ClaimedTask], into: Settlement) -> list[Sent]:
        """The rows as they are to be sent; what cannot be read is refused."""
        parents = await parents_in(self._ledger, {id for row in claimed for id in row.depends_on})
        items = []
        for row in claimed:
            try:
                submission = decode_submission(row.submission)
                items.append(Sent(resolved(submission, parents, row.deadline), row.pushes))
            except InvalidInput:
                into.refused.append((row.id, "unreadable", ""))
        return items

    async def _push_batch(
        self, batch: Sequence[Sent], into: Settlement, limit: Limit | None = None
    ) -> None:
        """One call; if the broker finds fault with one item, the others go without it."""
        submissions = [each.submission for each in batch]
        try:
            receipts: list[Receipt] = await self._term.call(
                partial(self._store.enqueue, submissions=submissions), limit
            )
        except InvalidInput as error:
            if len(batch) == 1:
                log.warning("task refused", extra={"task": batch[0].id, "reason": str(error)})
                into.refused.append((batch[0].id, f"invalid: {type(error).__name__}", ""))
                return
            middle = len(batch) // 2
            await self._push_batch(batch[:middle], into, limit)
            await self._push_batch(batch[middle:], into, limit)
            return
        missing = {each.detail for each in receipts if each.code == "unknown_dependency"}
        parents = await parents_in(self._ledger, missing, unsent=True)
        for item, receipt in zip(batch, receipts, strict=True):
            fate(item, receipt, parents, self._dice(), into)

    async def _settle(self, settlement: Settlement) -> int:
        term, ledger = self._term.number, self._ledger
        for state, sent in settlement.confirmed.items():
            await ledger.confirm_tasks(term=term, ids=sent, state=state)
            self._counts.add("pushed", len(sent))
        if settlement.put_back:
            ids, delays, reasons = zip(*settlement.put_back, strict=True)
            await ledger.put_back_tasks(
                term=term, ids=list(ids), delays=list(delays), reasons=list(reasons)
            )
            self._counts.add("put_back", len(ids))
        if settlement.refused:
            ids, reasons, others = zip(*settlement.refused, strict=True)
            await ledger.refuse_tasks(
                term=term, ids=list(ids), reasons=list(reasons), stands_for=list(others)
            )
            self._counts.add("refused", len(ids))
        if settlement.ended:
            ids, states, reasons = zip(*settlement.ended, strict=True)
            await ledger.end_tasks(
                term=term, ids=list(ids), states=list(states), reasons=list(reasons)
            )
            self._counts.add("refused", len(ids))
        fault_injection.reached("settled")
        return settlement.total


async def _nothing() -> list[ClaimedTask]:
    return []


async def _none() -> None:
    return None


async def _zero() -> int:
    return 0
