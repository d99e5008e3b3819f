"""Fairlead as it comes: `fairlead worker` with async handlers."""

from __future__ import annotations

import itertools
import os
import sys

from benchmarks.peers.adapter import TENANTS, URL, Adapter, Awaited, Called
from benchmarks.peers.marks import Marks
from fairlead import Fairlead

__all__ = ("ADAPTER", "app")

app = Fairlead(os.environ.get(URL))
marks = Marks()


@app.task(name="peers.noop")
async def noop(_payload: str) -> None:
    """Leave a mark."""
    marks.ran()


@app.task(name="peers.timed")
async def timed(sent: int) -> None:
    """Mark the latency."""
    marks.ran_after(sent)


def _kinds() -> list[object]:
    tenants = int(os.environ.get(TENANTS, "1"))
    if tenants == 1:
        return [noop]
    return [noop.using(tenant=f"tenant-{number}") for number in range(tenants)]


_next_kind = itertools.cycle(_kinds())


async def _many(payloads: list[str]) -> None:
    await app.aenqueue_many([next(_next_kind).call(each) for each in payloads])  # type: ignore[attr-defined]


def _work(slots: int, processes: int) -> None:
    options = ("-c", str(slots), "-p", str(processes), "--log-level", "error")
    command = [sys.executable, "-m", "fairlead", "worker", f"{__name__}:app", *options]
    os.execv(sys.executable, command)


ADAPTER = Adapter(
    packages=("fairlead",),
    work=_work,
    called=Called(one=noop.enqueue, timed=timed.enqueue),
    awaited=Awaited(one=noop.aenqueue, timed=timed.aenqueue, many=_many),
)
