"""The bench beside peers measures what it says, and leaves nothing behind.

Fairlead itself is measured for real, at a tiny size. No peer is installed here: that would need a
network. Programs that are not there, or that fail, stand for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from benchmarks.peers import marks
from benchmarks.peers.catalog import FAIRLEAD, PEERS
from benchmarks.peers.installation import Installed, Installer, Missing
from benchmarks.peers.measures import MEASURES, Measure, Sizes, rate
from benchmarks.peers.processes import Failure, Processes
from benchmarks.peers.rounds import measure
from benchmarks.peers.server import Server
from benchmarks.peers.trial import Trial
from fairlead.broker import connect
from fairlead.embedded.valkey_server import find_binary
from tests.architecture.source import ROOT, files

TINY = Sizes(rounds=1, share=0.005, seconds=0.1, paced=10, filled=0.005)
SECOND = 1_000_000_000  # nanoseconds
BY_NAME = {peer.name: peer for peer in PEERS}


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as found:
        yield found


@pytest.fixture
def server(processes: Processes) -> Iterator[Server]:
    found = Server(processes, str(find_binary()))
    assert found.version.startswith("Valkey")
    yield found
    found.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for temporary files with a short name: there will be sockets in it."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        yield Path(folder)


def silent(text: str) -> None: ...


def own(processes: Processes, tmp_path: Path) -> Installed:
    found = Installer(tmp_path, processes, silent).install(FAIRLEAD)
    assert isinstance(found, Installed), found
    return found


def named(*names: str) -> list[Measure]:
    return [each for each in MEASURES if each.name in names]


# -- Fairlead, for real -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long(15)
def test_each_figure_of_fairlead_is_measured(
    processes: Processes, server: Server, tmp_path: Path
) -> None:
    said: list[str] = []
    # So few tasks are done before a second process has started.
    wanted = [each for each in MEASURES if each.name != "processing-2"]
    found = measure(
        [own(processes, tmp_path)], wanted, TINY, server, processes, said.append
    )  # fmt: skip
    assert found.troubles == []
    assert set(found.rounds) == {
        "fairlead", "fairlead, 1,000 tenants", "fairlead, 10,000 tenants",
    }  # fmt: skip
    figures = {key: values[0] for key, values in found.rounds["fairlead"].items()}
    assert set(figures) == {figure.key for each in wanted for figure in each.figures}
    assert all(value is not None and value > 0 for value in figures.values())
    assert figures["p50"] <= figures["p99"] < 1_000  # type: ignore[operator]
    assert figures["callers"] > figures["async"]  # type: ignore[operator]
    assert "round 1 of 1: processing, fairlead, 10,000 tenants" in said


@pytest.mark.slow
def test_a_worker_runs_every_task_once_and_in_as_many_processes_as_it_should(
    processes: Processes, server: Server, tmp_path: Path
) -> None:
    with Trial(own(processes, tmp_path), server, processes, tenants=7) as trial:
        trial.start(20, processes=2)
        _eventually(lambda: _look(server).workers == 2)
        trial.tell("fill", 3_000)
        found = trial.wait(3_000)
        now = time.time_ns()
        assert len(found) == 2
        assert sum(map(len, found.values())) == 3_000
        assert rate(found, 2) > 0
        assert all(now - 60 * SECOND < at < now for each in found.values() for at in each)
        trial.stop()
        assert _look(server).waiting == 0
        trial.tell("fill", 50)
        assert _look(server) == Look(waiting=50, tenants=7, workers=0)


@pytest.mark.slow
def test_every_row_begins_on_an_empty_server_and_leaves_one(
    processes: Processes, server: Server, tmp_path: Path
) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.set("left", "over")
        with Trial(own(processes, tmp_path), server, processes) as trial:
            assert client.dbsize() == 0
            trial.tell("fill", 20)
            assert client.dbsize() > 0
        assert client.dbsize() == 0
        assert client.config_get("appendonly") == {"appendonly": "no"}
    assert sorted(path.name for path in processes.folder.iterdir()) == ["server", "server.log"]


def test_the_command_prints_tables_and_nothing_else_and_leaves_nothing(
    tmp_path: Path, place: Path
) -> None:
    answer = subprocess.run(
        _command(tmp_path, "--peers", "bullmq,sidekiq", "--measures", "sync,bulk", "--rounds", "2"),
        env=_environment(tmp_path, place),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert answer.returncode == 0, answer.stderr
    assert "bench:" not in answer.stdout
    assert "bench: round 2 of 2: bulk, fairlead\n" in answer.stderr
    assert "| Sidekiq  | not here" in answer.stdout
    assert "- Sidekiq is not here: it is not installed (Debian and Ubuntu: apt" in answer.stdout
    assert "- BullMQ is not here: it needs Node.js and npm" in answer.stdout
    assert "not measured: Sidekiq is not here" in answer.stdout
    assert list(place.iterdir()) == []
    assert not (tmp_path / "peers").exists()
    assert _processes_of(place) == []


@pytest.mark.slow
def test_scripts_get_every_figure_of_every_round(tmp_path: Path, place: Path) -> None:
    answer = subprocess.run(
        _command(tmp_path, "--peers", "sidekiq", "--measures", "sync", "--rounds", "3", "--json"),
        env=_environment(tmp_path, place),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    values = found["rounds"]["fairlead"]["sync"]
    assert len(values) == 3
    assert found["rows"]["fairlead"]["sync"]["median"] == sorted(values)[1]
    assert found["rows"]["fairlead"]["sync"]["spread"] > 0
    assert list(found["missing"]) == ["sidekiq"]
    assert found["machine"]["server"].startswith(("Valkey", "Redis"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_bench_ends_its_server_and_workers(
    how: signal.Signals, tmp_path: Path, place: Path
) -> None:
    bench = subprocess.Popen(
        _command(tmp_path, "--peers", "sidekiq", "--measures", "latency", scale="20"),
        env=_environment(tmp_path, place),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        # The bench, its guard, the server, a supervisor with its child, and who enqueues.
        _eventually(lambda: len(_processes_of(place)) >= 6)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _processes_of(place)]
        assert any(b"valkey-server" in each for each in commands)
        assert any(b"worker" in each for each in commands)
    finally:
        bench.send_signal(how)
        bench.wait(30)
    _eventually(lambda: _processes_of(place) == [])
    _eventually(lambda: list(place.iterdir()) == [])


# -- peers that cannot be had, or fail --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bullmq", "it needs Node.js and npm (Debian and Ubuntu: apt install nodejs npm)"),
        ("sidekiq", "it is not installed (Debian and Ubuntu: apt install ruby-sidekiq)"),
    ],
)
def test_a_peer_whose_language_is_missing_says_what_to_install(
    name: str, why: str, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Installer(tmp_path / "peers", processes, silent).install(BY_NAME[name])
    assert found == Missing(BY_NAME[name], why)


def test_a_ruby_without_sidekiq_is_as_good_as_none(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "ruby", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = Installer(tmp_path / "peers", processes, silent).install(BY_NAME["sidekiq"])
    assert isinstance(found, Missing)
    assert "apt install ruby-sidekiq" in found.why


def test_what_an_installer_complains_of_is_the_reason_and_it_is_asked_again_the_next_time(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "node", "exit 0")
    _program(tmp_path / "npm", "echo once >> $0.calls; echo 'npm error 404: no bullmq' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    installer = Installer(tmp_path / "peers", processes, silent)
    for times in (1, 2):
        found = installer.install(BY_NAME["bullmq"])
        assert isinstance(found, Missing)
        assert found.why.startswith("npm could not install bullmq@")
        assert found.why.endswith("npm error 404: no bullmq")
        assert (tmp_path / "npm.calls").read_text().count("once") == times


def test_what_is_installed_is_not_installed_again_until_its_pins_change(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "node", """echo '{"version": "bullmq 1"}'""")
    _program(tmp_path / "npm", 'echo "$@" >> $0.calls')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    installer, peer = Installer(tmp_path / "peers", processes, silent), BY_NAME["bullmq"]
    assert isinstance(installer.install(peer), Installed)
    assert isinstance(installer.install(peer), Installed)
    installer.install(replace(peer, packages=("bullmq@0",)))
    first, second = (tmp_path / "npm.calls").read_text().splitlines()
    assert "--no-package-lock" in first
    assert first.endswith(" ".join(peer.packages))
    assert second.endswith("bullmq@0")


@pytest.mark.slow
def test_a_worker_that_ends_or_a_call_that_fails_costs_one_figure_and_is_told_of(
    processes: Processes, server: Server, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    _program(adapter, "case $1 in fill) echo '{}';; *) echo 'it broke' >&2; exit 3;; esac")
    peer = replace(FAIRLEAD, name="other", title="Other", ways=frozenset(("sync",)))
    broken = Installed(peer, (str(adapter),), "other 1")
    found = measure(
        [own(processes, tmp_path), broken], named("processing", "sync"), TINY, server, processes,
        silent,
    )  # fmt: skip
    assert found.rounds["other"] == {"processing": [None], "sync": [None]}
    assert found.cell("fairlead", "sync") is not None
    assert found.troubles == [
        "other, processing: 0 of 400 tasks ran, then a worker ended: it broke",
        "other, sync: it broke",
    ]


def test_an_environment_that_is_broken_or_babbles_is_a_missing_peer(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "ruby", "echo hello")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = Installer(tmp_path, processes, silent).install(BY_NAME["sidekiq"])
    assert found == Missing(BY_NAME["sidekiq"], r"asked for its version, it said 'hello\n'")
    with pytest.raises(Failure, match="gone cannot be started: No such file"):
        processes.run([str(tmp_path / "gone")], within=5.0)


def test_a_command_that_hangs_is_ended_with_all_that_it_has_started(
    processes: Processes, tmp_path: Path
) -> None:
    _program(tmp_path / "hang", f"sleep 300 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(Failure, match=r"not done within 0\.5 s"):
        processes.run([str(tmp_path / "hang")], within=0.5)
    child = int((tmp_path / "pid").read_text())
    _eventually(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))


# -- how figures are made ---------------------------------------------------------------------


def test_a_rate_counts_from_when_the_last_process_has_begun() -> None:
    early = [number * SECOND // 10 for number in range(101)]  # ten a second, for ten seconds
    late = [5 * SECOND + number * SECOND // 10 for number in range(51)]
    assert rate({"1": early}, 1) == pytest.approx(10.0)
    assert rate({"1": early, "2": late}, 2) == pytest.approx(20.0)


def test_a_process_that_ran_nothing_leaves_no_rate() -> None:
    with pytest.raises(Failure, match="only 1 of 2 processes ran tasks"):
        rate({"1": [1, 2]}, 2)
    with pytest.raises(Failure, match="before the other began"):
        rate({"1": [1, 2], "2": [3]}, 2)


def test_marks_of_threads_and_forks_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """if True:
        import os, threading
        from benchmarks.peers.marks import Marks
        marks = Marks()
        marks.ran_after(2 ** 62)  # in the future: a latency is never less than one
        threads = [threading.Thread(target=lambda: [marks.ran() for _ in range(500)])
                   for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if not os.fork():
            marks.ran()
            os._exit(0)
        os.wait()
    """
    environment = {**os.environ, marks.FOLDER: str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=30)
    assert sorted(marks.count(tmp_path).values()) == [1, 2_001]
    found = max(marks.read(tmp_path).values(), key=len)
    assert found[0] == 1
    assert all(found)


def test_adapters_import_nothing_but_their_peer_and_what_needs_no_fairlead() -> None:
    beside = {"adapter", "driver", "marks", "__init__"}
    for path in files(ROOT, "benchmarks/peers", ".py"):
        if path.parent.name != "adapters" and path.stem not in beside:
            continue
        if path.stem == "fairlead":
            continue
        for line in path.read_text().splitlines():
            assert "fairlead" not in line.split(" import ")[0].split()[1:2], path
            if line.startswith("from benchmarks."):
                assert line.split()[1].rpartition(".")[2] in beside, path


def test_every_peer_is_pinned_and_no_file_is_too_long() -> None:
    for peer in PEERS:
        assert all("==" in each or "@" in each for each in peer.packages)
        suffix = {"node": ".cjs", "ruby": ".rb"}.get(peer.language, ".py")
        assert (ROOT / "benchmarks/peers/adapters" / f"{peer.name}{suffix}").is_file()
    for suffix in (".py", ".cjs", ".rb"):
        for path in files(ROOT, "benchmarks", suffix):
            assert len(path.read_text().splitlines()) <= 400, path


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_runs_it_from_the_checkout_and_cleans_up_after_it() -> None:
    def told(*arguments: str) -> str:
        command = ["make", "--dry-run", "--no-print-directory", *arguments]
        return subprocess.check_output(command, cwd=ROOT, text=True, timeout=30)

    run = ".venv/bin/python -m benchmarks.peers --quick --peers rq\n"
    assert told("bench", "ARGS=peers --quick --peers rq").endswith(run)
    assert told("bench", "ARGS=memory --quick").endswith("python -m benchmarks memory --quick\n")
    assert " .bench " in told("clean")
    assert ".bench/" in (ROOT / ".gitignore").read_text().splitlines()


# -- helpers ----------------------------------------------------------------------------------


def _command(tmp_path: Path, *more: str, scale: str = "0.01") -> list[str]:
    folder = ("--folder", str(tmp_path / "peers"))
    return [sys.executable, "-m", "benchmarks.peers", "--quick", "--scale", scale, *folder, *more]


def _environment(tmp_path: Path, place: Path) -> dict[str, str]:
    """Where no other language is, and where what it leaves can be found."""
    (tmp_path / "bin").mkdir()
    return {**os.environ, "PATH": str(tmp_path / "bin"), "TMPDIR": str(place)}


def _processes_of(place: Path) -> list[int]:
    """Return those that work there, or whose temporary files are there."""
    # Both: a server writes its title over its environment, and the bench works in the checkout.
    found = []
    wanted = f"TMPDIR={place}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            works_there = str((path / "cwd").readlink()).startswith(str(place))
            if works_there or wanted in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def _eventually(condition: object) -> None:
    assert callable(condition)
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.05)


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Look(NamedTuple):
    """What is on the server."""

    waiting: int  # or running
    tenants: int
    workers: int


def _look(server: Server) -> Look:
    async def look() -> Look:
        store = connect(server.url)
        try:
            queues = (await store.snapshot()).queues
            waiting = sum(queue.depth + queue.running for queue in queues.values())
            tenants = {name for queue in queues.values() for name in queue.tenants}
            return Look(waiting, len(tenants), len(await store.workers()))
        finally:
            await store.close()

    return asyncio.run(look())
