"""Processes that handlers have left behind: the supervisor takes them over and ends them.

A handler may start programs, and its process may be killed before they have ended. On Linux they
then become children of the nearest process that asked for it, which is what happens here.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

__all__ = (
    "adopt_orphans",
    "children",
    "die_with_parent",
    "end_orphans",
    "end_programs",
    "reap_orphans",
)

log = logging.getLogger("fairlead.worker")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of whatever descendants are left behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """End this process when the one that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_orphans(sessions: Collection[int]) -> None:
    """End what is left of these sessions: those of children that have ended.

    What made a session of its own wanted to stay, such as an embedded server.
    """
    for pid in children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if os.getsid(pid) in sessions and os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                log.warning("process ended that a handler had left behind", extra={"left": pid})


def end_programs() -> None:
    """End all other processes of this session: programs that handlers have started."""
    session = os.getsid(0)
    with contextlib.suppress(OSError):  # not Linux
        for path in Path("/proc").iterdir():
            if path.name.isdecimal() and (pid := int(path.name)) != os.getpid():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getsid(pid) == session:
                        os.kill(pid, signal.SIGKILL)


def reap_orphans(known: Collection[int]) -> None:
    """Let go of all children of this process that have ended, but those that others wait for."""
    for pid in children():
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def children() -> list[int]:
    """The children of this process, as far as the system tells."""
    path = Path(f"/proc/{os.getpid()}/task")
    pids: list[int] = []
    with contextlib.suppress(OSError):  # not Linux, or without this file
        for thread in path.iterdir():
            pids += map(int, (thread / "children").read_text(encoding="ascii").split())
    return pids


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
