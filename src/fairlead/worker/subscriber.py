"""Hears at once when somebody cancels a task that runs here, or lends this worker another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.broker import Store
from fairlead.broker.records import TaskRecord
from fairlead.broker.requests import Mail
from fairlead.model.lifecycle import State
from fairlead.model.message import Leased
from fairlead.runtime.component import every
from fairlead.worker.inflight import Inflight

_TIMEOUT = 30.0  # seconds that one call waits for mail
_PAUSE = 0.01  # seconds between two calls, should one return at once without any


class Subscriber:
    """Reads the mail of this incarnation. The heartbeat tells of cancels too, only later.

    While nothing runs there is nothing to cancel, and it asks for no mail by itself: what others
    lend wakes whoever waits for work.
    """

    name = "subscriber"

    def __init__(
        self, broker: Store, inflight: Inflight, take: Callable[[Sequence[Leased]], None]
    ) -> None:
        """``take`` is given what others lent, and is ours from now on."""
        self._broker = broker
        self._take = take
        self._inflight = inflight
        self._incarnation = inflight.incarnation
        self._after = 0  # the number of the last mail read
        self._is_reading = False  # it hears of what comes now

    async def run(self) -> None:
        """Wait for mail and act on it."""
        await every(_PAUSE, self._wait)

    @property
    def unread(self) -> str:
        """The incarnation whose mail nobody waits for now; empty: somebody does."""
        return "" if self._is_reading else self._incarnation

    async def receive(self, timeout: float = 0.0) -> int:
        """Act on the mail there is, or comes within ``timeout``.

        Return how many attempts it stops, or loans it brings. While somebody reads it already,
        that one acts on it.
        """
        if self._is_reading:
            return 0
        self._is_reading = True
        try:
            letters = await self._broker.collect(self._incarnation, self._after, timeout)
            lent = [mail for mail in letters if mail.kind == "lent"]
            if lent:  # before they are confirmed: whoever fails here reads them again
                await self.accept(lent)
        finally:
            self._is_reading = False
        acts = len(lent)
        for mail in letters:
            self._after = max(self._after, mail.number)
            if mail.kind == "cancel" and self._inflight.stop(mail.id, mail.token, "cancel"):
                acts += 1
        return acts

    async def accept(self, letters: Sequence[Mail]) -> None:
        """Take the loans that these letters are about; one that is gone, or another's, is none."""
        tokens = {letter.id: letter.token for letter in letters}
        found = await self._broker.find(list(tokens))
        ours = [
            record
            for record in found
            if record is not None
            and record.state is State.RUNNING
            and record.incarnation == self._inflight.incarnation
            and record.token == tokens[record.message.id]
            and not self._inflight.is_lent(record.message.id, record.token)
        ]
        # What shared memory has no row for is not ours to run: the next beat gives it back.
        room = self._inflight.room
        leases = [_lease(record) for record in ours][:room]
        if leases:
            self._inflight.lent(leases, self._inflight.answered)
            self._take(leases)

    async def _wait(self) -> None:
        await self._inflight.some()
        await self.receive(_TIMEOUT)


def _lease(record: TaskRecord) -> Leased:
    return Leased(
        message=record.message,
        token=record.token,
        attempt=record.attempts + 1,
        generation=record.generation,
        crashes=record.crashes,
        started=record.started_at is not None,
        enqueued_at=record.enqueued_at,
        deadline_at=record.deadline_at,
    )
