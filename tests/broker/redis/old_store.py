"""Stores that an earlier release has written, kept as they were: ``old_store.bin``.

They were made by the release before the source was arranged by role (commit fa20e3c, layout 4), on
the Valkey server of the tests, by its own code and its own tests:

    mkdir /tmp/old && git archive fa20e3c src tests | tar -x -C /tmp/old
    python -m tests.broker.redis.old_store /tmp/old

``sample`` is what ``tests.broker.redis.sample.fill`` made there: something of everything, by a test
clock. ``app`` is what an app wrote through its public interface, while one of its tasks ran: see
``write_app``. Each is a ``DUMP`` of all keys, by key. Not to be made anew by a later release.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import redis

from fairlead import Context, Fairlead

__all__ = ("restore", "tasks")

_FILE = Path(__file__).with_suffix(".bin")
_FOR_LONG = "3650d"


def restore(client: redis.Redis, name: str) -> None:
    """Put one of the stores into an empty database."""
    stores = msgspec.msgpack.decode(zlib.decompress(_FILE.read_bytes()))
    for key, dump in stores[name].items():
        client.restore(key, 0, dump)


def tasks(app: Fairlead) -> None:
    """Register the tasks of the app, for either release."""

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="flaky", max_retries=2, limiters=["door"])
    async def flaky(ctx: Context, name: str) -> str:
        if ctx.attempt == 1:
            raise ValueError(name)
        return f"{name} at last"

    @app.task(name="broken", max_retries=0)
    async def broken() -> None:
        raise RuntimeError("broken for good")

    @app.task(name="hold", queue="held")
    async def hold(name: str) -> str:
        if _holds:
            _holds[0].set()
            await asyncio.Event().wait()
        return f"{name} after all"


_holds: list[asyncio.Event] = []  # set once the handler runs; else it does not wait


async def write_app(app: Fairlead) -> None:
    """Have tasks end, and leave others: waiting in all ways, retrying, and one that runs."""
    add, flaky, hold = app.named("add"), app.named("flaky"), app.named("hold")
    await app.aconfigure_limiter("door", concurrency=1)
    await app.aconfigure_tenant("acme", weight=2.0)
    await (await add.using(id="done", retention=_FOR_LONG).aenqueue(2, 3)).aresult()
    dead = await app.named("broken").using(id="dead", retention=_FOR_LONG).aenqueue()
    while await dead.astate() != "dead":  # noqa: ASYNC110 - there is nothing to be told by
        await asyncio.sleep(0.01)
    retrying = await flaky.using(id="retrying", tenant="acme").aenqueue("flaky")
    while await retrying.astate() != "retrying":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    _holds.append(asyncio.Event())
    await hold.using(id="leased").aenqueue("held")
    await _holds[0].wait()
    # From here on the only slot is taken.
    await add.using(id="queued").aenqueue(1, 2)
    await add.using(id="later", delay="1h").aenqueue(3, 4)
    await add.using(id="only", unique="once", tenant="acme").aenqueue(5, 6)
    await add.using(id="first", priority="critical").aenqueue(7, 8)
    await flaky.using(id="limited").aenqueue("limited")
    one, two = add.call(1, 10), add.call(2, 20)
    both = add.using(id="both").call(one.output, two.output)
    await app.aenqueue_flow([one, two] >> both, id="flow")
    await app.schedules.acreate("hourly", add.call(100, 1), every="1h")


async def _write_app(url: str, client: redis.Redis) -> dict[bytes, bytes]:
    app = Fairlead(url)
    tasks(app)
    async with app.worker(concurrency=1, grace=0.1):
        await write_app(app)
        return _dumped(client)


async def _write_sample(url: str, client: redis.Redis) -> dict[bytes, bytes]:
    from fairlead.broker.redis import RedisBroker
    from tests.broker.redis.sample import fill

    broker = RedisBroker(url, test_clock=True, event_bytes=4096)
    try:
        await fill(broker)
        return _dumped(client)
    finally:
        await broker.close()


def _dumped(client: Any) -> dict[bytes, bytes]:
    # Without keys that end by themselves: whoever opens the store does so later.
    return {key: client.dump(key) for key in sorted(client.keys()) if client.pttl(key) == -1}


def _write(path: str) -> None:
    """Write the file; in a process that has the source of the earlier release."""
    from tests.support.servers import server

    stores = {}
    for name, write in (("sample", _write_sample), ("app", _write_app)):
        with server() as running, redis.Redis(unix_socket_path=running.path) as client:
            stores[name] = asyncio.run(write(running.url, client))
    Path(path).write_bytes(zlib.compress(msgspec.msgpack.encode(stores), 9))


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        _write(sys.argv[2])
    else:
        old = Path(sys.argv[1])
        path = os.pathsep.join((str(old / "src"), str(old)))
        command = [sys.executable, "-P", __file__, "--write", str(_FILE)]
        subprocess.run(command, check=True, cwd=old, env={**os.environ, "PYTHONPATH": path})
