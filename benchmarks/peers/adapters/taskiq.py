"""taskiq with its stream broker, which acknowledges: async tasks, no results."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from taskiq_redis import RedisStreamBroker

from benchmarks.peers.adapter import URL, Adapter, Awaited
from benchmarks.peers.marks import Marks

__all__ = ("ADAPTER", "broker", "noop", "timed")

broker = RedisStreamBroker(os.environ[URL], consumer_id="0", xread_count=100)
marks = Marks()


async def _noop(_payload: str) -> None:
    marks.ran()


async def _timed(sent: int) -> None:
    marks.ran_after(sent)


noop = broker.task(task_name="noop")(_noop)
timed = broker.task(task_name="timed")(_timed)


@contextlib.asynccontextmanager
async def _opened() -> AsyncIterator[None]:
    await broker.startup()
    try:
        yield
    finally:
        await broker.shutdown()


def _work(slots: int, processes: int) -> None:
    program = Path(sys.executable).with_name("taskiq")
    options = ["--workers", str(processes), "--max-async-tasks", str(slots)]
    options += ["--max-prefetch", str(slots), "--no-parse", "--log-level", "ERROR"]
    os.execv(program, [str(program), "worker", f"{__name__}:broker", *options])


ADAPTER = Adapter(
    packages=("taskiq", "taskiq-redis", "redis"),
    work=_work,
    awaited=Awaited(one=noop.kiq, timed=timed.kiq, opened=_opened),
)
