"""The connections to the ledger: what becomes of them when a program just ends."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg_pool.pool_async import MaintenanceTask

from fairlead import Fairlead
from fairlead.ledger.address import parse_address
from fairlead.ledger.pool import Pool
from fairlead.testing import Kit


class _Deaf(MaintenanceTask):
    """Work of a pool that loses a cancellation, as giving back a connection can."""

    entered: asyncio.Event

    async def _run(self, pool: Any) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the connection broke") from None


async def test_workers_of_a_pool_end_when_they_are_cancelled_in_the_middle_of_something(
    ledger_dsn: str,
) -> None:
    pool = Pool(parse_address(ledger_dsn))
    before = asyncio.all_tasks()
    await pool.open()
    assert pool._pool is not None
    work = _Deaf(pool._pool)
    work.entered = asyncio.Event()
    pool._pool.run_task(work)
    await work.entered.wait()

    left = asyncio.all_tasks() - before
    for task in left:  # as asyncio.run does in the end
        task.cancel()
    _, pending = await asyncio.wait(left, timeout=10)
    assert not pending


async def test_a_kit_leaves_no_connections_to_its_ledger(ledger_dsn: str) -> None:
    app = Fairlead("memory://")
    before = asyncio.all_tasks()
    async with Kit(app, ledger=ledger_dsn):
        await app._clients.ledger.open()
        assert asyncio.all_tasks() - before
    assert asyncio.all_tasks() == before
