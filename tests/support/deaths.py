"""A process that makes others which die: ``kill -9`` at a named place, without a start for each.

A module that is run (``python -m``) calls ``serve`` with what such a process does. It reads a line
of JSON for each, forks, and says how the fork ended. Tests have it from ``deaths``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fairlead.runtime import fault_injection
from tests.support.worker_process import environment_of

__all__ = ("Deaths", "deaths", "serve")


class Deaths:
    """The process, as tests use it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def at(self, site: str, times: int, **order: str) -> int:
        """Die at a place, when it is come to for the nth time; the exit status, -9 if it did."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"fault": f"{site}:{times}:kill", **order})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def deaths(module: str) -> Iterator[Deaths]:
    """Start the process, and end it."""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment_of("killed")},
    ) as process:
        yield Deaths(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def serve(act: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]) -> None:
    """Fork for each line that comes in, do it there, and say how that ended."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                order = json.loads(line)
                fault_injection._fault = fault_injection.parse(order["fault"])
                asyncio.run(act(order))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
