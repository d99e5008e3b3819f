"""Which process on which machine: enough to tell that the one of a record is gone for good.

A process id alone does not tell: it is used again, other machines have it too, and so do other
containers of this one. Host, boot, namespace and the moment the process started do together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "FAIRLEAD_HOST"  # names this machine, where its own name is no good

_PROC = Path("/proc")
_ENDED = "ended"


def host() -> str:
    """The name of this machine."""
    return os.environ.get(VARIABLE) or socket.gethostname()


def identity(pid: int) -> dict[str, str]:
    """What tells this process from all others of its machine; empty where nothing says."""
    born = _born(pid)
    return {**machine(), "born": born} if born not in ("", _ENDED) else {}


def machine() -> dict[str, str]:
    """In which boot of which machine, and in which namespace, a pid of ours means something."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return {"boot": boot, "namespace": str((_PROC / "self/ns/pid").readlink())}
    except OSError:  # not Linux: nobody is ever taken for gone
        return {}


def is_gone(at: str, pid: int, told: Mapping[str, Any]) -> bool:
    """Return whether the process that described itself like this ran on this host and has ended.

    False wherever that cannot be said for certain.
    """
    return at == host() and has_ended(pid, told)


def has_ended(pid: int, told: Mapping[str, Any]) -> bool:
    """Return whether the process that described itself like this has certainly ended."""
    if not is_near(told):
        return False
    born = _born(pid)
    if not born and exists(pid):  # it may be hidden from us
        return False
    return born != str(told["born"])


def is_same(pid: int, told: Mapping[str, Any]) -> bool:
    """Return whether this pid certainly is the process that described itself like this."""
    return is_near(told) and _born(pid) == told["born"]


def is_near(told: Mapping[str, Any]) -> bool:
    """Return whether the process ran in this boot and namespace, so that its pid says something."""
    here = machine()
    return (
        bool(here)
        and isinstance(told.get("born"), str)
        and all(told.get(key) == value for key, value in here.items())
    )


def exists(pid: int) -> bool:
    """Return whether there is a process with this pid here; one of another user is there, too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _born(pid: int) -> str:
    """When the process started, in clock ticks since boot; empty if nothing is known of it."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name, in parentheses, may hold anything. A zombie has ended; nobody has asked how yet. One
    # of which threads are left, perhaps in a call to a slow disk, still holds its files and locks.
    fields = text.rpartition(")")[2].split()
    threads = int(fields[17])
    return _ENDED if fields[0] in "ZX" and threads < 2 else fields[19]


def is_stopped(pid: int) -> bool:
    """Whether somebody holds the process with SIGSTOP or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in "Tt"
