"""The demo really runs, ends by itself, and shows what it is there to show."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from fairlead.cli.demo import sentences
from tests.cli.running import fairlead

ESCAPE = "\x1b"
TASKS = {"flood": 1_000, "heavy": 400, "quiet-1": 10, "quiet-2": 10}


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    answer = fairlead("demo", "--json", "--tasks-scale", "0.2")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    assert answer.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_every_task_is_done(figures: dict[str, Any]) -> None:
    assert {name: row["done"] for name, row in figures["tenants"].items()} == TASKS
    assert {name: row["enqueued"] for name, row in figures["tenants"].items()} == TASKS
    assert all(row["waiting"] == 0 for row in figures["tenants"].values())
    assert figures["tasks"] == figures["done"] == sum(TASKS.values())
    assert figures["tasks_per_second"] > 0


def test_a_quiet_tenant_does_not_wait_for_the_flood(figures: dict[str, Any]) -> None:
    quiet = figures["quiet"]
    assert 0 < quiet["wait_p99_ms"] < quiet["fifo_wait_p99_ms"] / 5


def test_a_weight_of_three_gets_three_times_as_much(figures: dict[str, Any]) -> None:
    assert figures["heavy_to_flood"]["expected"] == 3.0
    assert 2.5 <= figures["heavy_to_flood"]["measured"] <= 3.5


def test_the_big_ones_get_the_share_that_their_weight_promises(figures: dict[str, Any]) -> None:
    for tenant in ("flood", "heavy"):
        row = figures["tenants"][tenant]
        assert row["share"] == pytest.approx(row["fair_share"], abs=0.05)


def test_without_a_terminal_there_are_lines_and_a_table_and_no_control_codes() -> None:
    answer = fairlead("demo", "--tasks-scale", "0.05", FORCE_COLOR="1", TERM="xterm-256color")
    assert answer.returncode == 0, answer.stderr
    assert ESCAPE not in answer.stdout + answer.stderr
    assert re.search(r"^demo: 354 of 354 tasks done in \d", answer.stderr, re.MULTILINE)
    assert "tenant" in answer.stdout
    assert all(name in answer.stdout for name in TASKS)
    assert "first in, first out" in answer.stdout
    assert "its weight promises 3" in answer.stdout


def test_the_smallest_demo_and_tasks_that_take_no_time_work_too() -> None:
    answer = fairlead("demo", "--json", "--tasks-scale", "0.001", "--task-ms", "0")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["done"] == 11  # 5 + 2 + 2 + 2


def test_the_sentences_claim_no_more_than_was_measured() -> None:
    seen = {
        "quiet": {"wait_p99_ms": 50.0, "fifo_wait_p99_ms": 60.0},
        "heavy_to_flood": {"measured": None, "expected": 3.0},
    }
    first, second = sentences(seen)
    assert "50 ms" in first
    assert "60 ms" in first
    assert "times" not in first
    assert "heavy got none" in second


def test_an_interrupt_ends_it_with_130_and_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fairlead", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("demo: ")  # it runs
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err


def test_on_a_terminal_the_table_is_drawn_at_most_ten_times_a_second() -> None:
    ours, theirs = pty.openpty()
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "fairlead", "demo", "--tasks-scale", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "NO_COLOR": "1"},
    ) as process:
        os.close(theirs)
        shown = _all_of(ours)
        took = time.monotonic() - began
        assert process.wait(timeout=30) == 0
    assert ESCAPE in shown
    assert not re.search(r"\x1b\[(?:\d+;)*3[0-7]m", shown)  # NO_COLOR
    assert 2 <= shown.count("wait p50") <= 10 * took + 2  # and the first and the last
    assert "its weight promises 3" in shown


def _all_of(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65_536):
            parts.append(part)
    except OSError:  # how a terminal says that nobody is at the other end
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode(errors="replace")
