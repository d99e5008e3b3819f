"""RQ with the worker that does not fork for each task: one task at a time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from redis import Redis
from rq import Queue

from benchmarks.peers.adapter import URL, Adapter, Called
from benchmarks.peers.marks import Marks

__all__ = ("ADAPTER", "noop", "timed")

_NAME = "bench"

marks = Marks()
queue = Queue(_NAME, connection=Redis.from_url(os.environ[URL]))


def noop(_payload: str) -> None:
    """Leave a mark."""
    marks.ran()


def timed(sent: int) -> None:
    """Mark the latency."""
    marks.ran_after(sent)


def _one(payload: str) -> None:
    queue.enqueue(noop, payload)


def _many(payloads: list[str]) -> None:
    queue.enqueue_many([Queue.prepare_data(noop, (each,)) for each in payloads])


def _timed(sent: int) -> None:
    queue.enqueue(timed, sent)


def _work(slots: int, processes: int) -> None:
    assert slots == processes == 1, "a worker of RQ runs one task at a time"
    program = Path(sys.executable).with_name("rq")
    options = ["-u", os.environ[URL], "-q", "--disable-job-desc-logging"]
    options += ["-w", "rq.worker.SimpleWorker", _NAME]
    os.execv(program, [str(program), "worker", *options])


ADAPTER = Adapter(
    packages=("rq", "redis"),
    work=_work,
    called=Called(one=_one, timed=_timed, many=_many),
)
