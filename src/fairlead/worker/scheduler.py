"""Fires the slots of schedules that are due. Any worker does it for all; there is no leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.broker import Broker, Caller
from fairlead.broker.requests import Firing
from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord, Ticked, firing_of
from fairlead.broker.submission_checks import check_submissions
from fairlead.model.errors import InvalidInput
from fairlead.model.schedule import decode, due, stamp

log = logging.getLogger("fairlead.worker")

_AT_ONCE = 100  # slots that one call fires, so that none takes long
_REMEMBERED = 1_000  # complaints
_REFUSED = "slot refused; it is tried again"
_FIRED = ("accepted", "duplicate")


class Scheduler:
    """One step at a time, whenever the broker says that schedules are due.

    Whoever asks first is handed them. It works out which slots are due, by the broker's clock, and
    fires these. The broker takes each slot once, and only from who knows the present revision, so
    nobody has to be the only one who does this, and one that comes late does no harm.
    """

    def __init__(self, broker: Broker, caller: Caller) -> None:
        """``caller`` is nobody else's: its calls come when others are under way."""
        self._broker = broker
        self._caller = caller
        self._told: dict[tuple[str, int, str], str] = {}  # what was complained of, and why

    async def tick(self, expect: Callable[[float], None]) -> int:
        """Fire all that is due; how many slots. ``expect`` learns when to come again."""
        count, more = 0, True
        while more:
            ticked = await self._broker.tick()
            count += await self._fire(ticked, expect)
            more = ticked.more
        return count

    async def _fire(self, ticked: Ticked, expect: Callable[[float], None]) -> int:
        """Send what is due as it is worked out: catching up may be thousands of slots."""
        count = 0
        ready: list[Firing] = []
        skips: list[ScheduleOrder] = []
        refused: set[str] = set()
        for record in ticked.due:
            now = ticked.now_of(record.name)
            found = self._slots(record, now)
            if found is None:
                continue
            slots, next_at = found
            ready += slots
            if not slots:
                skips.append(
                    ScheduleOrder(
                        name=record.name,
                        action="skip",
                        queue=record.queue,
                        next_at=next_at,
                        revision=record.revision,
                    )
                )
            if next_at is not None:
                expect(next_at - now)
            while len(ready) >= _AT_ONCE:
                count += await self._send(ready[:_AT_ONCE], refused)
                ready = ready[_AT_ONCE:]
            await asyncio.sleep(0)  # others have something to do as well
        count += await self._send(ready, refused)
        if skips:  # last: it is upkeep, and may have to wait for more of the broker than a firing
            await self._caller.call(lambda call: self._broker.plan(call, skips))
        return count

    def _slots(
        self, record: ScheduleRecord, now: float
    ) -> tuple[list[Firing], float | None] | None:
        """What to fire for one schedule, and its next slot; None if it cannot be read here."""
        if record.next_at is None:
            return None
        try:
            spec = decode(record.spec)
            found = due(spec.timing, record.next_at, record.last_slot, now)
            behind = [*found.slots[1:], found.next_at]
            firings = [
                firing_of(record, spec, slot, following)
                for slot, following in zip(found.slots, behind, strict=False)
            ]
            check_submissions([firing.submission for firing in firings[:1]])
        except Exception as error:  # noqa: BLE001 - one that is odd must not stop the others
            why = str(error) if isinstance(error, InvalidInput) else type(error).__name__
            key = record.name, record.revision
            self._complain(key, "schedule left to other workers", why)
            return None
        if found.dropped:
            since = stamp(record.next_at)
            self._complain(
                (record.name, record.revision), "missed slots are not made up for", f"since {since}"
            )
        return firings, found.next_at

    async def _send(self, firings: list[Firing], refused: set[str]) -> int:
        """How many were fired; the schedules of which one was refused are added to ``refused``."""
        # Later slots must not go before one that was refused: it would be passed over.
        batch = [firing for firing in firings if firing.schedule not in refused]
        if not batch:
            return 0
        receipts = await self._caller.call(lambda call: self._broker.fire(call, batch))
        for firing, receipt in zip(batch, receipts, strict=True):
            key = firing.schedule, firing.revision
            if receipt.code == "conflict":  # trying again would not help: the slot is passed
                fields = {"schedule": firing.schedule, "task": firing.submission.message.id}
                log.warning("slot without a task: another task has its id", extra=fields)
            elif receipt.code in _FIRED:
                self._told.pop((*key, _REFUSED), None)
            elif receipt.code not in ("stale", "closed") and firing.schedule not in refused:
                refused.add(firing.schedule)
                self._complain(key, _REFUSED, receipt.code)
        return sum(receipt.code in _FIRED for receipt in receipts)

    def _complain(self, key: tuple[str, int], what: str, why: str) -> None:
        """Once for each revision and reason, until a slot is fired: it comes every few seconds."""
        if self._told.get((*key, what)) != why:
            self._told[*key, what] = why
            while len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
            log.warning(what, extra={"schedule": key[0], "reason": why})
