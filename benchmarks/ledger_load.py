"""What the bench of the ledger has done: each way on servers that are there already."""

from __future__ import annotations

import asyncio
import time

from benchmarks.environment import PATIENCE, span, told, until, working
from benchmarks.in_process import TOGETHER
from benchmarks.ledger_environment import Place, Rate, Stopwatch, managing
from fairlead.app import Fairlead
from fairlead.broker import Store, connect
from fairlead.cli.demo.stats import percentile
from fairlead.ledger.address import psycopg_of
from fairlead.ledger.ledger import Ledger
from fairlead.manager.counts import Counts
from fairlead.manager.dispatcher import Dispatcher
from fairlead.manager.leader import Leader
from fairlead.manager.leader_term import Term
from fairlead.manager.recorder import Recorder
from fairlead.model.errors import FairleadError

__all__ = ("COMMITTED", "DIRECT", "DISPATCHED", "RECORDED", "latency", "pipeline", "worker_rate")

COMMITTED = f"enqueue in transactions, {TOGETHER} rows in each"
DISPATCHED = "dispatch of rows that are due"
RECORDED = "record tasks that have rows"
DIRECT = "record tasks that came to the broker directly"
_PAYLOAD = "." * 64
_QUEUE = "bench"
_WARM_UP = 20  # tasks before latency counts
_REST = 0.01  # seconds between two of them
_FILL = """
for start in range(0, {count}, 500):
    many = min(500, {count} - start)
    await tasks.app.aenqueue_many(tasks.noop.call("." * 64) for _ in range(many))
"""


async def pipeline(place: Place, count: int) -> dict[str, Rate]:
    """The way of tasks through the ledger, step by step: each is measured by itself."""
    found: dict[str, Rate] = {}
    store = connect(place.url)
    try:
        async with Ledger(place.dsn) as ledger:
            found[COMMITTED] = await _committed(place, count)
            leader = Leader(store, ledger)
            term = await leader.take()
            if term is None:
                raise FairleadError("the bench does not lead")
            recorder = Recorder(store, ledger, term, Counts("recorder"))
            found[DISPATCHED] = await _dispatched(place, store, ledger, term, recorder, count)
            await _worked(place, store)
            found[RECORDED] = await _recorded(place, recorder, count)
            await told(place.url, _FILL.format(count=count))
            await _worked(place, store)
            found[DIRECT] = await _recorded(place, recorder, count)
    finally:
        await store.close()
    return found


async def _committed(place: Place, count: int) -> Rate:
    app = Fairlead(place.url, ledger=place.dsn)
    task = app.task(name="bench.noop")(_noop)
    async with app, await psycopg_of().AsyncConnection.connect(place.dsn) as connection:
        watch = Stopwatch(place)
        for start in range(0, count, TOGETHER):
            calls = [task.call(_PAYLOAD) for _ in range(min(TOGETHER, count - start))]
            await app.aenqueue_many(calls, tx=connection)
            await connection.commit()
        return watch.rate(count)


async def _dispatched(
    place: Place, store: Store, ledger: Ledger, term: Term, recorder: Recorder, count: int
) -> Rate:
    """From the first claim to the last confirm."""
    counts = Counts("dispatcher")
    dispatcher = Dispatcher(store, ledger, term, recorder.catch_up, counts)
    await dispatcher.release()
    watch = Stopwatch(place)
    sent = await dispatcher.dispatch_all()
    rate = watch.rate(count)
    if sent != count:
        raise FairleadError(f"the bench has dispatched {sent:,} of {count:,} tasks")
    return rate


async def _worked(place: Place, store: Store) -> None:
    """Have a worker run all that is queued."""
    with working(place.url):
        await until(store, lambda now: not now.depth + now.running)


async def _recorded(place: Place, recorder: Recorder, count: int) -> Rate:
    """All events of tasks that came, ran and ended while nobody recorded."""
    watch = Stopwatch(place)
    await recorder.catch_up()
    return watch.rate(count)


async def worker_rate(place: Place, count: int, *, ledger: bool) -> float:
    """Tasks that a worker runs in a second, from the first start to the last outcome."""
    if not ledger:
        return await _run(place, count)
    async with managing(place):
        return await _run(place, count, recorded=True)


async def _run(place: Place, count: int, *, recorded: bool = False) -> float:
    store = connect(place.url)
    try:
        await told(place.url, _FILL.format(count=count))
        last = (await store.events(latest=True)).last
        if recorded:
            await _rows(place, count, "queued")
        with working(place.url):
            await until(store, lambda now: not now.depth + now.running)
        rate = count / await span(store, last)
        if recorded:
            await _rows(place, count, "completed")
        return rate
    finally:
        await store.close()


async def _rows(place: Place, count: int, state: str) -> None:
    """Wait until so many rows are in a state."""
    ends = time.monotonic() + PATIENCE
    async with await psycopg_of().AsyncConnection.connect(place.dsn, autocommit=True) as connection:
        while time.monotonic() < ends:
            cursor = await connection.execute(
                "select count(*) from fairlead.tasks where state = %s", (state,)
            )
            if await cursor.fetchone() == (count,):
                return
            await asyncio.sleep(0.2)  # it costs the server something to count
    raise FairleadError(f"the recorder was not done within {PATIENCE:g} s")


async def latency(place: Place, count: int) -> dict[str, float]:
    """Milliseconds from before the commit until the handler runs, while nothing else happens.

    ``direct_ms`` is the median of the same without a ledger, right behind it.
    """
    client, server = Fairlead(place.url, ledger=place.dsn), Fairlead(place.url)
    loop = asyncio.get_running_loop()
    begun: asyncio.Future[float] = loop.create_future()

    async def noop(_text: str) -> None:
        begun.set_result(time.perf_counter())

    server.task(name="bench.noop", queue=_QUEUE)(noop)
    task = client.task(name="bench.noop", queue=_QUEUE)(noop)
    waits: list[float] = []
    direct: list[float] = []
    async with (
        managing(place),
        client,
        server,
        server.worker(queues=[_QUEUE]),
        await psycopg_of().AsyncConnection.connect(place.dsn) as connection,
    ):
        for _ in range(_WARM_UP + count):
            await asyncio.sleep(_REST)
            begun = loop.create_future()
            await task.using(tx=connection).aenqueue(_PAYLOAD)
            at = time.perf_counter()
            await connection.commit()
            waits.append(await asyncio.wait_for(begun, PATIENCE) - at)
        for _ in range(count):
            await asyncio.sleep(_REST)
            begun = loop.create_future()
            at = time.perf_counter()
            await task.aenqueue(_PAYLOAD)
            direct.append(await asyncio.wait_for(begun, PATIENCE) - at)
    found = waits[_WARM_UP:]
    figures = {f"p{each}_ms": percentile(found, each) * 1_000 for each in (50, 99)}
    return {**figures, "direct_ms": percentile(direct, 50) * 1_000}


async def _noop(_text: str) -> None:
    """Stand for the task of the worker."""
