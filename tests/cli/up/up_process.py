"""``fairlead up`` as a user starts it, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

__all__ = ("APP", "UpProcess", "running_up", "survivors", "until")

APP = """
import asyncio
from fairlead import Fairlead

app = Fairlead()

@app.task(name="shop.add")
async def add(a: int, b: int) -> int:
    return a + b

@app.task(name="shop.long")
async def long(seconds: float) -> None:
    await asyncio.sleep(seconds)
"""
_LINK = re.compile(r"(http://\S+?)/#sign-in=(\S+)")


def until(check: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Look until it is so: for what only another process can tell."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


class UpProcess:
    """One that runs, with what it has said."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        (folder / "tasks.py").write_text(APP)
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name != "FAIRLEAD_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "up", *arguments],
            cwd=folder,
            env={**kept, "FAIRLEAD_RUN_DIR": str(folder / "run"), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said, self.logged = "", ""
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            if name == "stdout":
                self.said += line
            else:
                self.logged += line

    def wait_ready(self) -> None:
        until(lambda: "Ctrl-C" in self.said or self.process.poll() is not None, "its first lines")
        assert "Ctrl-C" in self.said, self.said + self.logged

    @property
    def address(self) -> str:
        return self._link()[0]

    @property
    def code(self) -> str:
        return self._link()[1]

    def _link(self) -> tuple[str, str]:
        found = _LINK.search(self.said)
        assert found is not None, self.said
        return found[1], found[2]

    def signed_in(self) -> dict[str, str]:
        answer = httpx.post(f"{self.address}/sign-in", json={"code": self.code})
        assert answer.status_code == 200, answer.text
        return {"authorization": f"Bearer {answer.json()['token']}"}

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end, and close what it wrote to."""
        code = self.process.wait(30)
        for reader in self._readers:
            reader.join(30)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def fairlead(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command in another terminal of the same folder."""
        kept = {name: value for name, value in os.environ.items() if name != "FAIRLEAD_URL"}
        return subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments],
            cwd=self.folder,
            env={**kept, "FAIRLEAD_RUN_DIR": str(self.folder / "run")},
            capture_output=True,
            text=True,
            timeout=60,
        )


@contextlib.contextmanager
def running_up(folder: Path, *arguments: str, **environment: str) -> Iterator[UpProcess]:
    """Start it, wait until it is ready, and leave nothing behind."""
    up = UpProcess(folder, *arguments, **environment)
    try:
        up.wait_ready()
        yield up
    finally:
        if up.process.poll() is None:
            up.end(signal.SIGTERM)
        up.wait()


def survivors(folder: Path) -> list[Any]:
    """The processes that work in a folder, as far as the system tells (Linux)."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdecimal() and _is_of(place, str(folder)):
                found.append((place.name, (place / "cmdline").read_bytes().replace(b"\0", b" ")))
    return found


def _is_of(place: Path, folder: str) -> bool:
    if int(place.name) == os.getpid():
        return False
    if (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
        return False
    return str((place / "cwd").readlink()).startswith(folder)
