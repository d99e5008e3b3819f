"""What the tests of the connection share."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.broker.redis.connection import Server
from fairlead.broker.redis.scripts import Script, load
from tests.support.servers import Running

KEY = "fl1:{0}:"
Opener = Callable[..., Server]


_folder = Path(tempfile.mkdtemp(prefix="fairlead-scripts-"))
_maker = os.getpid()


@atexit.register
def _remove() -> None:
    if os.getpid() == _maker:  # its forks end before it
        shutil.rmtree(_folder, ignore_errors=True)


def script(text: str) -> Script:
    """A verb with this body."""
    root = _folder / f"{os.getpid()}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    root.mkdir(exist_ok=True)
    (root / "test.lua").write_text(f"{text}\n", encoding="utf-8")
    return load("test", root)


ECHO = script("return {KEYS[1], ARGV[1], #ARGV}")
COUNT = script("return redis.call('INCR', KEYS[1] .. 'n')")


def ran(running: Running) -> int:
    """How often COUNT was executed."""
    return int(running.admin("GET", f"{KEY}n") or 0)


async def soon(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait for what only the server can tell."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        await asyncio.sleep(0.01)


def listens(running: Running) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(running.path) == 0


def clients(running: Running, which: str) -> int:
    return int(running.admin("INFO", "clients")[f"{which}_clients"])


async def blocked(running: Running, count: int = 1) -> None:
    await soon(lambda: clients(running, "blocked") == count)
