"""Transfers: a worker gives what it cannot run straight to one that can.

A task that is transferred stays on loan: its turn has come, its room in limits is taken, and no
attempt is used up. Only whose loan it is changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from fairlead.broker.requests import LEASE, LeaseRef

#: ``moved``: it is another's loan now, who has mail of it. ``fenced``: it was not the caller's any
#: more. ``full``: the other has no room for it, or is not there; it is still the caller's.
Transferred = Literal["moved", "fenced", "full"]


class TransferVerbs(Protocol):
    """What a store of tasks does for workers that know different tasks."""

    async def transfer(
        self,
        refs: Sequence[LeaseRef],
        to: str,
        *,
        room: int,
        lease: float = LEASE,
        now: float | None = None,
    ) -> list[Transferred]:
        """Make up to 128 loans those of the incarnation ``to``, under a new token.

        It may have ``room`` loans at most, and must have made an exchange before. Each that is
        moved is a letter ``lent`` in its mail, with the token; ``wait`` of an incarnation returns
        when there is mail for it. Its loans hold for ``lease`` seconds from now, or for longer if
        they did. They count as lent by its next exchange: if it does not name them after that has
        been answered, ``beat`` gives them back. A task for which cancel was asked is ``full``.
        What counted as started still does.
        """
        ...
