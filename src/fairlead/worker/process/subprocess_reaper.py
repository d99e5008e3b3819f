"""Processes that handlers have left behind, and processes whose worker has gone.

A handler may start programs, and its process may be killed before they have ended. On Linux they
then become children of the nearest process that asked for it: the supervisor, which ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from fairlead.runtime.programs import is_waited_for

log = logging.getLogger("fairlead.worker")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK = 1000  # milliseconds between two looks at who the parent is


def adopt_orphans() -> None:
    """Become the parent of whatever descendants are left behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """End this process when the one that started it ends, where the system does that (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def when_alone(end: socket.socket, do: Callable[[], None]) -> None:
    """Call ``do``, in a thread, when the process that started this one has gone.

    It holds the other end of the socket. Not all systems tell in time that this was closed, so the
    parent is looked at as well. Works while the loop hangs, but not while something keeps the GIL.
    """
    mine, parent = end.dup(), os.getppid()  # the original is closed by whoever uses it

    def watch() -> None:
        poll = select.poll()
        poll.register(mine, 0)  # the end of a connection is told without asking for it
        while not poll.poll(_LOOK) and os.getppid() == parent:
            pass
        do()

    threading.Thread(target=watch, name="fairlead-alone", daemon=True).start()


def end_orphans(sessions: Collection[int]) -> None:
    """End what is left of these sessions: those of children that have ended.

    What made a session of its own wanted to stay, such as an embedded server.
    """
    for pid in _members(sessions):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            with contextlib.suppress(ChildProcessError):  # its own parent is one of them
                if os.waitpid(pid, os.WNOHANG) != (0, 0):
                    continue  # it had ended
            os.kill(pid, signal.SIGKILL)
            log.warning("process ended that a handler had left behind", extra={"left": pid})


def end_programs() -> None:
    """End all other processes of this session: programs that handlers have started."""
    for pid in _members([os.getsid(0)]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def reap_orphans(known: Collection[int]) -> None:
    """Let go of processes that were adopted and have ended; leave others to those who wait.

    ``known`` are the children that the caller waits for. The system shows one that has ended,
    and only then is it asked whether somebody here may be waiting for a program of its own: what
    was started later is not the one that was shown.
    """
    with contextlib.suppress(ChildProcessError):  # there are none, or another took it
        while (pid := _ended_child()) is not None:
            if pid in known or is_waited_for():
                return  # right now; what else there is shows the next time
            os.waitpid(pid, os.WNOHANG)


def has_children() -> bool:
    """Whether this process has any, be they ended; False where the system does not tell."""
    try:
        _ended_child()
    except ChildProcessError:
        return False
    return True


def exit_text(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _ended_child() -> int | None:
    """A child of this process that has ended and is still to be waited for; None: none of them.

    Raises ``ChildProcessError`` if there are no children, or the system does not tell.
    """
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        raise ChildProcessError
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if found is None else found.si_pid


def _members(sessions: Collection[int]) -> Iterator[int]:
    """The processes of some sessions, as far as the system tells (Linux)."""
    wanted = set(sessions) - {0}  # those from outside of this container are said to have 0
    with contextlib.suppress(OSError):
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getsid(pid := int(path.name)) in wanted:
                        yield pid


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
