"""The tests do the same whoever starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.order import dealt, seconds_of, shares, turned

# As a shell does with `make test &`, or nohup, and then what every test process does first.
DEAF = """
import signal, subprocess, sys
for each in (signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
import tests.conftest
asked = "[signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGINT, signal.SIGHUP)]"
child = f"import signal; print({asked})"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_what_a_test_starts_hears_signals_even_if_the_tests_were_started_deaf_to_them() -> None:
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", DEAF],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "[False, False]\n"), done.stderr


def test_what_takes_longest_starts_first(request: pytest.FixtureRequest) -> None:
    """Else the other processes wait for it in the end."""
    seconds = [seconds_of(item) for item in request.session.items]
    for size in shares(len(seconds), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))):
        piece, seconds = seconds[:size], seconds[size:]
        assert piece == sorted(piece, reverse=True)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 20, 23])
def test_half_the_processes_begin_with_some_that_take_long(count: int, processes: int) -> None:
    items = list(range(count))
    found = dealt(items, lambda n: n * (n % 3 == 0), processes)
    assert sorted(found) == items
    if count >= 20:
        begins = [sum(shares(count, processes)[:place]) for place in range(processes)]
        half = (processes + 1) // 2
        long = [n for n in reversed(items) if n % 3 == 0 and n]
        assert [found[begin] for begin in begins[:half]] == long[:half]
        assert all(found[begin] not in long for begin in begins[half:])


def test_where_most_take_long_each_process_begins_with_some() -> None:
    found = dealt(range(1, 9), float, 4)
    assert [found[begin] for begin in (0, 2, 4, 6)] == [8, 7, 6, 5]


def test_no_two_processes_begin_with_the_same_file() -> None:
    """Else all of them compile the same at the same time."""
    found = [turned("abcdefghij", place, 4) for place in range(4)]
    assert ["".join(each)[:3] for each in found] == ["abc", "cde", "fgh", "hij"]
    assert all(sorted(each) == list("abcdefghij") for each in found)


@pytest.mark.slow
def test_no_file_with_timing_tests_is_left_out_where_they_run() -> None:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only"]
    files = [path for path in root.glob("tests/**/test_*.py") if "mark.serial" in path.read_text()]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-m", "serial"],
        cwd=root, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    found = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {str(path.relative_to(root)) for path in files} - {"tests/test_conftest.py"}
