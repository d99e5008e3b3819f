"""The program of each process of ``fairlead up``: ``lifeline FD MODULE ARGUMENT...``.

It runs a module as ``python -m`` does. FD is the read end of a pipe whose other end only `fairlead
up` has: the kernel closes that, however `fairlead up` ends, and then this process ends as well.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

_GRACE = 3.0  # seconds between asking this process to end and making it


def main(fd: int, module: str, arguments: list[str]) -> None:
    """Run the module until it ends, or until the other end of the pipe is closed."""
    os.set_inheritable(fd, False)  # of no use to the processes that this one starts
    threading.Thread(target=_end_after, args=(fd,), name="lifeline", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_after(fd: int) -> None:
    os.read(fd, 1)  # nobody writes: it returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os.killpg(0, signal.SIGKILL)  # this process leads a group of its own


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
