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


def test_what_takes_longest_starts_first(request: pytest.FixtureRequest) -> None:
    """Else the other processes wait for it in the end."""
    seconds = [
        max((marker.args[0] for marker in item.iter_markers("long")), default=0)
        for item in request.session.items
    ]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.slow
def test_no_file_with_timing_tests_is_left_out_where_they_run() -> None:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:schemathesis"]
    files = [path for path in root.glob("tests/**/test_*.py") if "mark.serial" in path.read_text()]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-m", "serial"],
        cwd=root, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    found = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {str(path.relative_to(root)) for path in files} - {"tests/test_conftest.py"}
