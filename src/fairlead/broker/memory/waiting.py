"""Waiting for work, on whatever event loop. The twin of ``fairlead.broker.redis.waiting``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fairlead.broker.memory import release, upkeep
from fairlead.broker.memory.bell import Sleeper
from fairlead.broker.memory.flowing import see_to
from fairlead.broker.memory.frame import Frame
from fairlead.broker.memory.schedules import ticks_due
from fairlead.broker.verbs import LEASE, Call, Taken
from fairlead.broker.waits import Woken

__all__ = ("Waiting",)


class Waiting(Frame):
    """The verbs that sleep until there is work."""

    async def take(
        self,
        call: Call,
        queues: Sequence[str],
        timeout: float,
        _: Woken,
        *,
        lease: float = LEASE,
        mail_for: str = "",
    ) -> Taken:
        """Wait, and hand nothing over; see ``fairlead.broker.protocol``."""
        return await self._takes.take(call, lease, self.wait(queues, timeout, mail_for=mail_for))

    async def wait(self, queues: Sequence[str], timeout: float, *, mail_for: str = "") -> bool:
        """Return when there may be something to fetch; see ``fairlead.broker.protocol``."""
        ends = time.monotonic() + timeout
        with self._lock:
            self._promote()
            if self._runnable(queues) or ticks_due(self._shard) or self._has_mail(mail_for):
                return True
            sleeper = Sleeper()
            self._bell.add(sleeper, queues)
            if mail_for:
                self._shard.mailbox(mail_for).sleepers.append(sleeper)
        found = False
        try:
            while not self._shard.closed and (left := ends - time.monotonic()) > 0.0:
                with self._lock:
                    due = self._shard.next_due() if self._bell.holds_alarm(sleeper) else None
                await sleeper.sleep(left if due is None else min(left, due))
                with self._lock:
                    if self._has_mail(mail_for):
                        return True
                    if self._bell.holds_alarm(sleeper):
                        self._promote()  # and ring: perhaps for this one
                        if ticks_due(self._shard):
                            return True
                    if sleeper.rung and self._runnable(queues):
                        found = True
                        return True
                    sleeper.rung = False  # somebody else was faster
            return False
        except GeneratorExit:
            # Thrown away with its loop, by the garbage collector, perhaps in the middle of a verb
            # of this very thread: the lock must not be touched.
            sleeper.gone = True
            raise
        finally:
            if not sleeper.gone:
                with self._lock:
                    self._bell.remove(sleeper)
                    if mail_for and (box := self._shard.mailboxes.get(mail_for)) is not None:
                        box.sleepers[:] = [each for each in box.sleepers if each is not sleeper]
                    if sleeper.rung and not found:  # in vain: somebody else must hear of the work
                        self._shard.rung.update(set(queues).intersection(self._shard.queues))
                        self._conclude(self._shard.next_due())

    def _promote(self) -> None:
        self._set_clock(None)
        before = self._shard.next_due()
        upkeep.promote(self._shard)
        if self._shard.layouts:
            see_to(self._shard)
            release.follow_up(self._shard)
        self._conclude(before)

    def _runnable(self, queues: Sequence[str]) -> bool:
        known = self._shard.queues
        return any(name in known and self._shard.runnable(known[name]) for name in queues)

    def _has_mail(self, incarnation: str) -> bool:
        box = self._shard.mailboxes.get(incarnation) if incarnation else None
        return box is not None and bool(box.letters)
