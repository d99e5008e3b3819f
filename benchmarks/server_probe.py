"""What a server says of itself, and the plain ``SET`` that Fairlead is compared with.

The probe has a connection of its own and asks for numbers that the server counts anyway, so looking
changes nothing that is measured.
"""

from __future__ import annotations

import csv
import shutil
import socket
import subprocess
import time
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from fairlead.model.errors import InvalidOption, Refused, Unreachable

__all__ = ("Cost", "Meter", "Place", "Probe", "plain_sets")

_SET_KEYS = 100_000  # different keys that SET writes to
_SET_BYTES = 100
_SET_CLIENTS = 50
_TIMEOUT = 60.0  # seconds for one answer: the server may be busy with something long
_STEP = 0.05  # seconds between two looks: the server does not call back


class Place(NamedTuple):
    """Where the server is, and the word that opens it."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    user: str = ""
    password: str = ""
    database: int = 0

    @classmethod
    def parse(cls, url: str) -> Place:
        """The place in a URL. Only of one server, and without TLS: this is about its processor."""
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "valkey", "unix"):
            shown = f"{parts.scheme}://…"
            raise InvalidOption("url", shown, "a redis://, valkey:// or unix:// address to measure")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if parts.scheme == "unix":
            database = parse_qs(parts.query).get("db", ["0"])[0]
            return cls(
                path=unquote(parts.path), user=user, password=password, database=int(database)
            )
        database = parts.path.strip("/") or "0"
        host, port = parts.hostname or "127.0.0.1", parts.port or 6379
        return cls(host, port, "", user, password, int(database))


class Cost(NamedTuple):
    """What one task cost in a run; without a client's figures where it is not ours."""

    tasks_per_second: float
    server_us: float  # processor time of the server, all its threads
    function_us: float  # of it, inside functions, by the server's own count
    python_us: float | None  # processor time of this process


class _Reading(NamedTuple):
    wall: float
    python: float
    server: float
    function: float


class Probe:
    """A connection that asks one thing after the other."""

    def __init__(self, url: str) -> None:
        self.place = place = Place.parse(url)
        try:
            if place.path:
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.settimeout(_TIMEOUT)
                self._socket.connect(place.path)
            else:
                self._socket = socket.create_connection((place.host, place.port), _TIMEOUT)
        except OSError as error:
            raise Unreachable(f"no server answers to be measured: {error}") from error
        self._file = self._socket.makefile("rb")
        if place.password:
            self.ask("AUTH", *([place.user] if place.user else []), place.password)
        if place.database:
            self.ask("SELECT", place.database)

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()

    def ask(self, *words: Any) -> Any:
        """The answer to one command."""
        parts = [str(word).encode() for word in words]
        lines = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n%s" % (len(parts), lines))
        return self._answer()

    def _answer(self) -> Any:
        line = self._file.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self._file.read(length + 2)[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(max(int(rest), 0))]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        raise Refused("command", f"the server refused to be measured: {rest.decode()}")

    def info(self, section: str) -> dict[str, str]:
        """A section of INFO."""
        rows = self.ask("INFO", section).decode().splitlines()
        pairs = (row.partition(":") for row in rows if row and not row.startswith("#"))
        return {name: value for name, _, value in pairs}

    def setting(self, name: str) -> str:
        """A setting of the server, or a question mark where it does not tell."""
        try:
            answer = self.ask("CONFIG", "GET", name)
        except Refused:
            return "?"
        return answer[1].decode() if answer else "?"

    def calls(self, command: str) -> int:
        """How often the server has carried a command out, functions included."""
        return int(_stat(self.info("commandstats"), command, "calls"))

    def used_memory(self) -> int:
        """Bytes that the server's data takes, without what it keeps for clients and its log."""
        found = self.info("memory")
        passing = ("mem_clients_normal", "mem_aof_buffer", "mem_replication_backlog")
        return int(found["used_memory"]) - sum(int(found.get(name, "0")) for name in passing)

    def wait_for_rewrite(self) -> bool:
        """Whether the server does not rewrite its file; False if it has done so for a minute."""
        until = time.monotonic() + _TIMEOUT
        while self.info("persistence").get("aof_rewrite_in_progress") == "1":
            if time.monotonic() > until:
                return False
            time.sleep(_STEP)
        return True

    def read(self) -> _Reading:
        """All clocks at this moment."""
        stats, cpu = self.info("commandstats"), self.info("cpu")
        return _Reading(
            time.perf_counter(),
            time.process_time(),
            float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
            _stat(stats, "fcall", "usec") / 1e6,
        )


class Meter:
    """Adds up what the clocks say between ``start`` and ``stop``, as often as they are called."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._spent = [0.0] * len(_Reading._fields)
        self._from = probe.read()
        self.tasks = 0

    def start(self) -> None:
        """From here on it counts."""
        self._from = self._probe.read()

    def stop(self, tasks: int) -> None:
        """Up to here, and for so many tasks."""
        now, before = self._probe.read(), self._from
        self._spent = [
            spent + end - begin for spent, end, begin in zip(self._spent, now, before, strict=True)
        ]
        self.tasks += tasks

    def cost(self, *, ours: bool = True) -> Cost:
        """For one task; ``ours`` says whether this process did what was measured."""
        wall, python, server, function = self._spent
        each = 1e6 / self.tasks
        return Cost(
            self.tasks / wall, server * each, function * each, python * each if ours else None
        )


def plain_sets(probe: Probe, count: int) -> Cost | None:
    """SET with 50 connections, one at a time on each; None where there is nothing to do it with."""
    tool = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if tool is None:
        return None
    place, options = probe.place, {"-c": _SET_CLIENTS, "-n": count, "-d": _SET_BYTES}
    where = ["-s", place.path] if place.path else ["-h", place.host, "-p", str(place.port)]
    login = [*(["--user", place.user] if place.user else []), "-a", place.password]
    command = [
        *(tool, *where, *(login if place.password else [])),
        *(str(word) for pair in options.items() for word in pair),
        *("-r", str(_SET_KEYS), "--dbnum", str(place.database), "-t", "set", "--csv"),
    ]
    meter = Meter(probe)
    meter.start()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    meter.stop(count)
    rows = [row for row in csv.reader(done.stdout.splitlines()) if row and row[0] == "SET"]
    if done.returncode or not rows:
        raise Refused("command", f"{tool} failed: {done.stderr.strip() or done.stdout.strip()}")
    # Its own count: starting the program is no part of it.
    return meter.cost(ours=False)._replace(tasks_per_second=float(rows[0][1]))


def _stat(stats: dict[str, str], command: str, field: str) -> float:
    fields = dict(
        part.split("=") for part in stats.get(f"cmdstat_{command}", "").split(",") if part
    )
    return float(fields.get(field, "0"))
