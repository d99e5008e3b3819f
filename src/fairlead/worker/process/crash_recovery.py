"""What becomes of the tasks of a dead child: those that have no outcome go back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from fairlead.broker import Store
from fairlead.fallback.outcomes import Outcomes, settle_left
from fairlead.model.errors import BrokerError
from fairlead.model.lifecycle import State
from fairlead.worker.process.ipc import Introduction
from fairlead.worker.process.shared_state import Row
from fairlead.worker.recoverer import give_back

log = logging.getLogger("fairlead.worker")

_TRY = 2.0  # seconds that the last try to give something back has
_PAUSE = 0.2  # seconds between two tries
_OTHERS = 10.0  # seconds that another process has which was faster to adopt outcomes
_LOOK = 0.1  # seconds between two looks at what it does
_MOST = 500  # tasks that one call looks up


async def give_back_tasks(
    store: Store,
    who: Introduction,
    rows: Sequence[Row],
    charged: list[str],
    blocked: list[str],
    *,
    pid: int,
    seconds: float,
) -> int:
    """Settle what a child left in its spool, and give back what else it held.

    Return how many of these outcomes did not count. To be called after a clean end as well: a reply
    that got lost may have left something with it.
    """
    until = time.monotonic() + seconds
    fenced = 0
    while True:
        try:
            async with asyncio.timeout(max(until - time.monotonic(), _TRY)):
                settled = await settle_spooled(who.spool, who.incarnation, rows, store)
                fenced += 0 if settled is None else settled.fenced
                count = await give_back(store, who.incarnation, charged, blocked)
        except (BrokerError, TimeoutError) as error:
            if time.monotonic() > until:  # the sweep has it by now
                fields = {"pid": pid, "error": type(error).__name__}
                log.error("leases not given back", extra=fields)  # noqa: TRY400 - no trace needed
                return fenced
            await asyncio.sleep(_PAUSE)
        else:
            if count:
                log.info("leases given back", extra={"pid": pid, "tasks": count})
            return fenced


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
