"""A process that makes others which die: ``kill -9`` at a named place, without a start for each.

Reads one line of JSON for each, forks, and says how the fork ended. A fork takes the leadership, as
a manager would, and sends all that is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from fairlead.broker import connect
from fairlead.ledger.ledger import Ledger
from fairlead.runtime import faults
from tests.manager.bench import Bench
from tests.support.worker_process import environment_of

__all__ = ("Deaths", "deaths")


class Deaths:
    """The process, as tests use it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def at(self, site: str, url: str, dsn: str, times: int = 1) -> int:
        """Die at a place, when it is come to for the nth time; the exit status, -9 if it did."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"fault": f"{site}:{times}:kill", "url": url, "dsn": dsn}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def deaths() -> Iterator[Deaths]:
    """Start the process, and end it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.manager.killed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment_of("killed")},
    ) as process:
        yield Deaths(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


async def _manage(order: dict[str, Any]) -> None:
    faults._fault = faults.parse(order["fault"])
    store = connect(order["url"])
    async with Ledger(order["dsn"]) as ledger:
        bench = Bench(store, ledger, order["dsn"])
        term = await bench.lead("killed")
        await bench.dispatcher(term, batch=4).dispatch_all()
    await store.close()


def _main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                asyncio.run(_manage(json.loads(line)))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _main()
