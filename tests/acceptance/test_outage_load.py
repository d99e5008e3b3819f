"""Outages under load: callers go on, what they were promised is done, and nobody is trampled.

The figures are printed: ``FAIRLEAD_LOAD=1 pytest -s tests/acceptance/test_outage_load.py``. On a
machine that is too slow for the rate that is asked for, ``FAIRLEAD_LOAD=0.25`` asks for a quarter.
``FAIRLEAD_LOAD_TASKS=1000000`` has twenty producers with so many tasks recover together, not eight.

Workers that catch up keep server and cores busy, drain or not. So the first test makes them do that
before the outage, with a backlog that nobody drains: what calls take then is what the drain is
judged by, wherever that is more than the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.acceptance.harness import Record, Site
from tests.acceptance.outage_harness import Line, Producer, percentile, producing
from tests.support.servers import Running, server

PROBES = 50  # tasks a second of the tenant that has little to do
AWAY = 0.020  # seconds, the p99 of calls while there is no server
LONG = 0.005  # seconds: a sync or a turn of the loop that explains why a call took long
LIMIT = 0.050  # seconds, the p99 of new calls beside a drain
BESIDE = 1.25  # times what they take while workers catch up without one, where that is more
CAUGHT_UP = 500  # tasks that are open then, of 2,000 a second

SHARE = float(os.environ.get("FAIRLEAD_LOAD") or 1)  # of 2,000 tasks a second
SPOOLED = int(os.environ.get("FAIRLEAD_LOAD_TASKS") or 40_000)  # tasks of producers that recover
MANY = 8 if SPOOLED <= 40_000 else 20  # producers
SENT = 150.0 + SPOOLED / 1_000  # seconds that they may take, and workers after them

# They take both cores for a minute, so that nothing beside them can be measured, nor can they.
alone = pytest.mark.skipif(
    not os.environ.get("FAIRLEAD_LOAD"), reason="takes the whole machine: FAIRLEAD_LOAD=1 runs it"
)


class Ended:
    """What workers have done so far, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.when: dict[str, float] = {}
        self.times: Counter[str] = Counter()
        self._file, self._read = folder / "records", 0
        self._decoder = msgspec.json.Decoder(Record)

    def look(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        end = fresh.rfind(b"\n") + 1
        self._read += end
        for line in fresh[:end].splitlines():
            record = self._decoder.decode(line)
            if record.what == "end":
                self.when.setdefault(record.id, record.at)
                self.times[record.id] += 1

    def has(self, ids: set[str]) -> bool:
        """Whether all of these have ended; those that have leave the set."""
        self.look()
        ids.difference_update(self.when)
        return not ids


async def done(ended: Ended, ids: set[str], seconds: float) -> None:
    """Wait until all of these have ended; seldom looking, because that takes from the others."""
    deadline, count = time.monotonic() + seconds, len(ids)
    while not ended.has(ids):
        assert time.monotonic() < deadline, f"{len(ids)} of {count} tasks did not end"
        await asyncio.sleep(0.5)


async def drained(producers: Iterable[Producer], seconds: float) -> float:
    """Wait until their spools are empty; when they were."""
    deadline = time.monotonic() + seconds
    for producer in producers:
        while left := (await producer.ask("spooled"))["spooled"]:
            assert time.monotonic() < deadline, f"{producer.name} has {left} in its spool"
            await asyncio.sleep(0.5)
    return time.time()


@contextlib.asynccontextmanager
async def working(running: Running, folder: Path, processes: int = 1) -> AsyncIterator[Site]:
    """A site with workers and without anybody who reads all events: that costs too much here."""
    site = Site(running.url, folder, "")
    try:
        worker = site.worker(
            "-c",
            "100",
            "-p",
            str(processes),
            wrapper=("nice", "-n", "10"),  # elsewhere they would be on machines of their own
            FAIRLEAD_FALLBACK="spool",
            FAIRLEAD_SPOOL=str(folder / "worker-spool"),
        )
        await worker.ready()
        give_way(worker.below(worker.pid))
        yield site
    finally:
        for worker in site.workers:
            worker.close()
        await site.store.close()


def give_way(pids: Iterable[int]) -> None:
    """Let others go first where the system shares the cores among sessions.

    A worker is a session of its own. There, how nice it is says nothing to the others.
    """
    with contextlib.suppress(OSError):  # there are no such groups, or a process is gone
        for pid in pids:
            Path(f"/proc/{pid}/autogroup").write_text("10")


async def caught_up(ended: Ended, producers: Sequence[Producer], seconds: float) -> float:
    """Wait until workers have done nearly all that there is, or for so long; when that was."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        ended.look()
        if len(acknowledged(producers)) - len(ended.when) < CAUGHT_UP:
            break
    return time.time()


class Cores:
    """How much of a core processes use, since the last look."""

    def __init__(self, **pids: Sequence[int]) -> None:
        self._pids = pids
        self._used, self._at = self._look(), time.monotonic()

    def look(self) -> str:
        used, at = self._look(), time.monotonic()
        passed, before = at - self._at, self._used
        self._used, self._at = used, at
        each = (f"{name} {(used[name] - before[name]) / passed:.2f}" for name in used)
        return "cores: " + ", ".join(each)

    def _look(self) -> dict[str, float]:
        return {name: sum(map(_seconds, pids)) for name, pids in self._pids.items()}


def _seconds(pid: int) -> float:
    """The processor time of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def acknowledged(producers: Iterable[Producer], *what: str) -> set[str]:
    return {id for producer in producers for id in producer.ids(*what)}


def between(producers: Iterable[Producer], start: float, end: float, *what: str) -> list[Line]:
    """The calls that began in this time, and how they went."""
    return [
        line
        for producer in producers
        for line in producer.lines(*what)
        if line.what != "attempted" and start <= line.began < end
    ]


def waits(producers: Iterable[Producer], what: str, start: float, end: float) -> list[Line]:
    """What the producers waited for in this time: ``disk`` or ``loop``."""
    lines = (line for producer in producers for line in producer.times(what))
    return [line for line in lines if start <= line.began < end]


def shares(slow: Iterable[Line], producer: Producer) -> dict[str, float]:
    """For how much of the time of slow calls the disk had a long sync, and the loop was late."""
    found = {"calls": sum(line.seconds for line in slow)}
    for what in ("disk", "loop"):
        long = [line for line in producer.times(what) if line.seconds > LONG]
        found[what] = sum(
            max(min(call.at, each.at) - max(call.began, each.began), 0.0)
            for call in slow
            for each in long
        )
    return found


def slowest(producers: Iterable[Producer], start: float, end: float) -> str:
    """Where the calls of an outage were that took too long, and what they waited for."""
    total: Counter[str] = Counter()
    moments: Counter[int] = Counter()
    for producer in producers:
        slow = [
            line
            for line in between([producer], start, end, "committed", "spooled")
            if line.seconds > AWAY
        ]
        total.update(shares(slow, producer))
        moments.update(int(line.began - start) for line in slow)
    if not moments:
        return f"no call took more than {AWAY * 1000:.0f} ms"
    seconds = ", ".join(f"{count} in second {each}" for each, count in sorted(moments.items()))
    return (
        f"{moments.total()} calls over {AWAY * 1000:.0f} ms: {seconds}; of their time the disk had "
        f"a long sync for {total['disk'] / total['calls']:.2f}, "
        f"the loop was late for {total['loop'] / total['calls']:.2f}"
    )


def milliseconds(lines: Iterable[Line]) -> str:
    took = [line.seconds * 1000 for line in lines]
    if not took:
        return "none"
    marks = ", ".join(f"p{share:g} {percentile(took, share):.1f}" for share in (50, 99, 99.9))
    return f"{len(took)} calls, ms: {marks}, max {max(took):.1f}"


def skip_if_busy(before: Iterable[Line]) -> None:
    """Judge no times on a machine that has none left while all is well."""
    took = percentile((line.seconds for line in before), 99)
    if took > 0.020:
        pytest.skip(f"the machine is too busy: p99 of {took * 1000:.0f} ms before the outage")


def starts(probe: Producer, ended: Ended, start: float, end: float) -> list[float]:
    """How long tasks of the tenant with little to do waited for a worker, in seconds."""
    return [
        ended.when[line.id] - line.at
        for line in between([probe], start, end, "committed")
        if line.id in ended.when
    ]


@pytest.mark.long(9)
@pytest.mark.slow
async def test_all_that_was_acknowledged_around_an_outage_under_load_is_done_once(
    tmp_path: Path,
) -> None:
    ended = Ended(tmp_path)
    with server(aof=True) as running:
        async with (
            working(running, tmp_path),
            producing(tmp_path, running.url, "a", "b") as producers,
        ):
            for producer in producers:
                await producer.ask("load", rate=75, options={"tenant": producer.name})
            await asyncio.sleep(0.5)
            await asyncio.to_thread(running.kill)
            await asyncio.sleep(3.0)
            await asyncio.to_thread(running.start)
            await asyncio.sleep(0.5)
            for producer in producers:
                await producer.ask("rest")
            waiting = acknowledged(producers)
            assert len(waiting) > 400
            assert len(acknowledged(producers, "spooled")) > 200
            await done(ended, waiting, 30.0)
            assert set(ended.times.values()) == {1}
            assert [p.ids("attempted") == [] for p in producers] == [False, False]
            for producer in producers:
                assert len(producer.ids("attempted")) == len(producer.ids())


@alone
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.long(150)
@pytest.mark.timeout(500)
async def test_callers_go_on_through_twenty_seconds_without_a_server_at_2000_tasks_a_second(
    tmp_path: Path,
) -> None:
    ended = Ended(tmp_path)
    with server(aof=True) as running:
        async with (
            working(running, tmp_path, processes=2) as site,
            producing(tmp_path, running.url, "a", "b", "c", "d") as producers,
            producing(tmp_path / "probe", running.url, "light") as [probe],
        ):
            began = time.time()
            for producer in producers:
                await producer.ask("load", rate=500 * SHARE, options={"tenant": producer.name})
            await asyncio.sleep(4.0)
            [worker] = site.workers
            parts = {
                "producers": [each.pid for each in producers],
                "workers": worker.below(worker.pid),
            }
            cores = Cores(server=[running.pid], **parts)
            worker.signal(signal.SIGTSTP)
            resting = time.time()
            await asyncio.sleep(10.0)
            worker.signal(signal.SIGCONT)
            cores.look()
            awake = time.time()
            caught = await caught_up(ended, producers, 40.0)
            catching_up = cores.look()
            await asyncio.sleep(2.0)
            gone = time.time()
            await asyncio.to_thread(running.kill)
            await asyncio.sleep(20.0)
            await asyncio.to_thread(running.start)
            back = time.time()
            cores = Cores(server=[running.pid], **parts)
            await probe.ask("load", rate=PROBES, options={"tenant": "light"})
            await asyncio.sleep(1.0)
            empty = await drained(producers, 200.0)
            draining = cores.look()
            await asyncio.gather(*(each.ask("rest") for each in (*producers, probe)))
            waiting = acknowledged((*producers, probe))
            count = len(waiting)
            await done(ended, waiting, 200.0)
            light = starts(probe, ended, back, empty)
            away = between(producers, gone, back, "committed", "spooled")
            new = between(producers, back, empty, "committed")
            before = between(producers, began + 1, resting, "committed")
            control = between(producers, awake, caught, "committed")
            refused = [line for line in between(producers, began, empty) if line.what[0].isupper()]
            print(
                f"\n{count} tasks, {len(acknowledged(producers, 'spooled'))} spooled, "
                f"sent {empty - back:.1f} s after the return, done after {time.time() - back:.1f} s"
                f"\nbefore   {milliseconds(before)}"
                f"\ncontrol  {milliseconds(control)} (no drain, workers catch up, "
                f"{caught - awake:.1f} s; {catching_up})"
                f"\naway     {milliseconds(away)}"
                f"\n  disk   {milliseconds(waits(producers, 'disk', gone, back))} (each sync)"
                f"\n  loop   {milliseconds(waits(producers, 'loop', gone, back))} (late by that)"
                f"\n         {slowest(producers, gone, back)}"
                f"\ndraining {milliseconds(new)} (new ones; {draining})"
                f"\n         {milliseconds(between(producers, back, empty, 'spooled'))} (spooled)"
                f"\nprobe    {milliseconds(between([probe], back, empty, 'committed'))}"
                f"\na light tenant's tasks start after p50 {percentile(light, 50):.3f}, "
                f"p99 {percentile(light, 99):.3f} s"
                f"\nrefused {Counter(line.what for line in refused)}"
            )
            assert refused == []
            assert set(ended.times.values()) == {1}
            skip_if_busy(before)
            assert percentile(light, 99) < 1.0
            assert percentile((line.seconds for line in away), 99) < AWAY
            beside = percentile((line.seconds for line in control), 99)
            limit = LIMIT if beside < LIMIT else beside * BESIDE
            assert percentile((line.seconds for line in new), 99) < limit


@alone
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.long(120)
@pytest.mark.timeout(400 + 2 * SENT)
async def test_many_producers_that_recover_together_leave_room_for_others(tmp_path: Path) -> None:
    names, each = [f"p{n}" for n in range(MANY)], SPOOLED // MANY
    ended = Ended(tmp_path)
    with server(aof=True) as running:
        async with (
            working(running, tmp_path),
            producing(tmp_path, running.url, *names) as producers,
        ):
            async with producing(tmp_path / "before", running.url, "light") as [probe]:
                began = time.time()
                await probe.ask("load", rate=PROBES, options={"tenant": "light"})
                await asyncio.sleep(3.0)
                await probe.ask("rest")
                quiet = between([probe], began + 0.5, time.time())
            await asyncio.to_thread(running.kill)
            said = await asyncio.gather(*(p.enqueue(each, tenant=p.name) for p in producers))
            assert said == [{"spooled": each}] * len(names)
            await asyncio.to_thread(running.start)
            back = time.time()
            # Another program, which was not there during the outage.
            async with producing(tmp_path / "other", running.url, "light") as [probe]:
                await probe.ask("load", rate=PROBES, options={"tenant": "light"})
                await asyncio.sleep(1.0)
                empty = await drained(producers, SENT)
                await probe.ask("rest")
                await done(ended, acknowledged([*producers, probe]), SENT)
                over = time.time()
            calls = between([probe], back, empty)
            light = starts(probe, ended, back, empty)
            print(
                f"\n{each * len(names)} tasks are sent {empty - back:.1f} s after the return, "
                f"done after {over - back:.1f} s"
                f"\nbefore {milliseconds(quiet)}"
                f"\nprobe  {milliseconds(calls)}"
                f"\na light tenant's tasks start after p50 {percentile(light, 50):.3f}, "
                f"p99 {percentile(light, 99):.3f}, max {max(light):.3f} s"
            )
            assert {line.what for line in calls} == {"committed"}
            assert set(ended.times.values()) == {1}
            assert percentile(light, 99) < 1.0
            skip_if_busy(quiet)
            assert percentile((line.seconds for line in calls), 99) < 0.050
