"""Loops in daemon threads at the end of the process: none calls into what is gone."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.runtime.programs import ROOT

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "on_exit"), reason="the C library has no on_exit"
)

#: The process takes a second between the end of the interpreter and its own: it calls
#: sleep(exit code), where a loop that goes on meets its next timer. While the interpreter is taken
#: down a timer only ends its thread, so the pause is longer than that takes.
LONG_END = """
import asyncio, ctypes, sys

libc = ctypes.CDLL(None)
libc.on_exit(ctypes.cast(libc.sleep, ctypes.c_void_p), None)

async def tick():
    while True:
        await asyncio.sleep(0.3)
"""

PORTAL = """
from fairlead.runtime.portal import portal

async def begin():
    begin.task = asyncio.create_task(tick())

portal.run(begin)
"""

OF_ONES_OWN = """
import threading
from fairlead.runtime.daemon_loops import stand_still_at_the_end
from fairlead.runtime.event_loop import new_runner

begun = threading.Event()

async def main():
    stand_still_at_the_end(asyncio.get_running_loop())
    begun.set()
    await tick()

def serve():
    with new_runner() as runner:
        runner.run(main())

threading.Thread(target=serve, daemon=True).start()
begun.wait()
"""

SPOOL = """
import tempfile, threading
from pathlib import Path
from fairlead import Fairlead

begun = threading.Event()
directory = tempfile.TemporaryDirectory()
app = Fairlead(
    "redis://127.0.0.1:1", fallback="local", local_queues=["default"], spool=Path(directory.name)
)

@app.task
async def runs_here():
    begun.set()
    await tick()

runs_here.enqueue()
begun.wait()
"""


def ended(program: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{LONG_END}{program}\nsys.exit(1)"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "program", [PORTAL, OF_ONES_OWN, SPOOL], ids=["portal", "of one's own", "local tasks"]
)
def test_a_loop_with_timers_does_not_crash_the_end_of_the_process(program: str) -> None:
    assert ended(program) == (1, "")
