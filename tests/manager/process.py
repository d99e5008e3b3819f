"""Managers as processes: the command as a user starts it, or one with a short lease."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fairlead.broker import connect
from fairlead.ledger.ledger import Ledger
from fairlead.manager.manager import Manager
from fairlead.telemetry.log import configure
from tests.support.worker_process import environment_of

__all__ = ("ManagerProcess",)


class ManagerProcess:
    """One manager. Without a ``ttl`` it is the command, with the lease that it has."""

    def __init__(
        self,
        folder: Path,
        url: str,
        dsn: str,
        *,
        name: str = "manager",
        ttl: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.file = folder / f"{name}.log"
        options = ["--url", url, "--ledger", dsn, "--log-format", "json"]
        command = [sys.executable, "-m", "fairlead", "manager", "run", *options]
        if ttl is not None:
            command = [sys.executable, "-m", "tests.manager.process", url, dsn, str(ttl)]
        self._command = command
        self._environment = {**os.environ, **environment_of(name), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(10)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def status(self) -> int | None:
        """How it ended; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, seconds: float = 20.0) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        """Lines of the log; of one event."""
        found = []
        for line in self.file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": line}
            if event is None or entry.get("event") == event:
                found.append(entry)
        return found

    async def logged(self, event: str, count: int = 1, seconds: float = 30.0) -> dict[str, Any]:
        """The nth line of an event, once it is there."""
        end = time.monotonic() + seconds
        while len(found := self.log(event)) < count:
            assert time.monotonic() < end, f"no {event!r}:\n{self.file.read_text()[-3000:]}"
            assert self._process is not None
            assert self._process.poll() is None, self.file.read_text()[-3000:]
            await asyncio.sleep(0.02)
        return found[count - 1]


async def _main(url: str, dsn: str, ttl: float) -> None:
    store = connect(url)
    async with Ledger(dsn) as ledger:
        manager = Manager(store, ledger, ttl=ttl)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.stop)
        await manager.run()
    await store.close()


if __name__ == "__main__":
    configure("json")
    asyncio.run(_main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
