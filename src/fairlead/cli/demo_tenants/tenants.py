"""Who enqueues: each tenant in its own way, until the process is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fairlead import BrokerError, Handle, QueueFull, Unreachable
from fairlead.cli.demo_tenants.tasks import (
    app,
    charge,
    extract,
    load,
    remind,
    render,
    send,
    sync,
    transform,
    warm,
)
from fairlead.runtime.event_loop import new_runner

#: What each tenant is there to show.
SAID = {
    "acme": "a few mails a second, reminders, a digest by the clock",
    "bulk": "floods the mail queue; nobody else waits for it",
    "globex": "three times the weight; flows, a cache warmed once",
    "initech": "payments: declined cards, busy banks, dead letters",
    "umbrella": "calls to a partner that takes four a second",
    "stark": "films, two at a time; some are canceled",
    "shop": "payments in transactions; one in four is rolled back",
}
_PAUSE = 2.0  # seconds after which a broker that is away, or a full queue, is tried again

Trade = Callable[[], Coroutine[Any, Any, None]]


async def acme() -> None:
    """Send a few mails a second, some of them first, and a reminder now and then."""
    for number in itertools.count():
        mail = send.using(tenant="acme", priority="high" if number % 10 == 0 else "normal")
        await mail.aenqueue(f"user{number % 500}@example.com")
        if number % 15 == 0:
            await remind.using(tenant="acme", delay="30s").aenqueue("shy@example.com")
        await asyncio.sleep(random.expovariate(3.0))


async def bulk() -> None:
    """Enqueue three hundred mails at once, every half minute."""
    while True:
        mail = send.using(tenant="bulk", priority="low")
        await app.aenqueue_many([mail.call(f"list{n}@example.org") for n in range(300)])
        await asyncio.sleep(30)


async def globex() -> None:
    """Enqueue a flow every eight seconds, and ask for a warm cache far too often."""
    for day in itertools.count(1):
        part = transform.using(tenant="globex")
        flow = extract.using(tenant="globex").call(day) >> [part.call(n) for n in range(1, 5)]
        await app.aenqueue_flow(flow >> load.using(tenant="globex").call(day), name="nightly")
        for _ in range(4):
            await warm.using(tenant="globex").aenqueue()
            await asyncio.sleep(2)


async def initech() -> None:
    """Charge orders, of which some fail for a while and some for good."""
    for order in itertools.count(1):
        await charge.using(tenant="initech", deadline="10m").aenqueue(order)
        await asyncio.sleep(2)


async def umbrella() -> None:
    """Enqueue more calls to a partner than it takes, then rest."""
    while True:
        call = sync.using(tenant="umbrella")
        await app.aenqueue_many([call.call(item) for item in range(40)])
        await asyncio.sleep(15)


async def stark() -> None:
    """Enqueue films, and cancel every third one a while later."""
    waiting: set[asyncio.Task[None]] = set()
    for film in itertools.count(1):
        handle = await render.using(tenant="stark").aenqueue(film, random.uniform(4.0, 12.0))
        if film % 3 == 0:
            task = asyncio.create_task(_cancel_later(handle))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.sleep(6)


async def _cancel_later(handle: Handle[Any]) -> None:
    await asyncio.sleep(3)
    with contextlib.suppress(BrokerError):  # the demo goes on without it
        await handle.acancel()


async def shop() -> None:
    """Charge orders in transactions of PostgreSQL, of which one in four is rolled back."""
    async with _connection() as connection:
        for number in itertools.count(1):
            bill = charge.using(tx=connection, tenant="shop")
            await bill.aenqueue(1_000_000 + number)
            if number % 4:
                await connection.commit()
            else:
                await connection.rollback()
            await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def _connection() -> AsyncIterator[Any]:
    from fairlead.ledger.address import psycopg_of

    connection = await psycopg_of().AsyncConnection.connect(os.environ["FAIRLEAD_LEDGER"])
    async with connection:
        yield connection


TENANTS: dict[str, Trade] = {
    "acme": acme,
    "bulk": bulk,
    "globex": globex,
    "initech": initech,
    "umbrella": umbrella,
    "stark": stark,
}


def main() -> None:
    """Let all tenants trade until TERM or INT."""
    tenants = dict(TENANTS)
    if app._clients.ledger_url is not None:
        tenants["shop"] = shop
    for tenant in tenants:
        _say(f"{tenant:<9} {SAID[tenant]}")
    with new_runner() as runner:
        runner.run(_trade(tenants))


async def _trade(tenants: dict[str, Trade]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    trades = [asyncio.create_task(_go_on(name, trade)) for name, trade in tenants.items()]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopped, *trades], return_when=asyncio.FIRST_COMPLETED)
        for trade in trades:
            if trade.done():
                trade.result()
    finally:
        for task in (stopped, *trades):
            task.cancel()
        await asyncio.gather(stopped, *trades, return_exceptions=True)
        await app.aclose()


async def _go_on(tenant: str, trade: Trade) -> None:
    """Trade for ever; a full queue and a broker that is away are waited for."""
    while True:
        try:
            await trade()
        except QueueFull as error:
            _say(f"{tenant} has to wait: {error}")
        except BrokerError as error:
            kind = "does not answer" if isinstance(error, Unreachable) else type(error).__name__
            _say(f"{tenant} has to wait: the broker {kind}")
        await asyncio.sleep(_PAUSE)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
