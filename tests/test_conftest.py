"""The tests do the same whoever starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.order import Lanes

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


def test_what_takes_long_has_processes_of_its_own_and_the_longest_starts_first() -> None:
    """Else the other processes wait for it in the end."""
    lanes = Lanes(range(20), lambda number: number * (number % 3 == 0), 4)
    assert lanes.count == 6
    assert [lanes.next(place) for place in (4, 5, 4, 5)] == [18, 15, 12, 9]
    assert [lanes.next(place) for place in range(4)] == [0, 4, 10, 14]
    assert [lanes.next(4) for _ in range(3)] == [6, 3, None]


def test_a_process_that_has_nothing_left_takes_what_takes_long() -> None:
    lanes = Lanes(range(6), lambda number: number * (number > 2), 2)
    assert [lanes.next(0) for _ in range(7)] == [0, 2, 1, 5, 4, 3, None]


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 20, 23])
def test_each_is_run_once_whoever_is_quick(count: int, processes: int) -> None:
    """One that has nothing left takes half of the largest piece."""
    count_of_lanes = Lanes(range(count), lambda number: number % 5 == 1, processes).count
    for quick in range(count_of_lanes):
        lanes = Lanes(range(count), lambda number: number % 5 == 1, processes)
        found = [lanes.next(place) for place in range(lanes.count)]
        for place in (quick, *range(lanes.count)):
            while (item := lanes.next(place)) is not None:
                found.append(item)
        assert sorted(number for number in found if number is not None) == list(range(count))


def test_neighbors_run_in_one_process() -> None:
    lanes = Lanes(range(12), lambda number: 0.0, 3)
    assert [lanes.next(1) for _ in range(4)] == [4, 5, 6, 7]
    assert [lanes.next(1) for _ in range(2)] == [2, 3]


def test_what_a_process_did_not_begin_is_left_for_another() -> None:
    lanes = Lanes(range(4), lambda number: 0.0, 2)
    assert [lanes.next(0), lanes.next(0)] == [0, 1]
    lanes.give_back(1)
    assert [lanes.next(1) for _ in range(3)] == [2, 3, 1]
