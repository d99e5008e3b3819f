"""What tests of commands share that talk to a broker: a server, an app on it, an operator."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead import Fairlead
from tests.cli.running import answered
from tests.support.servers import Running, server

Operator = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture
def app(valkey: Running) -> Iterator[Fairlead]:
    """An app whose task ``shop.mail`` dies of a text that begins with "bad"."""
    valkey.admin("FLUSHALL")
    made = Fairlead(valkey.url)

    @made.task(name="shop.mail", queue="mail", max_retries=0)
    async def mail(to: str, secret: str = "") -> str:
        if to.startswith("bad"):
            raise ValueError(f"no mailbox {to!r}")
        return to

    yield made
    made.close()


@pytest.fixture
def mail(app: Fairlead) -> Any:
    return app.registered("shop.mail")


@pytest.fixture
def operator(valkey: Running) -> Operator:
    """Gives a command to the broker, without a process."""
    return lambda *args: answered(*args, FAIRLEAD_URL=valkey.url)


@pytest.fixture
def work_off(app: Fairlead) -> Callable[[], int]:
    return lambda: asyncio.run(app.drain())
