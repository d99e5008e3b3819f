"""A broker, a database with the ledger in it, and the managers and workers of both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import psycopg

from fairlead import Fairlead
from fairlead.broker.leadership import Leadership
from fairlead.client import CallOptions
from fairlead.model.events import Event
from tests.acceptance.harness import Site, opened
from tests.support.worker_process import PATIENCE, environment_of

__all__ = ("LedgerSite", "ManagerProcess", "ledger_opened")

Row = tuple[Any, ...]

NAME = "manager"  # under which managers lead
_STEP = 0.05  # seconds between two looks


class ManagerProcess:
    """``fairlead manager`` as a user starts it."""

    def __init__(self, folder: Path, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self._folder = folder
        self._file = folder / f"{name}.log"
        self._environment = {**os.environ, **environment, **environment_of(name)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        assert self._process is None or self._process.poll() is not None, "it runs already"
        with self._file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "manager", "--log-format", "json"],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether it has ended by itself, and not well."""
        return self._process is not None and (self._process.poll() or 0) > 0

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        assert self._process is not None, "it was never started"
        self._process.terminate()
        return self._process.wait(PATIENCE)

    async def ended(self, seconds: float = PATIENCE) -> int:
        """Wait until it has ended by itself; its exit status."""
        assert self._process is not None, "it was never started"
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"{self.name} still runs:\n{self.tail()}"
            await asyncio.sleep(_STEP)
        return int(self._process.returncode)

    def tail(self, lines: int = 25) -> str:
        text = self._file.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


class LedgerSite:
    """Everything a scenario with a ledger needs. What is started here is killed with it."""

    def __init__(self, broker: Site, dsn: str, folder: Path, routes: Mapping[str, str]) -> None:
        self.broker, self.dsn = broker, dsn
        self.app = Fairlead(broker.url, ledger=dsn, routes=routes or None)
        self.managers: list[ManagerProcess] = []
        self._folder = folder
        self._task = self.app.task(name="nap")(_stand_in)
        self._routes = routes

    def environment(self) -> dict[str, str]:
        """What names the servers to a process of this site."""
        routes = " ".join(f"{key}={url}" for key, url in self._routes.items())
        return {
            "FAIRLEAD_URL": self.broker.workers_url,
            "FAIRLEAD_LEDGER": self.dsn,
            "FAIRLEAD_ROUTES": routes,
        }

    def manager(self, **environment: str) -> ManagerProcess:
        """Start ``fairlead manager``."""
        name = f"manager-{len(self.managers)}"
        made = ManagerProcess(self._folder, name, {**self.environment(), **environment})
        self.managers.append(made)
        return made.start()

    async def leader(self, *, but: int = 0, seconds: float = PATIENCE) -> ManagerProcess:
        """The manager that leads, once one does; ``but`` is a pid that is not meant."""
        found: list[ManagerProcess] = []

        async def look() -> bool:
            [(holder,)] = await self.sql("select holder from fairlead.leadership")
            pid = int(holder.split(":")[1]) if holder else 0
            found[:] = [each for each in self.managers if each.running and each.pid == pid != but]
            return bool(found)

        await self.until(look, "a manager to lead", seconds)
        return found[0]

    async def leadership(self) -> Leadership:
        """Who leads, as the broker tells everybody who asks and gets nothing."""
        return await self.broker.store.lead(NAME, "a look", ttl=10.0)

    async def sql(self, text: str, *parameters: Any) -> list[Row]:
        """Run a statement in a transaction of its own."""
        async with await psycopg.AsyncConnection.connect(
            self.dsn, connect_timeout=10
        ) as connection:
            cursor = await connection.execute(text.encode(), parameters or None)
            return await cursor.fetchall() if cursor.description else []

    async def enqueue(self, count: int, /, *args: Any, **options: Unpack[CallOptions]) -> list[str]:
        """Enqueue naps in one transaction that commits; their ids."""
        call = self._task.using(**options).call
        calls = [call(*(args or (0.0,))) for _ in range(count)]
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            handles = await self.app.aenqueue_many(calls, tx=connection)
        return [handle.id for handle in handles]

    async def states(self, ids: Sequence[str]) -> dict[str, int]:
        """How many of these rows are in each state."""
        rows = await self.sql(
            "select state, count(*) from fairlead.tasks where id = any(%s) group by state",
            list(ids),
        )
        return dict(rows)

    async def reach(self, ids: Sequence[str], *states: str, seconds: float = PATIENCE) -> None:
        """Wait until all of these rows are in one of these states."""
        last: dict[str, int] = {}

        async def look() -> bool:
            nonlocal last
            last = await self.states(ids)
            return sum(last.get(state, 0) for state in states) == len(ids)

        await self.until(look, lambda: f"{len(ids)} rows to be {states}: {last}", seconds)

    async def pushed(self, ids: Sequence[str], seconds: float = PATIENCE) -> list[Event]:
        """Wait until the broker has taken each of these tasks in; those events, in their order."""
        wanted = set(ids)

        async def look() -> bool:
            return self.broker.stream.count(ids, "enqueued") >= len(ids)

        await self.until(look, lambda: f"{len(ids)} tasks at the broker", seconds)
        events = self.broker.stream.events
        return [event for event in events if event.kind == "enqueued" and event.task in wanted]

    async def until(
        self,
        look: Callable[[], Awaitable[bool]],
        what: str | Callable[[], str],
        seconds: float = PATIENCE,
    ) -> None:
        """Look until it is so."""
        deadline = time.monotonic() + seconds
        while not await look():
            # What failed to start will not do it.
            is_hopeless = any(each.failed for each in self.managers)
            if is_hopeless or time.monotonic() > deadline:
                said = what if isinstance(what, str) else what()
                logs = "\n".join(f"{each.name}:\n{each.tail()}" for each in self.managers)
                raise AssertionError(f"waited {seconds:g} s for {said}\n{logs}")
            await asyncio.sleep(_STEP)

    async def held(self) -> list[Row]:
        """What keeps rows of the ledger locked, or a transaction open, beside this look itself."""
        return await self.sql(
            "select pid, state, query from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
            " and xact_start < clock_timestamp() - interval '1 s'"
        )

    async def status(self) -> dict[str, Any]:
        """What ``fairlead manager status`` tells a script."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fairlead", "manager", "status", "--json"),
            env={**os.environ, **self.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, error = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, error.decode()
        found: dict[str, Any] = json.loads(out)
        return found


@contextlib.asynccontextmanager
async def ledger_opened(
    url: str, dsn: str, folder: Path, routes: Mapping[str, str] | None = None
) -> AsyncIterator[LedgerSite]:
    """A site on these servers; at its end everything is killed and the broker must be sound."""
    async with opened(url, folder) as broker:
        site = LedgerSite(broker, dsn, folder, routes or {})
        try:
            yield site
        finally:
            for manager in site.managers:
                manager.kill()
            await site.app.aclose()


def _stand_in(*args: Any) -> Any:
    """For a task that only the app module of the workers has."""
    raise NotImplementedError
