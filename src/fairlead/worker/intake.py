"""Takes over what other workers lend to this one, because they cannot run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.broker import Inspector
from fairlead.broker.verbs import Mail
from fairlead.broker.views import TaskRecord
from fairlead.model.lifecycle import State
from fairlead.model.message import Leased
from fairlead.worker.inflight import Inflight

__all__ = ("Intake",)


class Intake:
    """Makes loans of letters. A loan that is gone by then, or another's, is none."""

    def __init__(self, store: Inspector, inflight: Inflight) -> None:
        self._store = store
        self._inflight = inflight
        self.take: Callable[[Sequence[Leased]], None] = _nothing  # given what is ours from now on

    async def accept(self, letters: Sequence[Mail]) -> None:
        """Read the tasks that these letters are about, and take them."""
        tokens = {letter.id: letter.token for letter in letters}
        found = await self._store.find(list(tokens))
        ours = [
            record
            for record in found
            if record is not None
            and record.state is State.RUNNING
            and record.incarnation == self._inflight.incarnation
            and record.token == tokens[record.message.id]
            and not self._inflight.is_lent(record.message.id, record.token)
        ]
        # What the board has no room to show is not ours to run: the next beat gives it back.
        room = self._inflight.room
        leases = [_lease(record) for record in ours][:room]
        if leases:
            self._inflight.lent(leases, self._inflight.answered)
            self.take(leases)


def _nothing(_leases: Sequence[Leased]) -> None:
    pass


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
