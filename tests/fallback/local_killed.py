"""A process that runs its tasks itself, and dies at a named place; see ``tests.support.deaths``.

It takes its broker for one that is away, enqueues, and runs what it has; then it finds the broker
and drains. Each handler leaves a line in a file, and may end the process itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from fairlead import Fairlead
from fairlead.fallback.background import BackgroundLoop
from fairlead.model.errors import Unreachable
from fairlead.runtime import fault_injection
from tests.support.deaths import serve

TASKS = 6


def app_of(order: dict[str, Any]) -> Fairlead:
    """An app whose tasks write a line into a file; nothing runs by itself."""
    app = Fairlead(order["url"], fallback="local", spool=order["folder"], local_queues=["mail"])
    fallback = app._clients.fallback
    assert fallback is not None
    fallback.options = msgspec.structs.replace(fallback.options, silence=10.0)  # a busy machine
    lines = Path(order["folder"]).parent / "lines"

    @app.task(name="send", queue="mail")
    async def send(number: int) -> int:
        with lines.open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        if fault_injection._fault is not None and fault_injection._fault[0] == "handler":
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return app


async def _live(order: dict[str, Any]) -> None:
    app = app_of(order)
    fallback = app._clients.fallback
    assert fallback is not None
    fallback._pid = os.getpid()  # nothing runs beside this
    (shard,) = fallback.parts.stores
    fallback.outages.failed(shard, Unreachable("as far as this process knows"), sure=True)
    send = app.registered("send")
    ids = [(await send.aenqueue(number)).id for number in range(TASKS)]
    (Path(order["folder"]).parent / "ids").write_text(" ".join(ids))
    await asyncio.sleep(fallback.options.settling)
    background = BackgroundLoop(fallback)
    while fallback.local.ran < TASKS:
        await fallback.local.step(background._drainer.is_doubted)
        await asyncio.sleep(0.005)
    for _ in range(3):
        fallback.outages.probed(shard, good=True)
    while await background._drainer.step():
        pass
    await app.aclose()


if __name__ == "__main__":
    vars(fault_injection)["SITES"] = (
        *fault_injection.SITES,
        "handler",
    )  # the handler itself is one more
    serve(_live)
