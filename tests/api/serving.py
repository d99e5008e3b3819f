"""A server of the API in a process of its own, as ``fairlead api`` starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.running import answered

__all__ = ("Served", "new_token", "served")


class Served:
    """The process, and where it listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rpartition(":")[2])

    def stop(self) -> int:
        """Send TERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def served(*args: str, program: str = "") -> Iterator[Served]:
    """``fairlead api`` on a free port, or a program that is like it, until the end of the block."""
    run = ("-c", program) if program else ("-m", "fairlead")
    process = subprocess.Popen(
        [sys.executable, *run, "api", "--port", "0", *args],
        env={**os.environ, "FAIRLEAD_DEBUG": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:  # warnings about the broker may come first
            if line.startswith("listening on http://"):
                break
            said.append(line)
        else:
            raise AssertionError("".join(said))
        yield Served(process, line.split()[-1])
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()


def new_token(url: str, *args: str) -> str:
    """A token of ``fairlead token create`` that may do all, unless the arguments say otherwise."""
    scopes = () if "--scopes" in args else ("--scopes", "read,submit,manage,payload")
    made = answered("token", "create", "--url", url, *scopes, *args)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()
