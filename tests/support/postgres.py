"""A real PostgreSQL for tests: one for each test process, and a migrated database for each test.

The server lives in a folder of its own, without fsync, and dies with the test process. A test that
stops or restarts it disturbs no other process; it is started again for the next test.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from fairlead.embedded.postgres import EmbeddedPostgres
from fairlead.ledger.ledger import Ledger
from fairlead.runtime.identity import has_ended, identity

Mode = Literal["fast", "immediate", "kill"]

TEMPLATE = "migrated"
_PATIENCE = 30.0  # seconds
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}


class Postgres:
    """The server of this test process."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres(folder, fsync=False, dies_with_owner=True)
        self._numbers = itertools.count(1)
        self.dsn = self._server.start()
        self.execute(f"create database {TEMPLATE}")
        asyncio.run(_migrate(self.dsn_of(TEMPLATE)))

    @property
    def pid(self) -> int:
        return self._server.pid

    def dsn_of(self, database: str) -> str:
        return self.dsn.replace("/postgres?", f"/{database}?")

    def execute(self, text: str, *, dsn: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement over a connection of its own; its rows, if it has any."""
        with psycopg.connect(dsn or self.dsn, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(text)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[str]:
        """A database of one's own; its DSN. ``template0`` gives an empty one."""
        name = f"t{next(self._numbers)}"
        self.start()
        self.execute(f"create database {name} template {template}")
        try:
            yield self.dsn_of(name)
        finally:
            self.start()
            self.execute(f"drop database {name} with (force)")

    def start(self) -> None:
        """Start it again if it was stopped; without effect on one that runs."""
        self._server.start()

    def stop(self, mode: Mode = "fast") -> None:
        """End the server, and return when it has gone: in good order, as by a crash, or killed."""
        pid = self.pid
        known = identity(pid)
        os.kill(pid, _SIGNALS[mode])
        until = time.monotonic() + _PATIENCE
        while not has_ended(pid, known):
            assert time.monotonic() < until, "PostgreSQL does not end"
            time.sleep(0.01)

    def restart(self, mode: Mode = "immediate") -> None:
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Hold every process of the server, as a machine that hangs would."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._processes():
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        self._server.stop()

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


async def _migrate(dsn: str) -> None:
    ledger = Ledger(dsn)
    try:
        await ledger.migrate()
    finally:
        await ledger.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this test process."""
    folder = Path(tempfile.mkdtemp(prefix="fl-pg-"))  # short: a socket's path has 107 bytes
    try:
        running = Postgres(folder)
        try:
            yield running
        finally:
            running.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def ledger_dsn(postgres: Postgres) -> Iterator[str]:
    """The DSN of a fresh database with the schema in it."""
    with postgres.database() as dsn:
        yield dsn


@pytest.fixture
async def ledger(ledger_dsn: str) -> AsyncIterator[Ledger]:
    """A ledger on a fresh database."""
    async with Ledger(ledger_dsn) as opened:
        yield opened
