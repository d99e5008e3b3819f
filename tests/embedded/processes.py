"""Other processes that use an embedded server, and waiting for what they cause."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from fairlead.embedded.directory import Holder, LockFile
from fairlead.embedded.endpoint import Endpoint
from fairlead.runtime.identity import is_same

PATIENCE = 20.0  # seconds

# Obeys one line at a time, and says where the server is after each.
_USER = """
import sys
from fairlead.embedded.valkey import EmbeddedValkey

server = None
for line in sys.stdin:
    verb, _, path = line.strip().partition(" ")
    if verb in ("start", "tied"):
        server = EmbeddedValkey(path, dies_with_owner=verb == "tied")
        endpoint = server.start()
    elif verb == "ensure":
        endpoint = server.ensure()
    elif verb == "stop":
        server.stop()
    print(endpoint.pid, endpoint.owner, flush=True)
"""


class User:
    """A process of its own that opens servers when it is told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _USER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def heard(self) -> tuple[int, bool]:
        """The server's pid, and whether the user is its owner."""
        assert self.process.stdout is not None
        pid, owner = self.process.stdout.readline().split()
        return int(pid), owner == "True"

    def do(self, order: str) -> tuple[int, bool]:
        self.tell(order)
        return self.heard()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> int:
        """End in good order, without a stop of its own; the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def users(count: int) -> Iterator[list[User]]:
    made = [User() for _ in range(count)]
    try:
        yield made
    finally:
        for user in made:
            user.close()


def client(endpoint: Endpoint) -> redis.Redis:
    return redis.Redis.from_url(endpoint.url)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    ended(pid)


def ended(pid: int) -> None:
    """Wait for the end of a process that is nobody's child here, so that nothing tells us."""
    until(lambda: is_gone(pid))


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for has, too."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def holder_of(home: Path) -> Holder:
    """The server that runs in this directory, or ran last."""
    lock = LockFile(home / "valkey/server.lock")
    try:
        holder = lock.holder()
    finally:
        lock.close()
    assert holder is not None
    return holder


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def sweep(path: Path) -> None:
    """Kill what a test may have left running in its directory."""
    for lock in path.rglob("valkey/server.lock"):
        if lock.read_text():
            holder = holder_of(lock.parent.parent)
            if is_same(holder.pid, holder.identity):
                os.kill(holder.pid, signal.SIGKILL)
