"""Dramatiq with its Redis broker: threads, tasks are acknowledged, no results."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.adapter import URL, Adapter, Called
from benchmarks.peers.marks import Marks

__all__ = ("ADAPTER", "broker", "noop", "timed")

broker = RedisBroker(url=os.environ[URL])
dramatiq.set_broker(broker)
marks = Marks()


def _noop(_payload: str) -> None:
    marks.ran()


noop = dramatiq.actor(_noop, actor_name="noop", max_retries=0)
timed = dramatiq.actor(marks.ran_after, actor_name="timed", max_retries=0)


def _work(slots: int, processes: int) -> None:
    # By default two for each thread: a backlog of short tasks goes faster with more.
    os.environ["dramatiq_queue_prefetch"] = "1000"  # noqa: SIM112 - its own spelling
    program = Path(sys.executable).with_name("dramatiq")
    options = ("-p", str(processes), "-t", str(slots), "--skip-logging")
    os.execv(program, [str(program), __name__, *options])


ADAPTER = Adapter(
    packages=("dramatiq", "redis"),
    work=_work,
    called=Called(one=noop.send, timed=timed.send),
)
