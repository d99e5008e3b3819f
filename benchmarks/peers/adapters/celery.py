"""Celery with a pool of threads, which was faster than processes for tasks that do nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from celery import Celery

from benchmarks.peers.adapter import URL, Adapter, Called
from benchmarks.peers.marks import Marks

__all__ = ("ADAPTER", "app", "noop", "timed")

app = Celery("peers", broker=os.environ[URL])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=100,  # by default 4: a backlog of short tasks goes faster with more
    worker_disable_rate_limits=True,
    broker_connection_retry_on_startup=True,
)
marks = Marks()


def _noop(_payload: str) -> None:
    marks.ran()


def _timed(sent: int) -> None:
    marks.ran_after(sent)


noop = app.task(_noop, name="noop")
timed = app.task(_timed, name="timed")


def _work(slots: int, processes: int) -> None:
    assert processes == 1, "processes of a pool of threads are started one by one"
    program = Path(sys.executable).with_name("celery")
    options = ["-P", "threads", "-c", str(slots), "-l", "ERROR", "-n", f"{os.getpid()}@%h"]
    options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    os.execv(program, [str(program), "-A", __name__, "worker", *options])


ADAPTER = Adapter(
    packages=("celery", "kombu", "redis"),
    work=_work,
    called=Called(one=noop.delay, timed=timed.delay),
)
