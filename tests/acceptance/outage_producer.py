"""A program that enqueues with a spool, as whoever started it says, one JSON object a line.

What it attempts and what it was told stands in its book before anything else happens, so that a
kill takes no evidence away. Arguments: the file of its book, and a name for its tasks. While it is
under load it also notes how long the disk took for each sync, and how late its loop was: in a file
beside its book, with the ending ``.times``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import fairlead.spool.files
from fairlead import Context, Fairlead, FairleadError
from fairlead.telemetry import configure

AT_ONCE = 64  # calls of one order
LOOK = 0.005  # seconds between two looks at how late the loop is

_book = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_name = f"{sys.argv[2]}-{os.getpid()}"
_numbers = itertools.count(1)
app = Fairlead(os.environ["TEST_URL"], fallback="spool", spool=os.environ["TEST_SPOOL"])


@app.task(name="nap")
async def nap(ctx: Context, first: float = 0.0, later: float = 0.1) -> int:
    """Runs elsewhere, in workers."""
    raise NotImplementedError


class Load:
    """Calls at an even pace, each on its own, until told to stop."""

    def __init__(self, rate: float, args: list[Any], options: dict[str, Any]) -> None:
        self._rate, self._args, self._options = rate, args, options
        self._over = False
        self._calls: set[asyncio.Task[str]] = set()
        self._pacing = asyncio.create_task(self._pace())

    async def end(self) -> None:
        self._over = True
        await self._pacing
        while self._calls:
            await asyncio.wait(self._calls)

    async def _pace(self) -> None:
        began, made = time.perf_counter(), 0
        while not self._over:
            due = int((time.perf_counter() - began) * self._rate) - made
            for _ in range(due):
                call = asyncio.create_task(enqueue(self._args, self._options))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
            made += due
            await asyncio.sleep(min(0.05, 1.0 / self._rate))


class Meter:
    """Notes what calls wait for besides the broker: the disk, and a turn of the loop."""

    def __init__(self) -> None:
        self._file = os.open(f"{sys.argv[1]}.times", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        files = fairlead.spool.files
        files.sync = self._timed(files.sync)
        files.sync_folder = self._timed(files.sync_folder)
        self._looking = asyncio.create_task(self._look())

    def _timed(self, sync: Callable[..., None]) -> Callable[..., None]:
        def timed(what: Any) -> None:
            began = time.perf_counter()
            sync(what)
            self._note("disk", time.perf_counter() - began)

        return timed

    async def _look(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LOOK)
            self._note("loop", max(time.perf_counter() - began - LOOK, 0.0))

    def _note(self, what: str, seconds: float) -> None:
        os.write(self._file, f"{what} - {time.time():.6f} {seconds:.6f}\n".encode())


async def enqueue(args: list[Any], options: dict[str, Any]) -> str:
    """Make one task, and note how that went."""
    options = {"id": f"{_name}-{next(_numbers)}", **options}
    id = f"{options.get('tenant', 'default')}:{options['id']}"
    note("attempted", id)
    began = time.perf_counter()
    try:
        handle = await nap.using(**options).aenqueue(*args)
        said: str = handle.durability
    except FairleadError as error:
        said = type(error).__name__
    note(said, id, time.perf_counter() - began)
    return said


def note(what: str, id: str, seconds: float = 0.0) -> None:
    os.write(_book, f"{what} {id} {time.time():.6f} {seconds:.6f}\n".encode())


async def obey(order: dict[str, Any], loads: list[Load], meters: list[Meter]) -> dict[str, Any]:
    """Do what the order says; what came of it."""
    args, options = order.get("args", [0.0]), order.get("options", {})
    match order["do"]:
        case "enqueue":
            said: Counter[str] = Counter()
            for start in range(0, order["count"], AT_ONCE):
                calls = range(start, min(start + AT_ONCE, order["count"]))
                said.update(await asyncio.gather(*(enqueue(args, options) for _ in calls)))
            return dict(said)
        case "greet":  # so that no first call of a busy machine takes too long
            with contextlib.suppress(FairleadError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await app.asnapshot()
        case "load":
            if not meters:
                meters.append(Meter())
            loads.append(Load(order["rate"], args, options))
        case "rest":
            while loads:
                await loads.pop().end()
        case "limit":  # a disk that is full: no file may become larger than this
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["bytes"] or hard, hard))
        case "spooled":
            return {"spooled": (await app.asnapshot()).spooled}
        case "close":
            await app.aclose()
    return {}


async def main() -> None:
    configure("json", "info", sys.stderr)
    loads: list[Load] = []
    meters: list[Meter] = []
    print(json.dumps({"ready": os.getpid()}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        print(json.dumps(await obey(order, loads, meters)), flush=True)
        if order["do"] == "close":
            return


if __name__ == "__main__":
    asyncio.run(main())
