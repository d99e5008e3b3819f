"""arq: async tasks, and a worker that asks again and again instead of waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import func, run_worker

from benchmarks.peers.adapter import URL, Adapter, Awaited
from benchmarks.peers.marks import Marks

__all__ = ("ADAPTER",)

_POLL = 0.01  # seconds; by default 0.5, which would be its idle latency
_SERVER = RedisSettings.from_dsn(os.environ[URL])

marks = Marks()


async def _noop(_context: dict[str, Any], _payload: str) -> None:
    marks.ran()


async def _timed(_context: dict[str, Any], sent: int) -> None:
    marks.ran_after(sent)


class _Connection:
    """The pool, while it is open."""

    pool: Any = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self.pool = await create_pool(_SERVER)
        try:
            yield
        finally:
            await self.pool.aclose()

    async def one(self, payload: str) -> None:
        await self.pool.enqueue_job("noop", payload)

    async def timed(self, sent: int) -> None:
        await self.pool.enqueue_job("timed", sent)


def _work(slots: int, processes: int) -> None:
    assert processes == 1, "a worker of arq is one process"
    asyncio.set_event_loop(uvloop.new_event_loop())
    run_worker(
        {
            "functions": [func(_noop, name="noop"), func(_timed, name="timed")],
            "redis_settings": _SERVER,
            "max_jobs": slots,
            "poll_delay": _POLL,
            "keep_result": 0,
            "log_results": False,
        }
    )


_connection = _Connection()
ADAPTER = Adapter(
    packages=("arq", "redis"),
    work=_work,
    awaited=Awaited(one=_connection.one, timed=_connection.timed, opened=_connection.opened),
)
