"""The connections to the ledger: what becomes of them when a program just ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from psycopg_pool import PoolClosed
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


@pytest.mark.parametrize("comes", ["a connection", "a reply", "the end"])
async def test_a_cancellation_that_comes_together_with_something_else_is_not_lost(
    ledger_dsn: str, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    """Else a task that tries again after each error goes on for ever, and so does asyncio.run."""
    pool = Pool(parse_address(ledger_dsn))
    await pool.open()
    connections = pool._pool
    assert connections is not None
    entered = asyncio.Event()
    getconn = connections.getconn

    async def deaf() -> Any:
        """As getconn does, if Python 3.11 wakes it for both at once."""
        if comes == "a reply":
            return await getconn()
        entered.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if comes == "the end":
            raise PoolClosed
        return await getconn()

    monkeypatch.setattr(connections, "getconn", deaf)

    async def work() -> None:
        async with pool.transaction():
            assert comes == "a reply"
            entered.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await entered.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await pool.close()


async def test_a_kit_leaves_no_connections_to_its_ledger(ledger_dsn: str) -> None:
    app = Fairlead("memory://")
    before = asyncio.all_tasks()
    async with Kit(app, ledger=ledger_dsn):
        await app._clients.ledger.open()
        assert asyncio.all_tasks() - before
    assert asyncio.all_tasks() == before
