"""Producers, workers, and somebody who kills them all the time: in the end the books must agree.

``FAIRLEAD_SOAK_SECONDS`` says for how long, ``FAIRLEAD_SEED`` repeats a run's misfortunes.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.argument_packing import unpack
from fairlead.model.events import Event
from tests.acceptance.harness import PASSING, Site, opened
from tests.support.checker import History
from tests.support.nemesis import Nemesis
from tests.support.proxy import proxy
from tests.support.servers import Running, server
from tests.support.worker_process import PATIENCE, environment_of, until

SECONDS = float(os.environ.get("FAIRLEAD_SOAK_SECONDS", "30"))
SEED = int(os.environ.get("FAIRLEAD_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
PRODUCERS = 4
ALWAYS = {"appendfsync": "always"}  # so that what was acknowledged is on the disk
HEALING = 60.0  # seconds for everything to become final
READABLE = 5_000  # results that are looked at: those that are kept

TASKS = """
@app.task(name="async")
async def asynchronous(ctx: Context, seconds: float) -> int:
    record("begin", ctx)
    await asyncio.sleep(seconds)
    record("end", ctx)
    return ctx.token


@app.task(name="thread")
def in_a_thread(ctx: Context, seconds: float) -> int:
    record("begin", ctx)
    time.sleep(seconds)
    record("end", ctx)
    return ctx.token


@app.task(name="process", isolation="process")
def in_a_process(ctx: Context, seconds: float) -> int:
    record("begin", ctx)
    time.sleep(seconds)
    record("end", ctx)
    return ctx.token
"""

# Writes down each id before it is enqueued and after it was acknowledged, until the stop file is
# there. What could not be reached is asked again with the same id.
PRODUCER = """
import os
import random
import sys
import time

from fairlead import Ambiguous, Fairlead, Refused, Unreachable

name, seed, stop, book = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
book = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
dice = random.Random(seed)
app = Fairlead(os.environ["TEST_URL"])


def work(seconds: float) -> int:
    raise NotImplementedError


kinds = {"async": 85, "thread": 12, "process": 3}  # how often each
tasks = {kind: app.task(name=kind)(work).using(tenant=name) for kind in kinds}


def note(what, id):
    os.write(book, f"{what} {id}\\n".encode())


number = 0
while not os.path.exists(stop):
    number += 1
    [kind] = dice.choices(list(kinds), list(kinds.values()))
    task, seconds = tasks[kind].using(id=f"{number}"), dice.uniform(0.0, 0.2)
    note("attempted", f"{name}:{number}")
    while True:
        try:
            handle = task.enqueue(seconds)
            break
        except (Unreachable, Ambiguous):
            time.sleep(0.05)
        except Refused as refused:
            if refused.cause not in os.environ["TEST_PASSING"].split():
                raise
            time.sleep(0.05)
    note("acknowledged", handle.id)
    time.sleep(0.02)
"""


class Producers:
    """Processes that enqueue, and their books."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._stop = folder / "stop"
        self._books = [folder / f"p{n}.book" for n in range(PRODUCERS)]
        (folder / "producer.py").write_text(PRODUCER, encoding="utf-8")
        environment = {
            **os.environ,
            **site.environment(),
            **environment_of("producer"),
            "TEST_PASSING": " ".join(PASSING),
        }
        self._processes = [
            subprocess.Popen(
                [sys.executable, "producer.py", f"p{n}", str(SEED + n), self._stop, book],
                cwd=folder,
                env=environment,
            )
            for n, book in enumerate(self._books)
        ]

    async def end(self) -> None:
        """Let them finish what they are about, and see that none of them failed."""
        self._stop.touch()
        await until(
            lambda: all(process.poll() is not None for process in self._processes),
            "the producers to end",
            2 * PATIENCE,
        )
        assert [process.returncode for process in self._processes] == [0] * PRODUCERS

    def ids(self, what: str) -> list[str]:
        lines = (line.split() for book in self._books for line in book.read_text().splitlines())
        return [id for verb, id in lines if verb == what]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(PATIENCE)


@contextlib.contextmanager
def producing(site: Site, folder: Path) -> Iterator[Producers]:
    made = Producers(site, folder)
    try:
        yield made
    finally:
        made.close()


