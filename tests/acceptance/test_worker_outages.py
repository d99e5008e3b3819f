"""Workers that die while the server is away: what their handlers had finished still counts.

Outcomes are in the spool. Whoever comes after settles them if the leases are in force; if not, they
are fenced, and the tasks run once more. Never both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fairlead.spool import Kind, Rejection, Spool
from fairlead.spool.inspection import folders
from tests.acceptance.harness import Site, opened
from tests.acceptance.outage_harness import written
from tests.acceptance.test_crash import judged
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess, until

MANY = 4
LEASE = "15"  # seconds
LONG = "60"  # a lease that is in force after an outage also where everything takes its time


@pytest.fixture
def durable() -> Iterator[Running]:
    """A server that has its data when it comes back."""
    with server(aof=True, config={"appendfsync": "always"}) as running:
        yield running


def rejected_in(root: Path) -> int:
    """How many records the spools below a root have set aside."""
    return sum(folder.rejected for folder in folders(root))


def spooling(site: Site, *arguments: str, host: str = "here", children: int = 1) -> WorkerProcess:
    """A worker that keeps outcomes."""
    return site.worker(
        *("-c", "8", "-p", str(children), "--lease", LEASE, *arguments),
        host=host,
        FAIRLEAD_FALLBACK="spool",
        FAIRLEAD_SPOOL=str(site.folder / "spool"),
    )


async def ended_in_an_outage(site: Site, running: Running, seconds: float = 1.0) -> list[str]:
    """Tasks that ran to their ends after the server was killed; all of it is in the spool."""
    ids = await site.enqueue("nap", MANY, seconds)
    await site.recorded("begin", MANY)
    running.kill()
    await site.recorded("end", MANY)
    await until(lambda: kept(site, ids), "the outcomes to be in the spool")
    return ids


def told(worker: WorkerProcess, event: str) -> int:
    """Of how many outcomes the log tells this: the first in full, the others as a number."""
    more = [each for each in worker.log() if str(each.get("event")).startswith(f"{event}: ")]
    return len(worker.log(event)) + sum(int(each["count"]) for each in more)


def kept(site: Site, ids: Sequence[str]) -> bool:
    data = written(site.folder / "spool")
    return all(id.encode() in data for id in ids)


def begun(site: Site) -> Counter[str]:
    return Counter(record.id for record in site.records("begin"))


@pytest.mark.slow
async def test_the_outcomes_of_a_child_that_was_killed_in_an_outage_count(
    durable: Running, tmp_path: Path
) -> None:
    async with opened(durable.url, tmp_path) as site:
        worker = spooling(site, "--lease", LONG)
        [old] = await worker.ready()
        ids = await ended_in_an_outage(site, durable)
        worker.kill_child(old)
        await worker.logged("child died")
        durable.start()
        await site.stream.ended(ids)
        await worker.ready(but=[old])
        assert set(begun(site).values()) == {1}
        assert not site.stream.of(ids, "recovered", "fenced")
        assert judged(site, ids).verdict().clean
        [later] = await site.enqueue("nap", 1, 0.0)
        await site.stream.ended([later])


@pytest.mark.slow
@pytest.mark.parametrize("children", [1, 4])  # which all look for outcomes at once
async def test_the_outcomes_of_a_worker_that_was_killed_as_a_whole_in_an_outage_count(
    durable: Running, tmp_path: Path, children: int
) -> None:
    async with opened(durable.url, tmp_path) as site:
        worker = spooling(site, "--lease", LONG)
        await worker.ready()
        ids = await ended_in_an_outage(site, durable)
        worker.kill_tree()
        durable.start()
        fresh = spooling(site, "--lease", LONG, children=children)
        await site.stream.ended(ids)
        await fresh.ready()
        assert set(begun(site).values()) == {1}
        assert judged(site, ids).verdict().clean
        assert told(fresh, "outcome of a worker that is gone settled") == MANY


@pytest.mark.slow
async def test_outcomes_whose_leases_were_ended_meanwhile_are_fenced_and_the_tasks_run_once_more(
    durable: Running, tmp_path: Path
) -> None:
    async with opened(durable.url, tmp_path) as site:
        worker = spooling(site)
        [child] = await worker.ready()
        who = await site.registered(child)
        ids = await ended_in_an_outage(site, durable)
        worker.kill_tree()
        durable.start()
        await site.store.give_back(who.incarnation)  # as the sweep does when the leases are over
        fresh = spooling(site)
        await site.stream.ended(ids)
        await until(lambda: told(fresh, "outcome fenced") == MANY, "the outcomes to be fenced")
        assert set(begun(site).values()) == {2}
        verdict = judged(site, ids).verdict()
        assert verdict.clean, verdict.defects
        await until(lambda: not kept(site, ids), "the spool to be empty")


@pytest.mark.slow
@pytest.mark.long(40)
async def test_an_outage_longer_than_the_lease_ends_handlers_and_never_counts_both(
    durable: Running, tmp_path: Path
) -> None:
    async with opened(durable.url, tmp_path) as site:
        worker = spooling(site, "--lease", "6")
        await worker.ready()
        short = await site.enqueue("nap", MANY, 2.0)
        long = await site.enqueue("nap", MANY, 60.0, 0.1)
        await site.recorded("begin", 2 * MANY)
        durable.kill()
        await site.recorded("end", MANY)
        await worker.logged("leases could not be kept: what runs is handed back")
        await asyncio.sleep(3.0)  # the leases are over
        durable.start()
        await site.stream.ended(short, 60.0)
        # Released, so the attempt is not used up: it takes its minute again. Nobody waits for that.
        await until(
            lambda: all(begun(site)[id] == 2 for id in long), "the others to begin again", 40.0
        )
        assert all(begun(site)[id] == 1 for id in short)
        await site.app.apurge()
        history = judged(site, short)
        for id in long:
            history.attempted(id)
            history.acknowledged(id)
            history.known(id)
        verdict = history.verdict()
        assert verdict.clean, verdict.defects
        records = await site.found(long)
        assert all(record.attempts == 0 for record in records)


@pytest.mark.slow
async def test_outcomes_that_an_emptied_server_does_not_know_are_kept_to_be_seen(
    tmp_path: Path,
) -> None:
    with server() as volatile:
        site = Site(volatile.url, tmp_path, "")
        try:
            worker = spooling(site)
            await worker.ready()
            ids = await ended_in_an_outage(site, volatile)
            volatile.start()  # without its data
            await until(
                lambda: len(worker.log("outcome fenced", answer="unknown")) == MANY,
                "the outcomes to be unknown",
            )
            # They are logged before they are on the disk.
            await until(lambda: rejected_in(tmp_path / "spool") == MANY, "them to be kept")
            worker.kill_tree()
        finally:
            for each in site.workers:
                each.close()
            await site.store.close()
        spool = Spool.open(tmp_path / "spool")
        spool.adopt(any_broker=True)
        left = [Rejection.decode(record.payload) for record in spool.rejected()]
        assert [(each.code, each.kind) for each in left] == [("unknown_task", Kind.OUTCOME)] * MANY
        assert all(any(id.encode() in each.payload for each in left) for id in ids)
        assert spool.depth == 0
        spool.close()


@pytest.mark.slow
@pytest.mark.long(60)
async def test_outages_and_kills_at_random_moments_never_count_an_outcome_twice(
    durable: Running, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.randrange(1, 1_000_000)
    dice = random.Random(seed)
    async with opened(durable.url, tmp_path) as site:
        workers = [spooling(site, "--lease", "5") for _ in range(2)]
        for worker in workers:
            await worker.ready()
        ids: list[str] = []
        for _ in range(8):
            ids += await site.enqueue("nap", 12, 0.3)
            await asyncio.sleep(dice.uniform(0.0, 0.6))
            durable.kill()
            await asyncio.sleep(dice.uniform(0.1, 1.5))
            if dice.random() < 0.5:
                worker = dice.choice(workers)
                with contextlib.suppress(IndexError, ProcessLookupError):
                    worker.kill_child()
            elif dice.random() < 0.5:
                worker = workers.pop(dice.randrange(2))
                worker.kill_tree()
                workers.append(spooling(site, "--lease", "5"))
            await asyncio.sleep(dice.uniform(0.0, 0.5))
            durable.start()
            await asyncio.sleep(dice.uniform(0.0, 1.0))
        await site.stream.ended(ids, 60.0)
        verdict = judged(site, ids).verdict()
        assert verdict.clean, (seed, verdict.defects)
        await until(lambda: not kept(site, ids), "the spool to be empty", 60.0)
