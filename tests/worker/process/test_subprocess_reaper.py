"""Whose exit status the supervisor takes, and whose it leaves to others: real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, subprocess, sys, time
from fairlead.runtime.programs import waiting
from fairlead.worker.process import subprocess_reaper as orphans

def ended(pid):
    # Until it has ended; it is still to be waited for then.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

def left_behind(code, **options):
    # What a program starts and leaves behind; its pid. Without a name it might be waited for.
    text = f"p = subprocess.Popen({code!r}); print(p.pid, flush=True); os._exit(0)"
    text = "import os, subprocess; " + text
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, **options)
    return int(done.stdout)
"""

PROGRAMS = {
    "what was adopted is let go": """
orphans.adopt_orphans()
pids = [left_behind(["sleep", "0.1"]) for _ in range(3)]
for pid in pids:
    ended(pid)
assert all(map(is_there, pids))
orphans.reap_orphans([])
assert not any(map(is_there, pids))
orphans.reap_orphans([])
""",
    "what somebody waits for is left to them": """
mine = subprocess.Popen(["sh", "-c", "exit 7"])
ended(mine.pid)
orphans.reap_orphans([mine.pid])
assert mine.wait() == 7
with waiting():
    mine = subprocess.Popen(["sh", "-c", "exit 8"])
    ended(mine.pid)
    orphans.reap_orphans([])
    assert mine.wait() == 8
""",
    "what is left of a session is ended, with what is not our child": """
orphans.adopt_orphans()
shell = subprocess.Popen(
    ["sh", "-c", "sleep 60 & sh -c 'sleep 61; true' & echo ready; wait"],
    stdout=subprocess.PIPE, start_new_session=True,
)
assert shell.stdout.readline() == b"ready\\n"
pids = lambda: [pid for pid in orphans._members([shell.pid]) if pid != shell.pid]
while len(pids()) < 3:
    time.sleep(0.01)
found = pids()
shell.kill()
shell.wait()
orphans.end_orphans([shell.pid, 0])
deadline = time.monotonic() + 10
while any(map(is_there, found)):
    assert time.monotonic() < deadline, found
    orphans.reap_orphans([])
    time.sleep(0.01)
""",
    "whether there are children": """
assert not orphans.has_children()
mine = subprocess.Popen(["sleep", "60"])
assert orphans.has_children()
mine.kill()
ended(mine.pid)
assert orphans.has_children()
mine.wait()
assert not orphans.has_children()
""",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_in_a_process_of_its_own(what: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + PROGRAMS[what]],
        capture_output=True, text=True, timeout=60, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
