"""Running a small program in a process of its own, for tests of forks, exits and signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(program: str, timeout: float = 60.0) -> str:
    """What the program printed. It must end well and complain about nothing."""
    # From Python 3.12 on, a fork beside other threads warns. Ours is made to survive that.
    command = [sys.executable, "-W", "error", "-W", "ignore:This process is multi"]
    done = subprocess.run(
        [*command, "-c", program], capture_output=True, text=True, timeout=timeout, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
