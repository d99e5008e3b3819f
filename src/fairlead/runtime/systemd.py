"""Tells systemd how a service is: ready, alive, stopping. Elsewhere it does nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def notifying() -> AsyncIterator[None]:
    """Be ready in the block, and stopping behind it.

    Meanwhile systemd hears, twice in each of the intervals of ``WatchdogSec=``, that the event loop
    turns: a process whose loop hangs is replaced.
    """
    _tell("READY=1")
    watched = asyncio.create_task(_stay_alive(), name="watchdog")
    try:
        yield
    finally:
        watched.cancel()
        _tell("STOPPING=1")


async def _stay_alive() -> None:
    interval = os.environ.get("WATCHDOG_USEC", "")
    if interval.isdecimal() and os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(
        os.getpid()
    ):
        while True:
            _tell("WATCHDOG=1")
            await asyncio.sleep(int(interval) / 2_000_000)


def _tell(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # in the abstract namespace
        address = "\0" + address[1:]
    # A message that is lost is no reason to fail: systemd acts if it misses one.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.setblocking(False)
        told.sendto(state.encode(), address)
