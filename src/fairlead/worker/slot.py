"""The inside of a slot process: one attempt at a time, as its worker says."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fairlead.worker.channel import Aloud, Channel, Outcome, Run, Stop
from fairlead.worker.orphans import has_children
from fairlead.worker.worker import Worker

__all__ = ("serve",)


async def serve(channel: Channel, worker: Worker) -> None:
    """Run what the worker process sends, until it is gone."""
    worker.runner.alone = True
    async with worker.detached():
        channel.send(Aloud())
        receiving: asyncio.Future[Any] = asyncio.ensure_future(channel.receive())
        try:
            while True:
                run = await receiving
                if run is None:
                    return
                receiving = asyncio.ensure_future(channel.receive())
                if isinstance(run, Run):  # a late Stop is for the attempt before
                    outcome, receiving = await _run(run, worker, channel, receiving)
                    channel.send(outcome)
                    if outcome.last:
                        await channel.flush()
                        return
        finally:
            receiving.cancel()


async def _run(
    run: Run,
    worker: Worker,
    channel: Channel,
    receiving: asyncio.Future[Any],
) -> tuple[Outcome, asyncio.Future[Any]]:
    """One attempt; what it comes to, and who listens for the next message by then."""
    runner = worker.runner
    runner.dice = lambda: run.dice
    runner.start(run.lease)
    runner.begun.clear()  # the worker tells the broker
    over = asyncio.ensure_future(worker.inflight.none())
    while not over.done():
        await asyncio.wait([over, receiving], return_when=asyncio.FIRST_COMPLETED)
        if receiving.done() and not over.done():
            message = receiving.result()
            if message is None:  # nobody is left to tell
                os._exit(1)
            receiving = asyncio.ensure_future(channel.receive())
            if isinstance(message, Stop):
                worker.inflight.stop(run.lease.message.id, run.lease.token, message.why)
    last = worker.abandoned > 0 or has_children()
    return Outcome(settlement=worker.syncer.take(), last=last), receiving
