"""What a worker that has nothing to do asks of its server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.broker.requests import Mail, Moved
from fairlead.embedded.valkey import EmbeddedValkey
from tests.embedded.processes import client
from tests.worker.harness import Rig, until

SETTLED = 1.0  # seconds after which all parts of a worker have begun
WATCHED = 12.0  # seconds; two looks at the queues, two or three sweeps, a heartbeat
# What a client sends. The rest is what functions do inside of the server, in the same statistics.
SENT = {"fcall", "function", "blpop", "xread", "client", "hello", "ping", "config"}
QUEUES = [f"queue-{n}" for n in range(10)]


def _nothing() -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [0, 20])
async def test_an_idle_worker_makes_less_than_two_commands_a_second(
    tmp_path: Path, schedules: int
) -> None:
    with EmbeddedValkey(tmp_path, dies_with_owner=True) as endpoint, client(endpoint) as admin:

        def commands() -> int:
            found = admin.info("commandstats")
            names = {name: name.removeprefix("cmdstat_").partition("|")[0] for name in found}
            return sum(found[name]["calls"] for name, base in names.items() if base in SENT)

        async with Fairlead(endpoint.url) as app, app.worker(queues=QUEUES):
            for n in range(schedules):  # far from now: they are nobody's business yet
                await app.schedules.acreate(f"s{n}", app.task(name=f"t{n}")(_nothing), every="365d")
            await asyncio.sleep(SETTLED)
            before = commands()
            await asyncio.sleep(WATCHED)
            made = commands() - before
            (worker,) = await app.aworkers()
    assert set(worker.queues) == set(QUEUES)
    assert 0 < made / WATCHED < 2, f"{made} commands in {WATCHED:g} s"
    print(f"{made / WATCHED:.2f} commands a second")


async def test_mail_is_asked_for_once_something_runs(rig: Rig) -> None:
    asked: list[str] = []
    collect = rig.broker.collect

    async def noted(incarnation: str, after: int, timeout: float) -> list[Mail]:
        asked.append(incarnation)
        return await collect(incarnation, after, timeout)

    rig.broker.collect = noted  # type: ignore[method-assign]
    go = asyncio.Event()

    @rig.task()
    async def waits() -> None:
        await go.wait()

    async with rig.worker() as worker:
        await asyncio.sleep(0.1)
        assert asked == []
        await rig.enqueue("waits")
        await until(lambda: asked == [worker.incarnation])
        go.set()


async def test_the_forwarder_leaves_the_unforetold_to_a_wait_in_the_broker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.worker.forwarder._SAFETY", 0.01)
    looks = 0
    promote = rig.broker.promote

    async def noted(*, now: float | None = None) -> Moved:
        nonlocal looks
        looks += 1
        return await promote(now=now)

    rig.broker.promote = noted  # type: ignore[method-assign]
    go = asyncio.Event()

    @rig.task()
    async def waits() -> None:
        await go.wait()

    async with rig.worker(concurrency=1) as worker:
        await until(lambda: worker.forwarder.covered)
        await asyncio.sleep(0.05)
        idle = looks
        await asyncio.sleep(0.1)
        assert looks == idle
        worker.forwarder.expect(0.0)  # what was foretold is done all the same
        await until(lambda: looks == idle + 1)
        await rig.enqueue("waits")  # full: it waits for no bell
        await until(lambda: looks > idle + 3)
        go.set()
