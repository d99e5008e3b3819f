"""``fairlead demo --ledger``: tasks in transactions, and a broker that loses everything."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.app import Fairlead
from fairlead.app.services import ledger_of
from fairlead.cli.demo.stats import percentile
from fairlead.embedded.endpoint import Endpoint
from fairlead.embedded.postgres import EmbeddedPostgres
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.ledger.address import psycopg_of
from fairlead.model.errors import Refused

_ORDERS = 300  # transactions at the scale of 1, one after the other
_LATER = 2_000  # tasks that wait when the broker is emptied
_ROLLED_BACK = 3  # of so many transactions one is
_SECONDS = 60.0  # in which everything has to come to its end

Say = Callable[[str], None]


def play_ledger(scale: float, say: Say) -> dict[str, Any]:
    """Run it on servers of its own, which are gone afterwards; the figures."""
    # What is logged of an emptied server is meant for operators; here it was done on purpose.
    logging.getLogger("fairlead").setLevel(logging.ERROR)
    # PostgreSQL does not run as root: another account has to be let through to its files.
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        Path(folder).chmod(0o711)
        postgres = EmbeddedPostgres(f"{folder}/ledger", dies_with_owner=True)
        with EmbeddedValkey(f"{folder}/broker", dies_with_owner=True) as valkey, postgres as dsn:
            say(f"on a real Valkey and a real PostgreSQL, their data in {folder} until it ends")
            return asyncio.run(_play(valkey, dsn, scale, say))


async def _play(valkey: Endpoint, dsn: str, scale: float, say: Say) -> dict[str, Any]:
    app = Fairlead(valkey.url, ledger=dsn)
    async with app, asyncio.timeout(_SECONDS):
        await ledger_of(app).migrate()
        return await _Play(app, valkey, dsn, scale, say).run()


class _Play:
    def __init__(self, app: Fairlead, valkey: Endpoint, dsn: str, scale: float, say: Say) -> None:
        self._app, self._valkey, self._dsn, self._say = app, valkey, dsn, say
        self._orders, self._later = max(round(_ORDERS * scale), 6), max(round(_LATER * scale), 20)
        self._ran: Counter[int] = Counter()
        self._started: dict[int, float] = {}
        self._step = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        app = self._app

        @app.task(name="demo.bill", max_retries=3)
        async def bill(order: int) -> None:
            self._started.setdefault(order, time.perf_counter())
            await asyncio.sleep(0.001)
            self._ran[order] += 1
            self._step.set()

        connection = await psycopg_of().AsyncConnection.connect(self._dsn)
        async with connection, self._app.manager(), app.worker(concurrency=20, grace=1.0):
            await connection.execute("create table orders (id int primary key)")
            await connection.commit()
            committed: dict[int, float] = {}
            rolled_back = range(0, self._orders, _ROLLED_BACK)
            for order in range(self._orders):
                await connection.execute("insert into orders values (%s)", (order,))
                await bill.using(tx=connection).aenqueue(order)
                if order in rolled_back:
                    await connection.rollback()
                else:
                    await connection.commit()
                    committed[order] = time.perf_counter()
            await self._until(committed)
            waits = [self._started[order] - at for order, at in committed.items()]
            self._say(f"{len(committed)} of {self._orders} transactions were committed")

            later = range(self._orders, self._orders + self._later)
            await app.aenqueue_many([bill.call(order) for order in later], tx=connection)
            await connection.commit()
            await self._until(later[: len(later) // 4])
            left = len(later) - sum(order in self._ran for order in later)
            _empty(self._valkey)
            emptied = time.perf_counter()
            self._say(f"Valkey was emptied while {left:,} tasks waited")
            await self._until(later)
            return {
                "committed": len(committed),
                "rolled_back": len(rolled_back),
                "ran": sum(order in self._ran for order in range(self._orders)),
                "ran_though_rolled_back": sum(order in self._ran for order in rolled_back),
                "commit_to_start_p50_ms": round(percentile(waits, 50) * 1_000, 2),
                "lost_by_the_broker": left,
                "came_back_seconds": round(time.perf_counter() - emptied, 2),
                "ran_twice": sum(count > 1 for count in self._ran.values()),
            }

    async def _until(self, orders: Any) -> None:
        while any(order not in self._ran for order in orders):
            self._step.clear()
            await self._step.wait()


def _empty(valkey: Endpoint) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(valkey.socket)
        connection.sendall(f"AUTH {valkey.password}\r\nFLUSHALL\r\n".encode())
        with connection.makefile("rb") as replies:
            if [replies.readline(), replies.readline()] != [b"+OK\r\n"] * 2:
                raise Refused("command", "the server of the demo could not be emptied")


def sentences_of_ledger(figures: dict[str, Any]) -> tuple[str, str]:
    """What was seen, in words."""
    return (
        f"{figures['committed']} transactions were committed and {figures['rolled_back']} rolled "
        f"back: {figures['ran']} tasks ran, {figures['ran_though_rolled_back']} of them of one "
        f"that was rolled back. From commit to start it took "
        f"{figures['commit_to_start_p50_ms']:.0f} ms in the median.",
        f"Valkey lost {figures['lost_by_the_broker']:,} tasks; all of them came back and were done "
        f"{figures['came_back_seconds']:.1f} s later, {figures['ran_twice']:,} ran twice.",
    )
