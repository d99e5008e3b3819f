"""A server of the API in a process of its own, as ``fairlead api`` starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ("Served", "serving")

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


class Served:
    """Where it listens, and how much memory it takes."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def memory(self) -> float:
        """Resident memory in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def serving(url: str, *options: str) -> Iterator[Served]:
    """Run one on a broker, for callers of this machine."""
    command = [sys.executable, "-m", "fairlead", "api", "--url", url, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--open-to-loopback", "--drain-delay", "0", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := _LISTENING.search(line):
                yield Served(process, int(found[1]))
                break
        else:
            raise AssertionError("".join(said))
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()
