"""Whether a worker has nothing left to do: its queues are empty, and nothing runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.broker import Inspector
from fairlead.model.errors import BrokerError
from fairlead.runtime.component import Outage
from fairlead.worker.processor import Processor

_LOOK = 0.1  # seconds between two looks
_PAUSE = 1.0  # seconds after the broker failed


async def until_empty(store: Inspector, processor: Processor) -> None:
    """Return once nothing is queued where the processor fetches from, and nothing runs here.

    What is due later does not count, nor what waits in a queue that is paused. Return as well when
    the processor is told to stop.
    """
    outage = Outage("until empty")
    while not processor.halting:
        try:
            # Looked at before and after: what is on its way here is in no queue any more.
            idle = processor.is_idle and not await _waits(store, processor.order.order())
            outage.over()
            if idle and processor.is_idle:
                return
            await asyncio.sleep(_LOOK)
        except BrokerError as error:
            outage.failed(error)
            await asyncio.sleep(_PAUSE)


async def _waits(store: Inspector, queues: Sequence[str]) -> bool:
    for queue in queues:
        counts = (await store.snapshot(queue, tenants=False)).queues.get(queue)
        if counts is not None and counts.ready and not counts.paused:
            return True
    return False
