"""A program that only enqueues needs nothing that Windows does not have.

There is no Windows here: a program takes out of Python what is not there, before Fairlead is
imported, and enqueues into a real server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.programs import run
from tests.support.servers import Running, server

WITHOUT = """
import asyncio, os, select, signal, subprocess, sys, tempfile

MISSING = ("fcntl", "resource", "pwd", "grp", "termios", "uvloop")
GONE = {
    os: "fork register_at_fork getuid geteuid getgid killpg getsid setsid setpgrp getpgid waitid"
        " WNOHANG pread pwrite set_blocking",
    signal: "SIGUSR1 SIGUSR2 SIGHUP SIGTSTP SIGKILL SIGSTOP SIGCONT SIGCHLD pthread_kill",
    select: "poll epoll",
}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MISSING:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
for module, names in GONE.items():
    for name in names.split():
        delattr(module, name)

from fairlead import Fairlead, FairleadError
"""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server("valkey", tcp=True, aof=True) as running:
        yield running


def test_a_client_enqueues_and_reads(valkey: Running) -> None:
    said = run(
        f"""{WITHOUT}
app = Fairlead({valkey.url!r})

@app.task(name="work")
def work(number: int) -> int:
    return number

handle = work.enqueue(1)
print(handle.state, app.snapshot().depth)
print(handle.cancel())

async def main():
    other = await work.aenqueue(2)
    print(await other.astate())

asyncio.run(main())
app.close()
"""
    )
    assert said.splitlines()[0] == "queued 1"
    assert said.splitlines()[-1] == "queued"


def test_a_server_of_its_own_is_refused_with_the_reason() -> None:
    said = run(
        f"""{WITHOUT}
for url in ("embedded://", ""):
    try:
        Fairlead(url)
    except FairleadError as error:
        print(error)
"""
    )
    assert said.count("embedded:// needs Linux or macOS") == 2


def test_a_program_that_enqueues_loads_nothing_that_it_does_not_use(valkey: Running) -> None:
    said = run(
        f"""
import sys
from fairlead import Fairlead

app = Fairlead({valkey.url!r})

@app.task(name="work")
def work(number: int) -> int:
    return number

work.enqueue(1)
app.close()
print(*sys.modules)
"""
    ).split()
    unused = (
        "fairlead.broker.memory",
        "fairlead.broker.sharded",
        "fairlead.embedded.valkey_server",
        "fairlead.fallback.fallback",
        "fairlead.ledger.ledger",
        "fairlead.spool",
        "fairlead.worker.worker",
        "click",
        "psycopg",
        "tomllib",
    )
    assert "fairlead.broker.redis.broker" in said
    assert [name for name in unused if name in said] == []


def test_what_is_loaded_later_is_offered_all_the_same() -> None:
    said = run(
        """
import fairlead
missing = [name for name in fairlead.__all__ if not hasattr(fairlead, name)]
print(missing, fairlead.Worker.__module__)
try:
    fairlead.Wroker
except AttributeError as error:
    print(error)
"""
    )
    assert said.splitlines() == [
        "[] fairlead.worker.worker",
        "module 'fairlead' has no attribute 'Wroker'",
    ]
