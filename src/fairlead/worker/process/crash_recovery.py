"""When a child process has crashed, or just ended: its tasks go back, and its crash is logged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from fairlead.broker import Store
from fairlead.model.errors import BrokerError
from fairlead.worker.process.ipc import Introduction
from fairlead.worker.process.shared_state import Row
from fairlead.worker.process.spooled_outcomes import settle_spooled
from fairlead.worker.process.subprocess_reaper import exit_text
from fairlead.worker.recoverer import give_back

log = logging.getLogger("fairlead.worker")

_TRY = 2.0  # seconds that the last try has
_PAUSE = 0.2  # seconds between two tries
_MOST_SHOWN = 100  # running tasks in a log line


async def give_back_tasks(
    store: Store,
    who: Introduction,
    pid: int,
    rows: Sequence[Row],
    charged: list[str],
    blocked: Sequence[str],
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


def log_crash(
    pid: int,
    code: int,
    who: Introduction | None,
    rows: Sequence[Row],
    charged: Sequence[str],
    stack: str,
) -> None:
    """Log how a child ended that was not told to, what it ran, and who is charged for it."""
    running = [row.id for row in rows if row.started]
    end: dict[str, object] = {"exit_code": code}
    if code < 0:
        end = {"signal": exit_text(code).rpartition(" ")[2]}
    fields = {
        "pid": pid,
        **end,
        "running": running[:_MOST_SHOWN],
        "tasks": len(running),
        "charged": charged[:_MOST_SHOWN],
    }
    if who is not None:
        fields["incarnation"] = who.incarnation
    if stack:
        fields["stack"] = stack
    log.error("child died", extra=fields)
