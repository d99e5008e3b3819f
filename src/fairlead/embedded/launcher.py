"""The program that becomes the server.

``python -I -S launcher.py LOCK LIFELINE MACHINE STOP ACCOUNT BINARY ARGUMENT...``

It runs between Fairlead and the server because four things must be done inside the process that
will be the server, and doing them after a fork of a program with threads is not safe:

- the server is nobody's child, so whoever happened to start it neither has to reap it nor can take
  it along; it is in a session of its own, so Ctrl-C in a terminal does not reach it;
- the lock that it inherits stays locked for exactly as long as it lives, and says who it is: its
  pid and when it started, and MACHINE, which is the boot and the namespace this pid belongs to;
- with a lifeline (the read end of a pipe, -1 for none), a watcher ends the server once the other
  end is closed, which the kernel does for a process that is killed, too. Unlike PR_SET_PDEATHSIG
  this does not depend on the *thread* that started the server, and macOS has it as well. STOP is
  the number of the signal that asks the server to end;
- with an ACCOUNT (``uid:gid``, ``-`` for none) the server runs as that user. Only the server has
  to be executable for it, not the Python that runs this.

The configuration comes through stdin, which the server inherits: a password in an argument would
be there for everybody to read. Imports nothing but the standard library, and little of that.
"""

from __future__ import annotations

import os
import select
import signal
import sys

_GRACE = 5.0  # seconds between asking the server to end and making it


def main(lock: int, lifeline: int, machine: str, stop: int, account: str, *command: str) -> None:
    """Start ``command`` in a process of its own and return; there, never return."""
    os.umask(0o077)
    if os.fork():
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {_born()} {machine}".strip().encode(), 0)
    if account != "-":
        uid, gid = map(int, account.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if lifeline >= 0:
        _guard(lock, lifeline, stop)
    os.execv(command[0], command)  # noqa: S606 - the point of it: no shell, and the same pid


def _born() -> str:
    """When this process started, as ``fairlead.runtime.identity`` reads it; empty if unknown."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[19]
    except OSError:  # not Linux
        return ""


def _guard(lock: int, lifeline: int, stop: int) -> None:
    """Leave a watcher behind, as a child of this process, which is about to be the server."""
    server = os.getpid()
    ended, alive = os.pipe()  # the server holds ``alive``, so ``ended`` reads as closed after it
    if os.fork():
        os.set_inheritable(alive, True)
        os.close(ended)
        os.close(lifeline)
        return
    os.close(alive)
    os.close(lock)  # or it would seem to be the server's for as long as this process lives
    _watch(server, lifeline, ended, stop)
    os._exit(0)


def _watch(server: int, lifeline: int, ended: int, stop: int) -> None:
    select.select([lifeline, ended], [], [])
    # Once the server is gone this is another process's child: no stranger with its pid is hit.
    if os.getppid() == server:
        os.kill(server, stop)
        select.select([ended], [], [], _GRACE)
    if os.getppid() == server:
        os.kill(server, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
