"""``fairlead up``: everything in one process tree, found again, and gone when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fairlead import Fairlead
from tests.cli.running import answered
from tests.cli.up.up_process import UpProcess, running_up, survivors, until
from tests.support.servers import server

pytestmark = [pytest.mark.slow, pytest.mark.long(15)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with running_up(tmp_path_factory.mktemp("up"), "tasks:app", "--port", "0") as running:
        yield running


def test_its_first_lines_say_what_to_open_and_what_to_type_next(up: UpProcess) -> None:
    first = up.said.splitlines()[:6]
    assert first[0].startswith("Fairlead is up after ")
    assert any(line.startswith("  Open  http://127.0.0.1:") for line in first)
    assert " top " in up.said
    assert "-m fairlead task list" in up.said


def test_commands_in_another_terminal_of_the_folder_find_it(up: UpProcess) -> None:
    sent = up.fairlead("task", "enqueue", "shop.add", "1", "2", "--wait")
    assert sent.returncode == 0, sent.stderr
    assert "3" in sent.stdout
    assert up.fairlead("check").returncode == 0


def test_lines_of_its_processes_stand_behind_their_names(up: UpProcess) -> None:
    lines = up.logged.splitlines()
    assert lines[0].startswith("valkey   | ready, pid ")
    assert any(line.startswith("worker   | ") and "worker started" in line for line in lines)
    assert any(line.startswith("api      | listening on http://127.0.0.1:") for line in lines)
    assert {line.partition("|")[0].strip() for line in lines} == {"valkey", "worker", "api"}


def test_the_link_signs_in_once(up: UpProcess) -> None:
    assert httpx.get(f"{up.address}/api/v1/queues").status_code == 401
    allowed = up.signed_in()
    assert httpx.get(f"{up.address}/api/v1/queues", headers=allowed).status_code == 200
    again = httpx.post(f"{up.address}/sign-in", json={"code": up.code})
    assert again.status_code == 401
    assert "used already" in again.json()["detail"]


def test_a_second_one_in_the_folder_is_told_of_the_first(up: UpProcess) -> None:
    other = up.fairlead("up", "tasks:app", "--port", "0")
    assert other.returncode == 2
    assert f"process {up.process.pid}, page at {up.address}" in other.stderr


def test_a_process_of_it_that_dies_is_started_again(up: UpProcess) -> None:
    api = next(pid for pid, line in survivors(up.folder) if b"fairlead api" in line)
    os.kill(int(api), signal.SIGKILL)
    until(lambda: "starts again" in up.logged, "a new one")
    # The port was never closed: who asks meanwhile waits for the new one.
    assert httpx.get(f"{up.address}/livez", timeout=30).status_code == 200
    assert "api      | ended with signal 9; starts again in 0.5 s" in up.logged


def test_a_server_of_it_that_dies_comes_back_with_its_data(up: UpProcess) -> None:
    sent = up.fairlead("task", "enqueue", "shop.add", "20", "3", "--wait")
    assert sent.returncode == 0, sent.stderr
    state = json.loads(up.fairlead("stats", "--json").stdout)
    valkey = next(pid for pid, line in survivors(up.folder) if b"valkey-server" in line)
    os.kill(int(valkey), signal.SIGKILL)
    ready = f"{up.address}/readyz"
    until(lambda: httpx.get(ready, timeout=30).status_code == 200, "the server")
    assert json.loads(up.fairlead("stats", "--json").stdout).keys() == state.keys()
    sent = up.fairlead("task", "enqueue", "shop.add", "4", "5", "--wait")
    assert "9" in sent.stdout


def test_ctrl_c_ends_it_within_three_seconds_and_a_second_start_finds_the_data(
    tmp_path: Path,
) -> None:
    with running_up(tmp_path, "tasks:app", "--port", "0") as up:
        sent = up.fairlead("task", "enqueue", "shop.long", "600", "--json")
        assert sent.returncode == 0, sent.stderr
        until(lambda: '"running"' in _shown(up, sent.stdout), "its start")
        began = time.monotonic()
        assert up.end() == 0, up.logged
        took = time.monotonic() - began
        assert up.logged.endswith("ended\n")
        assert survivors(tmp_path) == []
        assert took < 3.0 + 3.0  # a busy machine takes longer than an idle one, which took 1.5
    with running_up(tmp_path, "tasks:app", "--port", "0") as up:
        until(lambda: '"running"' in _shown(up, sent.stdout), "it")  # given back, and taken again


def _shown(up: UpProcess, enqueued: str) -> str:
    return up.fairlead("task", "show", json.loads(enqueued)["id"], "--json").stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_kill_9_leaves_nothing_running() -> None:
    # PostgreSQL, which does not run as root, must be able to pass the folder.
    with (
        tempfile.TemporaryDirectory() as folder,
        running_up(_passable(folder), "tasks:app", "--ledger", "--port", "0") as up,
    ):
        names = b" ".join(line for _, line in survivors(Path(folder)))
        for name in (b"valkey-server", b"postgres", b"fairlead worker", b"fairlead manager"):
            assert name in names
        up.process.kill()
        up.process.wait()
        until(lambda: survivors(Path(folder)) == [], "the end of all")


def test_all_kinds_of_work_are_done_in_the_demo(tmp_path: Path) -> None:
    with running_up(tmp_path, "--demo", "--port", "0") as up:
        states: set[str] = set()

        def seen() -> bool:
            found = json.loads(up.fairlead("task", "list", "--json", "--limit", "500").stdout)
            states.update(each["state"] for each in found["tasks"])
            return states >= {"completed", "scheduled", "deferred", "running", "queued", "dead"}

        until(seen, "all states")
        tenants = json.loads(up.fairlead("tenant", "list", "--json").stdout)
        assert {"acme", "bulk", "globex", "initech", "umbrella", "stark"} <= {
            each["tenant"] for each in tenants["tenants"]
        }
        assert up.fairlead("schedule", "show", "demo-digest").returncode == 0
        assert "Traceback" not in up.logged


def test_your_own_server_is_used_and_none_is_started(tmp_path: Path) -> None:
    with (
        server() as valkey,
        running_up(tmp_path, "tasks:app", "--url", valkey.url, "--port", "0") as up,
    ):
        assert not (tmp_path / ".fairlead").exists()
        app = Fairlead(valkey.url)
        assert app.send("shop.add", 2, 5).result(timeout=30) == 7
        app.close()
        assert "valkey   |" not in up.logged


def test_an_app_that_cannot_be_loaded_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    up = UpProcess(tmp_path, "missing:app")
    assert up.wait() == 2
    assert survivors(tmp_path) == []


def test_a_port_that_is_taken_is_refused_if_it_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = answered("up", "--url", "redis://127.0.0.1:1", "--port", str(port))
    assert answer.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in answer.stderr


def _passable(folder: str) -> Path:
    place = Path(folder)
    place.chmod(0o711)
    return place
