"""A queue manager: stands by until it leads, then runs the roles of a leader until it does not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

from fairlead.broker import LIMIT, Store
from fairlead.ledger.ledger import Ledger
from fairlead.manager.auditor import Auditor
from fairlead.manager.comparison import Comparison
from fairlead.manager.counts import Counts
from fairlead.manager.dispatcher import Dispatcher
from fairlead.manager.janitor import KEEP, STUCK, Janitor
from fairlead.manager.leader import TTL, Leader
from fairlead.manager.leader_term import Term
from fairlead.manager.recorder import Recorder
from fairlead.manager.status import GENERATION, StatusWriter
from fairlead.model.backoff import Backoff
from fairlead.model.errors import BrokerError
from fairlead.model.ledger_errors import LedgerError, LostLeadership
from fairlead.runtime.component import within
from fairlead.runtime.randomness import generator

_PAUSES = Backoff(initial=0.2, factor=2.0, max=5.0, jitter="plus_minus", spread=0.2)
_STEADY = 10.0  # seconds without trouble after which it begins anew
_FINISHING = 3.0  # seconds that a batch in hand has when the manager stops
_LISTEN = 5.0  # seconds that one wait for a notification takes

log = logging.getLogger("fairlead.manager")


class Manager:
    """One of any number of managers. ``run`` lasts until ``stop``, or until it is cancelled.

    ``keep`` is for how many seconds rows are kept whose task has ended, ``stuck`` after how many a
    running row is compared with the broker.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        *,
        holder: str = "",
        ttl: float = TTL,
        keep: float = KEEP,
        stuck: float = STUCK,
        limit: float = LIMIT,
        dice: Callable[[], float] = generator.random,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._leader = Leader(store, ledger, holder, ttl=ttl, limit=limit)
        self._keep = keep
        self._stuck = stuck
        self._dice = dice
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None  # in a block
        self._dispatcher: Dispatcher | None = None  # of the term
        self.term: int | None = None  # while it leads

    @property
    def holder(self) -> str:
        """The name under which it leads."""
        return self._leader.holder

    async def __aenter__(self) -> Self:
        """Run beside the block, and stop behind it."""
        self._running = asyncio.create_task(self.run(), name="manager")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()
        if self._running is not None:
            await self._running

    def stop(self) -> None:
        """End ``run`` in good time: what is in hand is finished, the leadership given back."""
        self._stop.set()

    async def run(self) -> None:
        """Stand by and lead, in turn."""
        trouble = _Trouble("leader", self._dice)
        log.info("manager started", extra={"holder": self.holder})
        while not self._stop.is_set():
            try:
                term = await self._leader.take()
            except (BrokerError, LedgerError) as error:
                await within(trouble.pause(error), self._stop)
                continue
            trouble.over()
            if term is None:
                await within(self._leader.pause(), self._stop)
                continue
            try:
                await self._lead(term)
            finally:
                self.term = None
                await asyncio.shield(self._leader.release())
        log.info("manager stopped", extra={"holder": self.holder})

    async def _lead(self, term: Term) -> None:
        log.info("leads", extra={"holder": term.holder, "term": term.number})
        self.term = term.number
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._roles(term), name="roles")
                group.create_task(self._leader.hold(term), name="leader")
                group.create_task(self._until_stopped(), name="stop")
        except* _Stopped:
            log.info("leads no more, as it stops", extra={"term": term.number})
        except* LostLeadership as errors:
            why = _notes(errors)
            log.warning("lost the leadership", extra={"term": term.number, "reason": why})

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        if self._dispatcher is not None:
            await self._dispatcher.finish(_FINISHING)
        raise _Stopped

    async def _roles(self, term: Term) -> None:
        """Run all roles; one that fails begins anew, and the others go on."""
        dispatched = Counts("dispatcher", "scanned", "pushed", "failed", "refused", "put_back")
        tended = Counts("janitor", "recovered", "lost", "removed")
        audited = Counts("auditor", "compared", "sent_again", "lost")
        recorded = Counts("recorder", "events", "tasks", "gaps")
        led = Counts("leader")
        led.put("holder", term.holder)
        led.put("since", round(time.time(), 3))
        store, ledger, wake = self._store, self._ledger, asyncio.Event()
        recorder = Recorder(store, ledger, term, recorded)
        comparison = Comparison(store, ledger, term, recorder.catch_up)
        dispatcher = self._dispatcher = Dispatcher(
            store, ledger, term, recorder.catch_up, dispatched, wake=wake, dice=self._dice
        )
        janitor = Janitor(
            ledger, term, comparison, tended, stuck=self._stuck, keep=self._keep, dice=self._dice
        )
        status = StatusWriter(ledger, term, [led, dispatched, recorded, tended, audited])
        async with asyncio.TaskGroup() as group:

            def keep(name: str, run: Callable[[], Awaitable[Any]]) -> None:
                group.create_task(self._persist(name, run), name=name)

            async def audit() -> None:
                await Auditor(
                    store, ledger, term, comparison, audited,
                    generation=await self._last_generation(), wake=wake.set,
                ).run()  # fmt: skip

            keep("recorder", recorder.run)
            keep("dispatcher", dispatcher.run)
            keep("janitor", janitor.run)
            keep("auditor", audit)
            keep("status", status.run)
            keep("listener", lambda: self._listen(wake))

    async def _persist(self, name: str, run: Callable[[], Awaitable[Any]]) -> None:
        trouble = _Trouble(name, self._dice)
        while True:
            try:
                await run()
                return
            except LostLeadership:
                raise
            except (BrokerError, LedgerError) as error:
                await asyncio.sleep(trouble.pause(error))
            except Exception as error:  # noqa: BLE001 - a mistake in one role must not stop the others
                await asyncio.sleep(trouble.pause(error, is_ours=True))

    async def _listen(self, wake: asyncio.Event) -> None:
        listener = await self._ledger.listen("fairlead_due")
        try:
            while True:
                if await listener.wait_notified(_LISTEN):
                    wake.set()
        finally:
            await listener.close()

    async def _last_generation(self) -> str:
        """The broker that was last compared in full, by whichever leader."""
        row = (await self._ledger.status()).get("auditor")
        return "" if row is None else str(row.counts.get(GENERATION, ""))


