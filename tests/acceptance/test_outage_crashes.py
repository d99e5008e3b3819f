"""Producers, workers and servers that die around an outage: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fairlead import Fairlead
from tests.acceptance.harness import Site
from tests.acceptance.outage_harness import (
    DURABLE,
    Producer,
    arrived,
    flap,
    judged,
    producing,
    runs,
    spool_command,
    spooling_site,
)
from tests.support.proxy import proxy
from tests.support.servers import Running, sentinels, server
from tests.support.worker_process import until

SEED = int(os.environ.get("FAIRLEAD_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
BACK = 30.0  # seconds for everything to arrive, and to end

DECLARED = """
@app.schedule(every="1s", name="beat")
@app.task(name="beat")
async def beat(ctx: Context) -> None:
    record("beat", ctx)


app.declare_tenant("default", weight=3)
"""


@pytest.fixture
def running() -> Iterator[Running]:
    with server(aof=True, config=DURABLE) as made:
        yield made


def once(site: Site, producers: list[Producer], ids: list[str] | None = None) -> None:
    """All that was acknowledged, or these, ran once, and the books agree."""
    verdict = judged(site, producers)
    for name, found in verdict.defects.items():
        print(f"{name}: {len(found)}", *found[:20], sep="\n  ")
    assert verdict.defects == {}
    counted = runs(site)
    wanted = ids if ids is not None else [id for p in producers for id in p.ids()]
    assert {id: counted[id] for id in wanted if counted[id] != 1} == {}


async def all_ended(site: Site, producers: list[Producer], seconds: float = BACK) -> None:
    ids = [id for producer in producers for id in producer.ids()]
    assert ids
    await site.stream.ended(ids, seconds)


# -- replies that are lost ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("then", ["away", "there"])
async def test_a_call_whose_reply_is_lost_makes_one_task(
    running: Running, tmp_path: Path, then: str
) -> None:
    """The broker has carried it out, and the program cannot know."""
    async with (
        spooling_site(running, tmp_path) as site,
        proxy(path=running.path) as between,
    ):
        app = Fairlead(between.url, fallback="spool", spool=tmp_path / "spool")
        nap = app.task(name="nap")(_elsewhere)
        await app.asnapshot()
        handles = [await nap.aenqueue(0.0)]
        assert handles[0].durability == "committed"
        for number in range(2):
            fault = (between.cut_reply if number % 2 else between.drop_reply)(1)
            calling = asyncio.create_task(nap.aenqueue(0.0))
            await asyncio.wait_for(fault.happened.wait(), 10.0)
            if then == "away":
                await between.refuse()
                between.cut()
            handles.append(await calling)
            if then == "away":
                assert handles[-1].durability == "spooled"
                await between.accept()
                deadline = time.monotonic() + BACK
                while await handles[-1].astate() == "spooled":
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.02)
        ids = [handle.id for handle in handles]
        site.worker("-c", "5", "-p", "1")
        await site.stream.ended(ids)
        for id in ids:
            assert site.stream.kinds(id) == ["enqueued", "started", "completed"]
        assert await site.store.snapshot() is not None
        assert site.stream.counts["enqueued"] == 3
        await app.aclose()


async def test_a_call_whose_reply_is_lost_makes_one_task_even_if_that_is_done_and_forgotten(
    running: Running, tmp_path: Path
) -> None:
    """A worker that reaches the broker runs it while the producer does not."""
    async with (
        spooling_site(running, tmp_path) as site,
        proxy(path=running.path) as between,
    ):
        worker = site.worker("-c", "5", "-p", "1")
        await worker.ready()
        app = Fairlead(between.url, fallback="spool", spool=tmp_path / "spool")
        nap = app.task(name="nap")(_elsewhere).using(retention=0)
        await app.asnapshot()
        await nap.aenqueue(0.0)
        fault = between.drop_reply(1)
        calling = asyncio.create_task(nap.using(id="lost").aenqueue(0.0))
        await asyncio.wait_for(fault.happened.wait(), 10.0)
        await between.refuse()
        between.cut()
        handle = await calling
        assert handle.durability == "spooled"
        await site.recorded("end", 2)
        await until(lambda: "completed" in site.stream.kinds(handle.id), "its end")
        await between.accept()
        deadline = time.monotonic() + BACK
        while (await app.asnapshot()).spooled:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        after = await nap.aenqueue(0.0)
        await until(lambda: runs(site)[after.id] == 1, "a task behind it")
        assert runs(site)[handle.id] == 1
        await app.aclose()


# -- producers that are killed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kills", "count"),
    [
        pytest.param(2, 200, id="some", marks=pytest.mark.slow),
        pytest.param(
            *(12, 3600),
            id="many",
            marks=[pytest.mark.slow, pytest.mark.long(60), pytest.mark.timeout(300)],
        ),
    ],
)
async def test_a_producer_that_is_killed_while_it_drains_loses_nothing_and_doubles_nothing(
    running: Running, tmp_path: Path, kills: int, count: int
) -> None:
    dice = random.Random(SEED)
    print(f"seed {SEED} (FAIRLEAD_SEED)")
    async with (
        spooling_site(running, tmp_path) as site,
        proxy(path=running.path) as between,
    ):
        site.worker("-c", "20", "-p", "1")
        running.kill()
        async with producing(tmp_path, between.url, "p") as [producer]:
            said = await producer.enqueue(count, tenant="p")
            assert said == {"spooled": count}
            await asyncio.to_thread(running.start)
            for number in range(kills):
                if number % 2:
                    # Right after the broker did something for it, before it hears of it.
                    fault = between.drop_reply(dice.randrange(1, 12))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(fault.happened.wait(), 4.0)
                else:
                    await asyncio.sleep(dice.uniform(0.0, 1.5))
                producer.kill()
                await producer.start()
                await producer.enqueue(1, tenant="p")
            await all_ended(site, [producer], 4 * BACK)
            assert len(producer.ids()) == count + kills
            once(site, [producer])


def has_acknowledged(producer: Producer, count: int) -> bool:
    return len(producer.ids("spooled")) >= count


@pytest.mark.slow
async def test_a_producer_that_is_killed_while_it_appends_keeps_what_it_acknowledged(
    running: Running, tmp_path: Path
) -> None:
    dice = random.Random(SEED)
    async with spooling_site(running, tmp_path) as site:
        running.kill()
        async with producing(tmp_path, running.url, "p") as [producer]:
            for _ in range(8):
                more = len(producer.ids("spooled")) + 20
                producer.tell("enqueue", count=100_000, args=[0.0])
                await until(partial(has_acknowledged, producer, more), "tasks to be acknowledged")
                await asyncio.sleep(dice.uniform(0.0, 0.05))
                producer.kill()
                await producer.start()
            print(f"{len(producer.ids('spooled'))} acknowledged")
            assert len(producer.ids("spooled")) > 100
            await asyncio.to_thread(running.start)
            site.worker("-c", "20", "-p", "1")
            await producer.enqueue(1)
            await all_ended(site, [producer], 4 * BACK)
            once(site, [producer])


@pytest.mark.slow
async def test_who_lives_sends_what_a_dead_neighbor_had_in_the_same_directory(
    running: Running, tmp_path: Path
) -> None:
    async with spooling_site(running, tmp_path) as site:
        site.worker("-c", "20", "-p", "1")
        running.kill()
        async with producing(tmp_path, running.url, "a", "b") as producers:
            one, other = producers
            assert await one.enqueue(100) == {"spooled": 100}
            assert await other.enqueue(100) == {"spooled": 100}
            # Each has its own: one that lives is not robbed.
            code, _ = await spool_command(one.spool, running.url, "drain")
            assert code == 0
            code, said = await spool_command(one.spool, running.url, "list", "--json")
            spools = json.loads(said)["spools"]
            assert sorted((each["pid"], each["lives"], each["depth"]) for each in spools) == [
                (pid, True, 100) for pid in sorted((one.pid, other.pid))
            ]
            one.kill()
            await asyncio.to_thread(running.start)
            await all_ended(site, producers)
            once(site, producers)
            await other.commit(1)


# -- disks that are full or broken ----------------------------------------------------------------


@pytest.mark.slow
async def test_a_full_disk_refuses_and_loses_nothing_that_was_acknowledged(
    running: Running, tmp_path: Path
) -> None:
    async with spooling_site(running, tmp_path) as site:
        running.kill()
        async with producing(tmp_path, running.url, "p") as [producer]:
            first = await producer.enqueue(50)
            assert first == {"spooled": 50}
            await producer.ask("limit", bytes=100_000)  # its book does not become as large
            said = await producer.enqueue(400, 0.0, correlation_id="x" * 250)
            assert set(said) <= {"spooled", "SpoolFull", "SpoolFailed"}
            assert said.get("SpoolFailed", 0) + said.get("SpoolFull", 0) > 0
            await producer.ask("limit", bytes=0)
            again = await producer.enqueue(10)  # there is room again
            assert again == {"spooled": 10}
            producer.kill()
            await asyncio.to_thread(running.start)
            await producer.start()
            await producer.enqueue(1)
            site.worker("-c", "20", "-p", "1")
            await all_ended(site, [producer])
            once(site, [producer])
            refused = set(producer.ids("SpoolFailed", "SpoolFull"))
            assert refused & set(runs(site)) == set()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
async def test_what_could_not_be_made_durable_is_refused(
    running: Running, tmp_path: Path, error: str
) -> None:
    inject = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync")
    fault = ("-e", f"inject=fdatasync:error={error}:when=5+7")
    async with spooling_site(running, tmp_path) as site:
        running.kill()
        producer = Producer(tmp_path, running.url)
        try:
            await producer.start((*inject, *fault))
            for _ in range(20):
                await producer.enqueue(3)
            refused = producer.ids("SpoolFailed")
            assert refused
            assert len(producer.ids("spooled")) + len(refused) == 60
            await producer.close()
        finally:
            producer.kill()
        await asyncio.to_thread(running.start)
        try:
            await producer.start()
            await producer.enqueue(1)
            site.worker("-c", "20", "-p", "1")
            await all_ended(site, [producer])
            once(site, [producer])
            assert set(refused) & set(runs(site)) == set()
        finally:
            producer.kill()


# -- servers that come and go ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "periods", "rate"),
    [
        pytest.param(2.5, (0.1, 0.8), 40, id="shortly"),
        pytest.param(6.0, (0.1, 1.5), 40, id="for some seconds", marks=pytest.mark.slow),
        pytest.param(
            60.0,
            (0.1, 5.0),
            100,
            id="for a minute",
            marks=[pytest.mark.slow, pytest.mark.long(90), pytest.mark.timeout(300)],
        ),
    ],
)
async def test_a_server_that_comes_and_goes_loses_nothing_doubles_nothing_and_starts_no_storm(
    running: Running,
    tmp_path: Path,
    seconds: float,
    periods: tuple[float, float],
    rate: int,
) -> None:
    print(f"seed {SEED} (FAIRLEAD_SEED)")
    async with (
        spooling_site(running, tmp_path) as site,
        proxy(path=running.path) as between,
    ):
        site.workers_url = between.url
        worker = site.worker("-c", "20", "-p", "1")
        await worker.ready()
        async with producing(tmp_path, between.url, "p", "q") as producers:
            for producer in producers:
                await producer.ask("load", rate=rate / 2, args=[0.01])
            connections = between.connections
            times = await flap(running, seconds, random.Random(SEED), periods)
            connections = between.connections - connections
            for producer in producers:
                await producer.ask("rest")
            await all_ended(site, producers, 2 * BACK)
            said = [
                (len(producer.log()), sum(map(_is_change, producer.log())))
                for producer in producers
            ]
            took = max(line.seconds for p in producers for line in p.lines())
            refused = [line for p in producers for line in p.lines() if line.what[0].isupper()]
            print(
                f"{times} times away, {sum(len(p.ids()) for p in producers)} tasks, "
                f"{sum(len(p.ids('spooled')) for p in producers)} of them spooled; "
                f"{connections} connections; lines and changes of each producer: {said}; "
                f"the slowest call took {took:.3f} s"
            )
            once(site, producers)
            assert refused == []
            assert sum(len(p.ids()) for p in producers) > 0.8 * rate * seconds
            for lines, changes in said:
                assert changes <= 4 * (times + 1)
                assert lines <= 8 * (times + 1)
            assert connections <= 30 * (seconds + 1)
            assert took < 5.0  # a broker that relapses by silence is given up to four seconds


def _is_change(entry: dict[str, object]) -> bool:
    words = str(entry.get("event", "")) + str(entry.get("state", ""))
    return any(state in words for state in ("suspect", "spooling", "draining", "healthy"))


@pytest.mark.slow
async def test_an_emptied_server_has_all_again_that_was_acknowledged_lately(
    tmp_path: Path,
) -> None:
    """It keeps nothing on disk, so that a kill empties it."""
    with server() as running:
        site = Site(running.url, tmp_path, "")
        async with producing(tmp_path, running.url, "p") as [producer]:
            try:
                await producer.commit(200, tenant="p")
                running.kill()
                assert await producer.enqueue(100, tenant="p") == {"spooled": 100}
                await asyncio.to_thread(running.start)
                await arrived(site, producer.ids(), BACK)
                # Emptied while nobody was looking, with no outage at all.
                running.admin("FLUSHALL")
                await producer.enqueue(10, tenant="p")
                await arrived(site, producer.ids(), BACK)
                await all_run_once(site, producer.ids())
            finally:
                for worker in site.workers:
                    worker.close()
                await site.store.close()


@pytest.mark.slow
async def test_a_server_that_lost_its_last_writes_has_them_again_and_does_nothing_twice(
    tmp_path: Path,
) -> None:
    """It comes back with what it had saved before, as a replica that was behind would."""
    with server() as running:
        site = Site(running.url, tmp_path, "")
        async with producing(tmp_path, running.url, "p") as [producer]:
            try:
                worker = site.worker("-c", "20", "-p", "1")
                await worker.ready()
                await producer.commit(50)
                count = len(producer.ids())
                await site.recorded("end", count)
                await site.eventually(
                    lambda workers: [each for each in workers if not each.running],
                    "the outcomes to be stored",
                )
                worker.kill_tree()
                running.admin("SAVE")
                await producer.commit(50)
                await asyncio.to_thread(running.restart)
                await producer.enqueue(1)
                await arrived(site, producer.ids()[count:], BACK)
                worker.start()
                await until(
                    lambda: len(runs(site)) >= len(producer.ids()),
                    lambda: f"all to run; {len(runs(site))} did",
                    BACK,
                )
                assert set(runs(site)) == set(producer.ids())
                assert set(runs(site).values()) == {1}
            finally:
                for worker in site.workers:
                    worker.close()
                await site.store.close()


@pytest.mark.slow
async def test_a_failover_to_a_replica_that_was_behind_loses_nothing(tmp_path: Path) -> None:
    with sentinels() as watched:
        site = Site(watched.url, tmp_path, "")
        async with producing(tmp_path, watched.url, "p") as [producer]:
            try:
                await producer.commit(20)
                await asyncio.to_thread(_wait_for_replica, watched.primary)
                watched.replica.pause()
                watched.primary.admin("CLIENT", "KILL", "TYPE", "replica")  # it hears no more
                await producer.commit(50)
                await asyncio.to_thread(watched.primary.kill)
                watched.replica.resume()
                await producer.enqueue(10)
                await until(
                    lambda: watched.replica.admin("ROLE")[0] == b"master", "the failover", BACK
                )
                await arrived(site, producer.ids(), BACK)
                await all_run_once(site, producer.ids())
            finally:
                for worker in site.workers:
                    worker.close()
                await site.store.close()


async def all_run_once(site: Site, ids: list[str]) -> None:
    """Start a worker and see that it runs each of these, and nothing else, once."""
    worker = site.worker("-c", "20", "-p", "1")
    await worker.ready()
    await until(
        lambda: len(runs(site)) >= len(ids), lambda: f"all to run; {len(runs(site))} did", BACK
    )
    assert runs(site) == dict.fromkeys(ids, 1)


def _wait_for_replica(primary: Running) -> None:
    assert primary.admin("WAIT", 1, 10_000) == 1


@pytest.mark.slow
async def test_what_is_declared_in_code_is_declared_again_on_an_emptied_server(
    tmp_path: Path,
) -> None:
    with server() as running:
        site = Site(running.url, tmp_path, DECLARED)
        try:
            worker = site.worker("-c", "5", "-p", "1")
            [child] = await worker.ready()
            await site.recorded("beat", 2)
            await asyncio.to_thread(running.restart)
            back = time.time()
            await until(
                lambda: any(record.at > back + 1.5 for record in site.records("beat")),
                "a beat on the emptied server",
                BACK,
            )
            assert worker.children() == [child]
            stats = await site.app.astats(tenants=True)
            assert stats.tenants["default"]["default"].weight == 3.0
        finally:
            for worker in site.workers:
                worker.close()
            await site.store.close()


def _elsewhere(first: float) -> int:
    raise NotImplementedError
