"""``fairlead worker`` and ``fairlead check`` as a user meets them: words and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import answered
from tests.support.servers import server

COMMAND = [sys.executable, "-m", "fairlead"]

APP = """
import os
from fairlead import Fairlead

app = Fairlead(os.environ["FAIRLEAD_TEST_URL"])
other = 5
memory = Fairlead("memory://")

@app.task
async def hello(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    return tmp_path


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("valkey") as running:
        yield running.url


def fairlead(
    folder: Path, *args: str, url: str = "redis://127.0.0.1:1/0"
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FAIRLEAD_TEST_URL": url, "FAIRLEAD_RUN_DIR": str(folder / "run")}
    return subprocess.run(
        [*COMMAND, *args], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("shop.py", 2, "module 'shop.py'"),
        ("./shop:app", 2, "MODULE:ATTRIBUTE"),
        ("nowhere:app", 2, "there is no module 'nowhere'"),
        ("shop:ap", 2, "has no 'ap'; did you mean app?"),
        ("shop:other", 2, "is of type int, not an app"),
        ("shop:memory", 2, "keeps its tasks inside of one process"),
        ("broken", 1, "importing 'broken' failed: ModuleNotFoundError"),
    ],
)
def test_an_app_that_cannot_be_had_is_one_line_and_an_exit_code(
    folder: Path, target: str, code: int, words: str
) -> None:
    done = fairlead(folder, "worker", target, "--log-format", "json")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(errors)) == (code, 1), done.stderr
    assert words in errors[0]
    assert "Traceback" not in done.stderr


def test_an_app_that_names_its_broker_is_not_led_to_another(folder: Path) -> None:
    done = fairlead(folder, "worker", "shop:app", "--url", "redis://127.0.0.1:2/0")
    assert done.returncode == 2
    assert "'shop:app' names its broker itself; leave --url out" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-q", "high=x"], "high=x"),
        (["-q", "a b"], "a b"),
        (["-c", "0"], "0"),
        (["-p", "0"], "0"),
        (["--lease", "0.1"], "0.1"),
        (["--max-tasks", "-1"], "-1"),
        (["--max-rss", "1MB"], "'1MB' is not at least 16 MB"),
        (["--max-rss", "much"], "'much' is not"),
        (["--max-age", "-1"], "-1"),
        (["--log-format", "xml"], "xml"),
    ],
)
def test_wrong_options_are_named(options: list[str], words: str) -> None:
    done = answered("worker", "shop:app", *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_check_without_a_worker_says_so(folder: Path) -> None:
    done = fairlead(folder, "check")
    assert done.returncode == 4
    assert "no worker" in done.stderr
    report = json.loads(answered("check", "--json", FAIRLEAD_RUN_DIR=str(folder / "run")).stdout)
    assert (report["code"], report["workers"]) == (4, [])
    other = answered("check", "--app", "shop.tasks", FAIRLEAD_RUN_DIR=str(folder / "run"))
    assert other.stderr.startswith("no worker of shop.tasks:app of this user on this machine")


@pytest.mark.slow
def test_a_worker_is_checked_from_its_start_to_its_end(folder: Path, url: str) -> None:
    environment = {**os.environ, "FAIRLEAD_TEST_URL": url, "FAIRLEAD_RUN_DIR": str(folder / "run")}
    worker = subprocess.Popen(
        [*COMMAND, "worker", "shop:app", "-c", "3", "--log-format", "json"],
        cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _wait_for(lambda: fairlead(folder, "check", "--ready").returncode == 0)
        report = json.loads(fairlead(folder, "check", "--json", "--pid", str(worker.pid)).stdout)
        (status,) = report["workers"]
        assert (status["app"], status["wanted"]) == ("shop:app", 1)
        (child,) = status["children"]
        assert child["state"] == "working"
        assert fairlead(folder, "check", "--pid", "1").returncode == 4
        mine = fairlead(folder, "check", "--app", "shop")
        assert (mine.returncode, "1 of 1 children, 0 tasks running" in mine.stdout) == (0, True)
        assert fairlead(folder, "check", "--app", "shop:other").returncode == 4

        os.kill(child["pid"], signal.SIGSTOP)  # its loop stands still
        _wait_for(lambda: fairlead(folder, "check").returncode == 1)
        os.kill(child["pid"], signal.SIGCONT)
        _wait_for(lambda: fairlead(folder, "check").returncode == 0)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert fairlead(folder, "check").returncode == 4
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert events.count("worker started") == 1
    assert events[-1] == "child ended"


def test_a_worker_waits_for_a_broker_that_is_not_there_yet(folder: Path) -> None:
    environment = {
        **os.environ,
        "FAIRLEAD_TEST_URL": "redis://127.0.0.1:1/0",
        "FAIRLEAD_RUN_DIR": str(folder / "run"),
    }
    worker = subprocess.Popen(
        [*COMMAND, "worker", "shop:app"], cwd=folder, env=environment, stderr=subprocess.PIPE
    )
    try:
        found = {"FAIRLEAD_RUN_DIR": environment["FAIRLEAD_RUN_DIR"]}
        _wait_for(lambda: answered("check", **found).returncode == 0)
        assert fairlead(folder, "check", "--ready").returncode == 3
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)
    assert worker.returncode == 0


def _wait_for(holds: object) -> None:
    until = time.monotonic() + 30
    assert callable(holds)
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)
