"""Several loops and threads: what is left of closed loops stops nobody, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import (
    Call,
    Fetch,
    LimiterChange,
    QueueChange,
    TenantChange,
)
from fairlead.model.lifecycle import Settlement
from tests.support.fair import LiveClient
from tests.support.store import completed, submit

# -- coroutines that the garbage collector ends -----------------------------------------------

# A loop is closed under a coroutine that waits; then the collector runs in the middle of a verb of
# the same thread, when the verb goes over its batch for the nth time.
PROGRAM = """
import asyncio, gc, sys
from fairlead.broker.memory import MemoryBroker
from fairlead.broker.requests import Alter, Call, Submission
from fairlead.model.message import Message

VERB, KNOWN = sys.argv[1], sys.argv[2] == "known"
broker = MemoryBroker()
numbers = iter(range(1, 1_000_000))


class Collecting(list):
    turn = 0

    def __init__(self, items, at):
        super().__init__(items)
        self.at = at

    def __iter__(self):
        self.turn += 1
        if self.turn == self.at:
            gc.collect()
        return super().__iter__()


def task(id):
    return Submission(message=Message(id=id, queue="q", tenant="t", body=b""))


async def wait():
    if VERB == "wait":
        await broker.wait(["q"], 60.0)
    elif VERB == "collect":
        await broker.collect("c", 0, 60.0)
    else:
        await broker.events(after=(await broker.events()).last, timeout=60.0)


async def enqueue(tasks):
    (receipt,) = await broker.enqueue(Call("c", next(numbers)), tasks)
    assert receipt.code == "accepted", receipt


async def end(id):
    await broker.watch("c", [id])
    await broker.alter(Call("c", next(numbers)), [Alter(id=id, action="cancel")])


def abandon():
    loop = asyncio.new_event_loop()
    loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()


async def main(round):
    if KNOWN:  # the broker finds out that nobody listens, and lets go
        await enqueue([task(f"{round}.ring")])
        await end(f"{round}.ring")
    await enqueue(Collecting([task(f"{round}.t")], at=round))
    await end(f"{round}.t")
    gc.collect()
    assert await broker.audit() == []


gc.disable()
for round in (1, 2, 3, 4):
    abandon()
    asyncio.run(main(round))
print("it ends")
"""


@pytest.mark.parametrize("known", ["known", "unknown"])
@pytest.mark.parametrize("verb", ["wait", "collect", "events"])
def test_a_coroutine_that_is_collected_in_the_middle_of_a_verb_stops_nobody(
    verb: str, known: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, verb, known],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (0, "it ends\n"), done.stderr


# -- many threads -----------------------------------------------------------------------------


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads take turns far more often than they would."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class Stress:
    """Producers and workers on the loops of several threads, with limits of every kind."""

    QUEUES = ("q", "r")
    THREADS = 3

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.sent: list[str] = []
        self.seen: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.errors: list[BaseException] = []

    def thread(self, work: Callable[[], Coroutine[Any, Any, None]]) -> threading.Thread:
        def run() -> None:
            try:
                asyncio.run(work())
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                self.errors.append(error)

        started = threading.Thread(target=run, daemon=True)
        started.start()
        return started

    async def produce(self, name: str, batches: int) -> None:
        dice = random.Random(name)
        client = LiveClient(self.broker, name)
        for batch in range(batches):
            tasks = [
                submit(
                    f"{name}.{batch}.{i}",
                    dice.choice("abc"),
                    dice.choice(self.QUEUES),
                    level=dice.randrange(4),
                    limiters=dice.choice([(), ("narrow",)]),
                    delay=dice.choice([0.0, 0.0, 0.02]),
                )
                for i in range(dice.randint(1, 5))
            ]
            await client.enqueue(*tasks)
            with self.lock:
                self.sent += [task.message.id for task in tasks]
            if dice.random() < 0.2:
                await asyncio.sleep(dice.random() * 0.01)

    async def work(self, name: str, queues: tuple[str, ...]) -> None:
        number = 0
        done: list[Settlement] = []
        while not self.stop.is_set() or done:
            number += 1
            fetch = None if self.stop.is_set() else Fetch(queues=queues, max=4)
            reply = await self.broker.exchange(Call(name, number), done, fetch=fetch)
            assert reply.settled == ["applied"] * len(done)
            done = [completed(lease) for lease in reply.leased]
            keys = [key for lease in reply.leased for key in self.limits(lease.message)]
            with self.lock:
                self.seen.update(lease.message.id for lease in reply.leased)
                self.running.update(keys)
                for key in set(keys):
                    self.most[key] = max(self.most[key], self.running[key])
            if reply.leased:
                await asyncio.sleep(0.001)
                with self.lock:  # before the broker hears of it: never more than it knows of
                    self.running.subtract(keys)
            elif not reply.more:
                await self.broker.wait(queues, 0.5)

    @staticmethod
    def limits(message: Any) -> list[str]:
        tenant = [f"{message.queue}/a"] if message.tenant == "a" else []
        return [*message.limiters, *tenant]

    async def work_many(self, thread: int) -> None:
        orders = (self.QUEUES, self.QUEUES[::-1])
        await asyncio.gather(*(self.work(f"w{thread}.{i}", orders[i % 2]) for i in range(4)))

    async def run(self) -> None:
        keep = [QueueChange(queue=q, keep_completed_count=100_000) for q in self.QUEUES]
        await LiveClient(self.broker, "setup").configure(
            LimiterChange(name="narrow", concurrency=3),
            TenantChange(tenant="a", concurrency=2),
            *keep,
        )
        workers = [self.thread(lambda i=i: self.work_many(i)) for i in range(self.THREADS)]  # type: ignore[misc]
        producers = [
            self.thread(lambda i=i: self.produce(f"p{i}", 100))  # type: ignore[misc]
            for i in range(self.THREADS)
        ]
        ends = time.monotonic() + 30.0
        while time.monotonic() < ends and not self.errors:
            await asyncio.sleep(0.02)
            left = await self.broker.snapshot()
            if not any(one.is_alive() for one in producers) and not left.depth + left.running:
                break
        self.stop.set()
        for one in (*producers, *workers):
            await asyncio.to_thread(one.join, 10.0)
            assert not one.is_alive()


async def test_verbs_from_the_loops_of_three_threads_lend_each_task_once_and_leave_none() -> None:
    stress = Stress()
    with quick_switches():
        await stress.run()

    assert stress.errors == []
    assert len(stress.sent) > 500
    assert stress.seen == dict.fromkeys(stress.sent, 1)
    assert stress.most["narrow"] <= 3
    assert max(stress.most["q/a"], stress.most["r/a"]) <= 2
    left = await stress.broker.snapshot()
    assert (left.depth, left.running, left.completed) == (0, 0, len(stress.sent))
    assert await stress.broker.audit() == []
    await stress.broker.close()
