"""Tests in several processes end as they would in one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PLUGINS = ("anyio", "asyncio", "cacheprovider", "hypothesispytest", "platformdirs", "schemathesis")

CONFTEST = """
import pytest
from tests.support.forks import Forks

def pytest_configure(config):
    config.pluginmanager.register(Forks(config, 3))

@pytest.fixture(scope="session")
def opened():
    yield
    print("closed what all share")
    (__import__("pathlib").Path(__file__).parent / f"closed-{__import__('os').getpid()}").touch()
"""

TESTS = """
import os, signal, sys, time
import pytest

@pytest.mark.parametrize("number", range(30))
def test_passes(number, opened): print("nobody sees this")

def test_fails(): print("said before it failed"); assert [1, 2] == [1, 3]

def test_kills_its_process(): os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.timeout(0.5)
def test_hangs(): time.sleep(60)

@pytest.mark.skip(reason="for a reason")
def test_is_skipped(): ...

@pytest.mark.parametrize("number", range(30))
def test_passes_too(number, opened): ...

@pytest.mark.serial
def test_comes_last(opened): assert not os.path.exists("last"); open("last", "x").close()
"""


def _pytest(folder: Path, tests: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_all.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = serial\ntimeout_method = thread\n")
    without = [part for name in PLUGINS for part in ("-p", f"no:{name}")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", *without, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_test_is_run_and_what_became_of_it_is_said(tmp_path: Path) -> None:
    done = _pytest(tmp_path, TESTS)
    assert "61 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "3 failed" in done.stdout
    assert done.returncode == 1
    assert "assert [1, 2] == [1, 3]" in done.stdout
    assert "said before it failed" in done.stdout
    assert "for a reason" in done.stdout
    assert not done.stderr


def test_a_process_that_dies_takes_only_its_test_along(tmp_path: Path) -> None:
    done = _pytest(tmp_path, TESTS, "-k", "kills or passes or hangs")
    assert "2 failed, 60 passed" in done.stdout, done.stdout
    assert "ended with signal 9" in done.stdout
    assert "ended with exit code 1" in done.stdout
    assert "time.sleep(60)" in done.stdout  # the stack of the one that hung


@pytest.mark.slow
def test_what_tests_share_is_closed_in_each_process(tmp_path: Path) -> None:
    done = _pytest(tmp_path, TESTS, "-k", "passes or comes_last")
    assert "61 passed" in done.stdout, done.stdout
    assert len(list(tmp_path.glob("closed-*"))) == 4  # three for the most, one for the last


@pytest.mark.slow
def test_the_first_failure_ends_it_all_where_that_is_wanted(tmp_path: Path) -> None:
    tests = "import time\ndef test_a(): assert 0\ndef test_b(): time.sleep(60)\n"
    done = _pytest(tmp_path, tests, "-x")
    assert "1 failed" in done.stdout, done.stdout
    assert done.returncode == 1


@pytest.mark.slow
def test_what_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    done = _pytest(tmp_path, "import nothing_of_that_name\n")
    assert "1 error" in done.stdout
    assert done.returncode == 2


@pytest.mark.slow
def test_a_process_that_fails_after_its_last_test_is_noticed(tmp_path: Path) -> None:
    tests = "import atexit, os\ndef test_a(): atexit.register(os._exit, 7)\n"
    done = _pytest(tmp_path, tests)
    said = "after its last test the test process ended with exit code 7"
    assert said in done.stdout + done.stderr
    assert done.returncode == 3


def test_what_measures_and_fails_is_run_once_more_alone_and_listed(tmp_path: Path) -> None:
    tests = """
import os, pytest
pytestmark = pytest.mark.serial

def test_is_disturbed():
    if not os.path.exists("before"):
        open("before", "x").close()
        assert 20.1 < 20, "disturbed"

def test_is_wrong(): assert 30 < 20

def test_is_right(): ...
"""
    done = _pytest(tmp_path, tests)
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert done.returncode == 1
    assert "run again alone: test_all.py::test_is_disturbed" in done.stdout
    assert "AssertionError: disturbed" in done.stdout
    assert "run again alone: test_all.py::test_is_wrong" in done.stdout


@pytest.mark.slow
def test_what_fails_while_the_machine_stands_still_is_run_once_more_alone(tmp_path: Path) -> None:
    tests = """
import os, signal, time

def test_is_disturbed():
    if not os.path.exists("before"):
        open("before", "x").close()
        while not os.path.exists("beside"): time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(3)
        os.kill(os.getppid(), signal.SIGCONT)
        assert 20.1 < 20, "disturbed"

def test_is_wrong():
    open("beside", "w").close()
    time.sleep(6)  # when it fails, the machine has stood still for as long as it ran
    assert 30 < 20

def test_is_wrong_by_itself(): assert not os.path.exists("wrong"); open("wrong", "x").close()

def test_is_wrong_again(): test_is_wrong_by_itself()
"""
    done = _pytest(tmp_path, tests)
    assert "run again alone: test_all.py::test_is_disturbed" in done.stdout, done.stdout
    assert "run again alone: test_all.py::test_is_wrong" in done.stdout
    assert "2 failed, 2 passed" in done.stdout
    assert done.returncode == 1
