"""Fires the slots of schedules that are due. Any worker does it for all; there is no leader."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fairlead.broker import Broker, Caller
from fairlead.broker.firing import firing_of
from fairlead.broker.schedules import ScheduleOrder, ScheduleRecord, Ticked
from fairlead.broker.verbs import Firing
from fairlead.model.errors import InvalidInput
from fairlead.model.schedule import decode, due, stamp

__all__ = ("Scheduler",)

log = logging.getLogger("fairlead.worker")

_AT_ONCE = 100  # slots that one call fires, so that none takes long
_REMEMBERED = 1_000  # schedules that were complained of
_FIRED = ("accepted", "duplicate", "conflict")


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
        self._told: dict[tuple[str, int], None] = {}

    async def tick(self, expect: Callable[[float], None]) -> int:
        """Fire all that is due; how many slots. ``expect`` learns when to come again."""
        count, more = 0, True
        while more:
            ticked = await self._broker.tick()
            count += await self._fire(ticked, expect)
            more = ticked.more
        return count

    async def _fire(self, ticked: Ticked, expect: Callable[[float], None]) -> int:
        firings: list[Firing] = []
        skips: list[ScheduleOrder] = []
        for record in ticked.due:
            found = self._slots(record, ticked.now)
            if found is None:
                continue
            slots, next_at = found
            firings += slots
            if not slots:
                skips.append(
                    ScheduleOrder(
                        name=record.name, action="skip", next_at=next_at, revision=record.revision
                    )
                )
            if next_at is not None:
                expect(next_at - ticked.now)
        if skips:
            await self._caller.call(lambda call: self._broker.plan(call, skips))
        return await self._send_all(firings)

    async def _send_all(self, firings: list[Firing]) -> int:
        count = 0
        while firings:
            fired, refused = await self._send(firings[:_AT_ONCE])
            count += fired
            # Later slots must not go before one that was refused: it would be passed over.
            firings = [each for each in firings[_AT_ONCE:] if each.schedule not in refused]
        return count

    def _slots(
        self, record: ScheduleRecord, now: float
    ) -> tuple[list[Firing], float | None] | None:
        """What to fire for one schedule, and its next slot; None if it cannot be read here."""
        if record.next_at is None:
            return None
        try:
            spec = decode(record.spec)
        except InvalidInput as error:
            self._complain(record, "schedule left to other workers", str(error))
            return None
        found = due(spec.timing, record.next_at, record.last_slot, now)
        if found.dropped:
            fields = {"schedule": record.name, "since": stamp(record.next_at)}
            log.warning("missed slots are not made up for", extra=fields)
        behind = [*found.slots[1:], found.next_at]
        firings = [
            firing_of(record, spec, slot, following)
            for slot, following in zip(found.slots, behind, strict=False)
        ]
        return firings, found.next_at

    async def _send(self, firings: list[Firing]) -> tuple[int, set[str]]:
        """How many were fired, and the schedules of which one was refused."""
        receipts = await self._caller.call(lambda call: self._broker.fire(call, firings))
        refused: set[str] = set()
        for firing, receipt in zip(firings, receipts, strict=True):
            if receipt.code not in (*_FIRED, "stale", "closed") and firing.schedule not in refused:
                refused.add(firing.schedule)
                fields = {
                    "schedule": firing.schedule,
                    "slot": stamp(firing.slot),
                    "reason": receipt.code,
                }
                log.warning("slot refused; it is tried again", extra=fields)
        return sum(receipt.code in _FIRED for receipt in receipts), refused

    def _complain(self, record: ScheduleRecord, what: str, why: str) -> None:
        """Once for each revision: it comes again every few seconds."""
        key = record.name, record.revision
        if key not in self._told:
            self._told[key] = None
            while len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
            log.warning(what, extra={"schedule": record.name, "reason": why})
