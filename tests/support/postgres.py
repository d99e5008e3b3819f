"""A real PostgreSQL for tests: one for each test process, and an empty ledger for each test.

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
from fairlead.embedded.postgres_server import closed_to, service_account
from fairlead.ledger.ledger import Ledger
from fairlead.runtime.identity import has_ended, identity

Mode = Literal["fast", "immediate", "kill"]

TEMPLATE = "migrated"
TABLES = ("tasks", "flows", "places", "workers", "manager_status")
_PATIENCE = 30.0  # seconds
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}


# All by which the schema of a database may differ from a new one's.
_LOOK = """
select (select string_agg(format('%s.%s:%s', relname, attname, atttypid), ','
                          order by c.oid, attnum)
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'fairlead'::regnamespace),
       (select string_agg(conname || pg_get_constraintdef(oid), ',' order by conname, conrelid)
        from pg_constraint where connamespace = 'fairlead'::regnamespace),
       (select string_agg(proname || md5(prosrc), ',' order by proname) from pg_proc
        where pronamespace = 'fairlead'::regnamespace),
       (select count(*) from fairlead.migrations),
       (select count(*) from pg_trigger where not tgisinternal)
"""
_EMPTY = "; ".join(
    (
        "set lock_timeout = '5s'",
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()",
        *(f"delete from fairlead.{table}" for table in TABLES),
        "update fairlead.leadership set term = 0, holder = ''",
    )
)


class Postgres:
    """The server of this test process."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedPostgres(folder, fsync=False, dies_with_owner=True)
        self._numbers = itertools.count(1)
        self.dsn = self._server.start()
        self.execute(f"create database {TEMPLATE}")
        asyncio.run(_migrate(self.dsn_of(TEMPLATE)))
        self._look = self.execute(_LOOK, dsn=self.dsn_of(TEMPLATE))
        self._idle: list[str] = []

    @property
    def pid(self) -> int:
        return self._server.pid

    def dsn_of(self, database: str) -> str:
        return self.dsn.replace("/postgres?", f"/{database}?")

    def execute(self, text: str, *, dsn: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement over a connection of its own; its rows, if it has any."""
        with psycopg.connect(dsn or self.dsn, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(text)
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

    @contextlib.contextmanager
    def ledger(self) -> Iterator[str]:
        """A database with an empty ledger; its DSN. Cheap: it is emptied and used again.

        Whoever changes the schema has it for itself: the next gets another.
        """
        self.start()
        name = self._idle.pop() if self._idle else f"l{next(self._numbers)}"
        dsn = self.dsn_of(name)
        if not self.execute(f"select 1 from pg_database where datname = '{name}'"):
            self.execute(f"create database {name} template {TEMPLATE}")
        try:
            yield dsn
        finally:
            self.start()
            try:
                self.execute(_EMPTY, dsn=dsn)
                is_as_new = self.execute(_LOOK, dsn=dsn) == self._look
            except psycopg.Error:
                is_as_new = False
            if is_as_new:
                self._idle.append(name)
            else:
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


def passable_folder() -> Path:
    """Make a folder that the server's account can pass to, also where root's own TMPDIR is closed.

    Its path is short: a socket's has at most 107 bytes.
    """
    account = service_account()
    base = Path(tempfile.gettempdir())
    if account is not None and closed_to(base, account) is not None:
        base = Path("/tmp")
    return Path(tempfile.mkdtemp(prefix="fl-pg-", dir=base))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this test process."""
    folder = passable_folder()
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
    """The DSN of a database with an empty ledger."""
    with postgres.ledger() as dsn:
        yield dsn


@pytest.fixture
async def ledger(ledger_dsn: str) -> AsyncIterator[Ledger]:
    """An empty ledger."""
    async with Ledger(ledger_dsn) as opened:
        yield opened