class _Stopped(Exception):
    """Somebody said to stop."""


class _Trouble:
    """What keeps a role from its work: one line for each kind, and growing pauses."""

    def __init__(self, role: str, dice: Callable[[], float]) -> None:
        self._role = role
        self._dice = dice
        self._failures = 0
        self._last = 0.0
        self._told: set[str] = set()

    def pause(self, error: Exception, *, is_ours: bool = False) -> float:
        """Take in how it failed; the seconds to wait. A mistake of ours is told with its trace."""
        now = time.monotonic()
        if now - self._last > _STEADY + _PAUSES.max:
            self.over()
        self._last = now
        kind = f"{type(error).__name__}:{getattr(error, 'cause', '')}"
        if kind not in self._told:
            self._told.add(kind)
            fields = {"role": self._role, "error": type(error).__name__, "reason": str(error)}
            level = logging.ERROR if is_ours else logging.WARNING
            trace = error if is_ours else None
            log.log(level, "manager cannot go on; it is tried again", extra=fields, exc_info=trace)
        seconds = _PAUSES.delay(self._failures, self._dice())
        self._failures = min(self._failures + 1, 16)
        return seconds

    def over(self) -> None:
        """It went well."""
        if self._failures:
            log.info("manager goes on", extra={"role": self._role})
        self._failures = 0
        self._told.clear()


def _notes(errors: BaseExceptionGroup[BaseException]) -> str:
    """Why the term is over, as its error says."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _notes(error)
        return "; ".join(getattr(error, "__notes__", ())) or str(error)
    return ""