async def history_of(site: Site, producers: Producers) -> History:
    """All that the three witnesses say."""
    history = History()
    for id in producers.ids("attempted"):
        history.attempted(id)
    for id in producers.ids("acknowledged"):
        history.acknowledged(id)
    history.read(site.stream.events)
    for record in site.records("end"):
        history.finished(record.id, record.token, record.at)
    ids = producers.ids("acknowledged")
    for start in range(0, min(len(ids), READABLE), 500):
        for found in await site.store.find(ids[start : start + 500]):
            if found is not None and found.result is not None:
                history.result(found.message.id, unpack(found.result))
    return history


async def describe(site: Site, ids: list[str]) -> None:
    """Print all that is known of tasks that do not end, and of the workers."""
    for id, found in zip(ids[:50], await site.store.find(ids[:50]), strict=True):
        print(f"{id}: {found}")
        print("  ", [(event.kind, event.at, event.token) for event in site.stream.tasks[id]])
        print("  ", [record for record in site.records() if record.id == id])
    for record in await site.app.aworkers():
        print(record)
    for worker in site.workers:
        print(f"{worker.name}: {worker.tree()}, children {worker.children()}\n{worker.text()}")


def leases(running: Running) -> list[str]:
    """Whatever says that somebody has borrowed a task: by incarnation, and when it ends."""
    holders = [key.decode() for key in running.admin("KEYS", "fl1:{0}:held:*")]
    return holders + [name.decode() for name in running.admin("ZRANGE", "fl1:{0}:leases", 0, -1)]


def dead(site: Site) -> list[Event]:
    return [event for event in site.stream.events if event.kind == "dead"]


@pytest.mark.long(35)
@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
async def test_nothing_is_lost_or_done_twice_while_everything_is_killed_all_the_time(
    tmp_path: Path,
) -> None:
    print(f"seed {SEED} (FAIRLEAD_SEED), {SECONDS:g} s (FAIRLEAD_SOAK_SECONDS)", flush=True)
    arguments = ("-c", "10", "--threads", "4", "--slots", "1", "--lease", "3", "--grace", "10")
    with server(aof=True, config=ALWAYS) as running:
        async with (
            proxy(path=running.path) as between,
            opened(running.url, tmp_path, TASKS) as site,
        ):
            site.workers_url = between.url
            workers = [site.worker(*arguments, "-p", str(n)) for n in (1, 1, 2)]
            for worker in workers:
                await worker.ready()
            nemesis = Nemesis(workers, running, between, seed=SEED)
            with producing(site, tmp_path) as producers:
                await until(lambda: bool(leases(running)), "a lease, to know how they look")
                await nemesis.rage(SECONDS)
                await nemesis.heal()
                await producers.end()
                waiting = set(producers.ids("acknowledged"))

                def final() -> bool:
                    waiting.difference_update([id for id in waiting if site.stream.final([id])])
                    return not waiting

                try:
                    await site.stream.until(final, "all that was acknowledged to end", HEALING)
                except AssertionError:
                    await describe(site, sorted(waiting))
                    raise
                # Whoever was killed held something, and all of it was given back and done.
                await until(
                    lambda: not leases(running),
                    lambda: f"no lease to be left: {leases(running)}",
                    HEALING,
                )
                snapshot = await site.store.snapshot()
                verdict = (await history_of(site, producers)).verdict()
            count = len(producers.ids("acknowledged"))
            print(
                f"{count} tasks, {dict(nemesis.done)}; "
                f"{len(verdict.duplicated)} ran more than once, {len(dead(site))} are dead; "
                f"events: {dict(site.stream.counts)}"
            )
            for name, found in verdict.defects.items():
                print(f"{name}: {len(found)}", *found[:20], sep="\n  ")
            assert verdict.defects == {}
            assert (snapshot.depth, snapshot.running) == (0, 0)
            assert nemesis.surprises == []
            # Whoever is dead was in three processes that were killed, one after the other.
            assert Counter(event.reason for event in dead(site)).keys() <= {"poison"}
            assert count > SECONDS * PRODUCERS
