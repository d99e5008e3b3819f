"""What the tests of the fourth document share: its settings, a server, what was logged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, create_queue
from fairlead.settings.keys import KEYS
from tests.support.patience import patient
from tests.support.servers import Running, server

__all__ = ("PATIENCE", "QueueSettings", "durable_server", "either_queue", "nothing",
           "nothing_said", "queue_of", "state_of", "warned")  # fmt: skip

DURABLE = {"appendfsync": "always"}  # so that a killed server keeps its word
PATIENCE = 20.0


class QueueSettings:
    """QUEUE_SETTINGS, as the document has them."""

    priorities = {"high": 0, "normal": 5, "low": 10}  # noqa: RUF012 - as programs write it
    max_in_memory = 100
    warn_depth = 50
    redis_ready_key = "affiliate:ready_queue"
    redis_scheduled_key = "affiliate:scheduled_jobs"

    def __init__(self, use_redis: bool, redis_url: str = "", **more: Any) -> None:
        self.use_redis = use_redis
        self.redis_url = redis_url
        self.redis_health_check_timeout = 2.0
        for name, value in more.items():
            setattr(self, name, value)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [key.variable for key in KEYS.values()]
    for name in (*names, "USE_REDIS_QUEUE", "REDIS_URL", "REDIS_HEALTH_CHECK_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(name="valkey")
def durable_server() -> Iterator[Running]:
    with server(aof=True, config=DURABLE) as running:
        yield running


@pytest.fixture(name="queue", params=["memory", "valkey"])
async def either_queue(request: pytest.FixtureRequest) -> AsyncIterator[Fairlead]:
    """A queue as ``create_queue`` makes it, in memory and on a server."""
    if request.param == "memory":
        async with queue_of(QueueSettings(use_redis=False)) as app:
            yield app
        return
    with server() as running:
        async with queue_of(QueueSettings(use_redis=True, redis_url=running.url)) as app:
            yield app


def queue_of(settings: QueueSettings) -> Fairlead:
    """Return the queue, which takes no slow server for one that is away."""
    app = create_queue(settings)
    patient(app)
    return app


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said about the choice of the broker, or about its going away."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and record.name in ("fairlead", "fairlead.fallback")
    ]


def state_of(app: Fairlead) -> str:
    fallback = app._clients.fallback
    return "none" if fallback is None else fallback.state


def nothing() -> None:
    """Stand for a job."""
