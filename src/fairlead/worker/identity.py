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

__all__ = ("VARIABLE", "host", "identity", "is_gone")

VARIABLE = "FAIRLEAD_HOST"  # names this machine, where its own name is no good

_PROC = Path("/proc")
_ENDED = "ended"
_KEYS = ("boot", "namespace")  # of the machine; "born" is of the process


def host() -> str:
    """The name of this machine."""
    return os.environ.get(VARIABLE) or socket.gethostname()


def identity(pid: int) -> dict[str, str]:
    """What tells this process from all others of its machine; empty where nothing says."""
    born = _born(pid)
    return {**_machine(), "born": born} if born not in ("", _ENDED) else {}


def is_gone(at: str, pid: int, told: Mapping[str, Any]) -> bool:
    """Whether the process that described itself like this ran on this machine and has ended.

    False wherever that cannot be said for certain.
    """
    if at != host() or not isinstance(told.get("born"), str):
        return False
    here = _machine()
    if not here or any(told.get(key) != here[key] for key in _KEYS):
        return False
    born = _born(pid)
    if not born and _exists(pid):  # it may be hidden from us
        return False
    return born != str(told["born"])


def _machine() -> dict[str, str]:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return {"boot": boot, "namespace": str((_PROC / "self/ns/pid").readlink())}
    except OSError:  # not Linux: nobody is ever taken for gone
        return {}


def _born(pid: int) -> str:
    """When the process started, in clock ticks since boot; empty if nothing is known of it."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name, in parentheses, may hold anything. A zombie has ended; nobody has asked how yet.
    fields = text.rpartition(")")[2].split()
    return _ENDED if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
