"""Containers that share a directory: a pid of one means another process, or none, in the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.processes import PATIENCE, ended, until

# Obeys one line at a time, and says after each where the server is, or what went wrong.
_USER = """
import json, subprocess, sys
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.embedded import valkey_server as module
from fairlead.model.errors import FairleadError
import redis

module._ANSWER_IN, module._END_IN = 0.2, 0.5
server, strangers = None, []
for line in sys.stdin:
    verb, *words = json.loads(line)
    try:
        if verb == "start":
            server = server or EmbeddedValkey(words[0], start_timeout=float(words[1]))
            endpoint = server.start()
            said = endpoint.pid
        elif verb == "ensure":
            said = server.ensure().pid
        elif verb == "stop":
            said = server.stop()
        elif verb == "set":
            said = redis.Redis.from_url(endpoint.url).set("key", words[0])
        elif verb == "get":
            said = redis.Redis.from_url(endpoint.url).get("key").decode()
        elif verb == "crowd":  # so that there are strangers with every small pid
            while not strangers or strangers[-1].pid < words[0]:
                strangers.append(subprocess.Popen(["sleep", "600"]))
            said = [each.pid for each in strangers]
        elif verb == "living":
            said = [each.pid for each in strangers if each.poll() is None]
    except FairleadError as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said), flush=True)
"""

_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _possible() -> bool:
    try:
        return subprocess.run([*_CONTAINER, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not _possible(), reason="pid namespaces cannot be made here: needs Linux, unshare and root"
)


class Container:
    """A process that uses embedded servers, alone in a pid namespace of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*_CONTAINER, sys.executable, "-c", _USER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, *order: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(order)}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> str:
        """End it and all that is in it; what it logged."""
        self.process.kill()
        return self.process.communicate(timeout=PATIENCE)[1]


@contextmanager
def containers(count: int) -> Iterator[list[Container]]:
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(Container())
            stack.callback(made[-1].close)
        yield made


def servers(home: Path) -> list[int]:
    """The servers that run in a directory, by the pids that they have here."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = (process / "cwd").samefile(home / "valkey")
            if here and b"-server" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_server_that_stalls_in_another_container_is_not_joined_by_a_second_one(
    home: Path,
) -> None:
    with containers(3) as (first, second, third):
        pid = first.do("start", str(home), 10)
        assert first.do("set", "value")
        assert second.do("start", str(home), 0.5) == pid
        (server,) = servers(home)
        lock = (home / "valkey/server.lock").stat().st_ino
        os.kill(server, signal.SIGSTOP)
        try:
            assert second.do("ensure").startswith("Unreachable")
            assert f"pid {pid} of another container" in third.do("start", str(home), 0.3)
            assert servers(home) == [server]
            assert (home / "valkey/server.lock").stat().st_ino == lock
        finally:
            os.kill(server, signal.SIGCONT)
        assert second.do("ensure") == third.do("start", str(home), 10) == pid
        assert third.do("get") == "value"
        assert servers(home) == [server]


def test_whoever_leaves_last_ends_the_server_of_another_container_and_no_stranger(
    home: Path,
) -> None:
    with containers(2) as (first, second):
        pid = first.do("start", str(home), 10)
        assert second.do("start", str(home), 10) == pid
        assert first.do("set", "value")
        crowd = second.do("crowd", pid + 5)
        assert pid in crowd
        (server,) = servers(home)
        first.do("stop")
        assert servers(home) == [server]
        second.do("stop")
        ended(server)
        assert second.do("living") == crowd
        assert second.do("start", str(home), 10)
        assert second.do("get") == "value"


def test_a_server_of_another_container_that_does_not_answer_is_left_alone(home: Path) -> None:
    with containers(2) as (first, second):
        pid = first.do("start", str(home), 10)
        assert second.do("start", str(home), 10) == pid
        crowd = second.do("crowd", pid + 5)
        (server,) = servers(home)
        first.do("stop")
        os.kill(server, signal.SIGSTOP)
        second.do("stop")
        assert second.do("living") == crowd
        assert servers(home) == [server]
        logged = second.close()
        assert f"(pid {pid} of another container or machine) left running" in logged
        os.kill(server, signal.SIGCONT)  # it hears now what it was asked to do
        until(lambda: servers(home) == [])
