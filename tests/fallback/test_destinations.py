"""What a process left goes to the broker that it was meant for, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.broker import connect, destination_of
from fairlead.spool import folders

AWAY = "redis://127.0.0.1:1"


@pytest.mark.parametrize("other", ["memory://", "redis://127.0.0.1:1/5", "redis://127.0.0.1:2"])
async def test_a_task_is_not_adopted_for_another_broker(tmp_path: Path, other: str) -> None:
    app = Fairlead(AWAY, fallback="spool", spool=tmp_path / "spool")

    @app.task(name="bill")
    async def bill() -> None: ...

    assert (await bill.aenqueue()).durability == "spooled"
    await app.aclose()
    elsewhere = Fairlead(other, fallback="spool", spool=tmp_path / "spool")
    again = Fairlead("redis://me:secret@127.0.0.1:1/0", fallback="spool", spool=tmp_path / "spool")
    kept, own = elsewhere._clients.fallback, again._clients.fallback
    assert kept is not None
    assert own is not None
    assert kept.spool.adopt() == 0
    assert [each.broker for each in folders(tmp_path / "spool")] == [AWAY]
    assert own.spool.adopt() == 1
    await elsewhere.aclose()
    await again.aclose()


def test_a_destination_tells_brokers_apart_and_no_secrets() -> None:
    def of(
        url: str, shards: dict[str, str] | None = None, routes: dict[str, str] | None = None
    ) -> str:
        return destination_of(connect(url, shards=shards, routes=routes))

    assert (
        of("redis://me:secret@host/0?timeout=3") == of("valkey://host:6379") == "redis://host:6379"
    )
    assert of("redis+sentinel://a,b/main") == of("redis+sentinel://b,a/main")
    assert of("memory://") != of("memory://")
    assert of("embedded:///tmp/a") == "embedded:///tmp/a"
    routed = of("redis://host", routes={"queue:mail": "redis://me:secret@other"})
    assert "secret" not in routed
    found = {of("redis://host"), of("redis://host/1"), routed}
    found.add(of("redis://host", shards={"mail": "1"}))
    found.add(of("redis://host", shards={"bills": "1"}))
    assert len(found) == 5
