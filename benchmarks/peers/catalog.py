"""The peers: what is installed for each, and how it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ("FAIRLEAD", "PEERS", "Peer", "Way")

# How a peer enqueues, besides one by one from the code it is made for.
Way = Literal["sync", "async", "callers", "bulk"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A task queue, and the settings that suit it."""

    name: str  # of its adapter, and of its folder
    title: str
    language: Literal["fairlead", "python", "node", "ruby"]
    packages: tuple[str, ...] = ()  # with their versions, as its installer wants them named
    ways: frozenset[Way]
    slots: int = 100  # tasks at a time in a process
    backlog: int  # tasks that one process works off in two or three seconds
    events: str | None = None  # the key of a stream that is capped, and not part of what waits
    forks: bool = False  # whether one command runs several processes
    settings: str


FAIRLEAD = Peer(
    name="fairlead",
    title="Fairlead",
    language="fairlead",
    ways=frozenset(("sync", "async", "callers", "bulk")),
    backlog=80_000,
    events="fl1:{0}:events",
    forks=True,
    settings="as it comes, async handlers",
)

PEERS = (
    Peer(
        name="bullmq",
        title="BullMQ",
        language="node",
        packages=("bullmq@6.7.0", "ioredis@6.0.0"),
        ways=frozenset(("async", "callers", "bulk")),
        backlog=30_000,
        events="bull:bench:events",
        settings="removeOnComplete and removeOnFail",
    ),
    Peer(
        name="sidekiq",
        title="Sidekiq",
        language="ruby",
        ways=frozenset(("sync", "callers", "bulk")),
        slots=10,
        backlog=12_000,
        settings="ten threads, which was faster than a hundred; tasks are not acknowledged",
    ),
    Peer(
        name="dramatiq",
        title="Dramatiq",
        language="python",
        packages=("dramatiq[redis]==2.2.1", "redis==8.1.0", "hiredis==3.5.0"),
        ways=frozenset(("sync", "callers")),
        slots=10,
        backlog=5_000,
        forks=True,
        settings="ten threads, which was no slower than a hundred; prefetch of 1,000",
    ),
    Peer(
        name="taskiq",
        title="taskiq",
        language="python",
        packages=(
            "taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0", "hiredis==3.5.0",
            "uvloop==0.23.0",
        ),
        ways=frozenset(("async", "callers")),
        backlog=5_000,
        forks=True,
        settings="RedisStreamBroker, async tasks, uvloop, prefetch of 100, no results",
    ),
    Peer(
        name="arq",
        title="arq",
        language="python",
        packages=("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", "uvloop==0.23.0"),
        ways=frozenset(("async", "callers")),
        backlog=3_000,
        settings="poll_delay of 0.01 s (default 0.5), uvloop, no results",
    ),
    Peer(
        name="rq",
        title="RQ",
        language="python",
        packages=("rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0"),
        ways=frozenset(("sync", "callers", "bulk")),
        slots=1,
        backlog=600,
        settings="SimpleWorker, which does not fork: one at a time, by design; results are kept",
    ),
    Peer(
        name="celery",
        title="Celery",
        language="python",
        packages=("celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0"),
        ways=frozenset(("sync", "callers")),
        backlog=2_000,
        settings="pool of threads, prefetch of 100 for each, no results, acknowledged early",
    ),
)  # fmt: skip
