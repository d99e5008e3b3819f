"""The embedded servers of ``fairlead up``: started together, kept alive, stopped together."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.up.output import Output
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import FairleadError

if TYPE_CHECKING:
    from fairlead.embedded.options import Options
    from fairlead.embedded.postgres import EmbeddedPostgres

_LOOK = 1.0  # seconds between two looks at whether they live


class Servers:
    """A Valkey and a PostgreSQL, both, one or none, that end with this process."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._valkey: EmbeddedValkey | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._failed = False
        self._changing = threading.Lock()
        self._stopped = False

    async def start_valkey(self, path: Path, options: Options) -> str:
        """Start a Valkey in this folder, or join the one that runs there; return its URL."""
        options["dies_with_owner"] = True
        self._valkey = EmbeddedValkey(path, **options)
        endpoint = await asyncio.to_thread(self._valkey.start)
        self._output.say("valkey", f"ready, pid {endpoint.pid}, data in {path / 'valkey'}")
        return endpoint.url

    async def start_postgres(self, path: Path) -> str:
        """Start a PostgreSQL in this folder with the tables of a ledger; return its URL."""
        from fairlead.embedded.postgres import EmbeddedPostgres
        from fairlead.ledger.ledger import Ledger

        self._postgres = postgres = EmbeddedPostgres(path, dies_with_owner=True)
        dsn = await asyncio.to_thread(postgres.start)
        self._output.say("postgres", f"ready, pid {postgres.pid}, data in {path / 'postgres'}")
        ledger = Ledger(dsn)
        try:
            await ledger.migrate()
        finally:
            await ledger.close()
        return dsn

    async def keep(self) -> None:
        """Start those again that die, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await asyncio.to_thread(self._ensure)
                self._failed = False
            except FairleadError as error:
                if not self._failed:
                    self._output.say("valkey" if self._valkey else "postgres", str(error))
                self._failed = True

    async def stop(self) -> None:
        """Stop those that were started here; their data stays."""
        await asyncio.to_thread(self._stop_looking)  # a look would start them again
        running = [each for each in (self._valkey, self._postgres) if each is not None]
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in running))

    def _ensure(self) -> None:
        with self._changing:
            if self._valkey is not None and not self._stopped:
                self._valkey.ensure()
            if self._postgres is not None and not self._stopped:
                self._postgres.start()  # which starts it only if it has died

    def _stop_looking(self) -> None:
        with self._changing:
            self._stopped = True
