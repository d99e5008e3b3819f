"""What a supervisor does for the outcomes that a dead child left in the spool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from fairlead.broker import Store
from fairlead.fallback.outcomes import Outcomes, settle_left
from fairlead.model.lifecycle import State
from fairlead.worker.process.shared_state import Row

_OTHERS = 10.0  # seconds that another process has which was faster to adopt them
_LOOK = 0.1  # seconds between two looks at what it does
_MOST = 500  # tasks that one call looks up


async def settle_spooled(
    root: str, incarnation: str, rows: Sequence[Row], store: Store
) -> Outcomes | None:
    """Settle the outcomes of a dead child before its leases are given back.

    Its handlers ran to their ends: given back first, they would run again. If another process has
    adopted the outcomes, wait a while for what it makes of them. Returns what was settled here.
    Raises ``BrokerError`` while the broker is away.
    """
    spooled = {row.id: row.token for row in rows if row.spooled}
    if not root or not spooled:
        return None
    await store.hello()  # nothing is adopted before there is somebody to send it to
    outcomes = await settle_left(Path(root), store)
    until = time.monotonic() + _OTHERS
    while time.monotonic() < until:
        if not await _are_running(spooled, incarnation, store):
            break
        await asyncio.sleep(_LOOK)
    return outcomes


async def _are_running(spooled: dict[str, int], incarnation: str, store: Store) -> bool:
    """Return whether a lease of these, by id and token, is still in force."""
    ids = list(spooled)
    found = await store.find(ids[:_MOST], parts="info")
    return any(
        record is not None
        and record.state is State.RUNNING
        and (record.incarnation, record.token) == (incarnation, spooled[id])
        for id, record in zip(ids, found, strict=False)
    )
