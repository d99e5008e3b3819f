"""The tests do the same whoever starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# As a shell does with `make test &`, or nohup, and then what every test process does first.
DEAF = """
import signal, subprocess, sys
signal.signal(signal.SIGNAL, signal.SIG_IGN)
import tests.conftest
child = "import signal; print(signal.getsignal(signal.SIGNAL) is signal.SIG_IGN)"
subprocess.run([sys.executable, "-c", child], check=True)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_what_a_test_starts_hears_signals_even_if_the_tests_were_started_deaf_to_them(
    name: str,
) -> None:
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", DEAF.replace("SIGNAL", name)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
