"""Counts with a fallback: the broker's, or what this process knows while that is away."""

from __future__ import annotations

from pathlib import Path

from fairlead import Fairlead
from fairlead.telemetry.metrics import Exposition, add_counted, text_of
from tests.support.patience import patient
from tests.support.servers import server
from tests.support.worker_process import until
from tests.telemetry.exposed import samples


async def test_a_snapshot_answers_from_the_spool_while_the_broker_is_away(tmp_path: Path) -> None:
    with server(aof=True) as valkey:
        app = Fairlead(valkey.url, fallback="spool", spool=tmp_path / "spool")
        patient(app)

        @app.task
        async def job() -> None: ...

        async with app:
            await job.aenqueue()
            found = await app.asnapshot()
            assert (found.redis_active, found.depth, found.spooled) == (True, 1, 0)
            valkey.kill()
            handles = [await job.aenqueue() for _ in range(3)]
            assert {handle.durability for handle in handles} == {"spooled"}
            found = await app.asnapshot()
            assert (found.redis_active, found.depth, found.spooled) == (False, 3, 3)
            assert not found.shutdown
            one = await app.asnapshot("default")
            assert (one.depth, one.spooled, one.queues) == (0, 3, {})
            states = figures(app)
            assert states["fairlead_spool_depth", frozenset()] == 3
            assert states["fairlead_broker_state", frozenset({("state", "spooling")})] == 1
            valkey.start()
            fallback = app._clients.fallback
            assert fallback is not None
            await until(lambda: fallback.state == "healthy", "the spool to be sent")
            found = await app.asnapshot()
            assert (found.redis_active, found.depth, found.spooled) == (True, 4, 0)
            assert figures(app)["fairlead_spool_depth", frozenset()] == 0


async def test_without_a_call_before_a_snapshot_finds_out_that_the_broker_is_away(
    tmp_path: Path,
) -> None:
    url = f"unix://{tmp_path}/nowhere?timeout=200ms"
    async with Fairlead(url, fallback="spool", spool=tmp_path / "spool") as app:
        found = await app.asnapshot()
        assert (found.redis_active, found.depth, found.queues) == (False, 0, {})


def figures(app: Fairlead) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    exposition = Exposition()
    add_counted(exposition, app.counters.counted())
    return samples(text_of("", exposition)[0].decode())
