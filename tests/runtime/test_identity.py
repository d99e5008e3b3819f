"""Whether the process of a record is gone for good."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.runtime.identity import VARIABLE, host, identity, is_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc can tell")


def test_a_process_that_lives_is_not_gone() -> None:
    assert not is_gone(host(), os.getpid(), identity(os.getpid()))


def test_a_process_that_has_ended_is_gone_even_before_anybody_asked_how() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = identity(process.pid)
    assert not is_gone(host(), process.pid, told)

    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, as a zombie
    assert is_gone(host(), process.pid, told)
    process.wait()
    assert is_gone(host(), process.pid, told)
    assert process.stdin is not None
    process.stdin.close()


def test_another_process_with_the_same_pid_is_another_process() -> None:
    told = {**identity(os.getpid()), "born": "1"}
    assert is_gone(host(), os.getpid(), told)


@pytest.mark.parametrize("key", ["boot", "namespace"])
def test_nothing_is_said_of_another_machine_or_container(key: str) -> None:
    told = {**identity(os.getpid()), "born": "1", key: "elsewhere"}
    assert not is_gone(host(), os.getpid(), told)


def test_nothing_is_said_of_another_host() -> None:
    assert not is_gone("elsewhere", os.getpid(), {**identity(os.getpid()), "born": "1"})


@pytest.mark.parametrize("told", [{}, {"born": 5}, {"born": None}])
def test_nothing_is_said_of_a_process_that_did_not_say_who_it_is(told: dict[str, object]) -> None:
    assert not is_gone(host(), 2**22, told)


def test_the_host_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "pod-7")
    assert host() == "pod-7"


def test_a_process_of_which_a_thread_is_left_has_not_ended() -> None:
    """It holds its files and locks: what is in its spool cannot be adopted yet."""
    code = "import ctypes, threading; threading.Thread(target=input).start(); print(flush=True);"
    code += " ctypes.CDLL(None).pthread_exit(None)"  # of the first thread alone
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    told = identity(process.pid)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    stat = Path(f"/proc/{process.pid}/stat")
    until = time.monotonic() + 30.0
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not is_gone(host(), process.pid, told)
    process.kill()
    process.wait()
    assert is_gone(host(), process.pid, told)
    process.stdin.close()
    process.stdout.close()
