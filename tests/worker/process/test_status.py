"""The files that probes read: whose they are, and what is said where none can be written."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.broker import connect
from fairlead.model.errors import Refused
from fairlead.worker.process.ipc import Channel, Plan
from fairlead.worker.process.retirement import Retirement
from fairlead.worker.process.shared_state import SharedState
from fairlead.worker.process.status import StatusWriter, read_all, run_dir
from fairlead.worker.process.supervisor import Supervisor
from fairlead.worker.process.supervisor_link import SupervisorLink
from tests.worker.harness import Rig

NOBODY = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("FAIRLEAD_RUN_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def writer() -> StatusWriter:
    await asyncio.sleep(0)
    return StatusWriter(Supervisor(("true",), Plan(app="jobs:app"), connect, count=1), "jobs:app")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


async def test_a_folder_for_this_user_alone_is_made(caplog: pytest.LogCaptureFixture) -> None:
    (await writer()).write()
    assert stat.S_IMODE(run_dir().stat().st_mode) == 0o700
    (status,) = read_all()
    assert (status.pid, status.app) == (os.getpid(), "jobs:app")
    run_dir().chmod(0o777)
    (await writer()).write()
    assert stat.S_IMODE(run_dir().stat().st_mode) == 0o700
    assert warnings(caplog) == []


@only_root
async def test_a_folder_of_another_user_gets_nothing_and_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (await writer()).write()
    os.chown(run_dir(), NOBODY, NOBODY)
    before = sorted((each.name, each.stat().st_mtime_ns) for each in run_dir().iterdir())
    made = await writer()
    for _ in range(3):
        made.write()
    after = sorted((each.name, each.stat().st_mtime_ns) for each in run_dir().iterdir())
    assert before == after
    (warning,) = warnings(caplog)
    assert "belongs to another user (uid 65534" in warning
    assert "set FAIRLEAD_RUN_DIR" in warning
    with pytest.raises(Refused, match="belongs to another user"):
        read_all()


async def test_a_link_is_not_followed(temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    run_dir().symlink_to(elsewhere)
    (await writer()).write()
    assert list(elsewhere.iterdir()) == []
    assert "something else is there" in warnings(caplog)[0]
    with pytest.raises(Refused, match="something else is there"):
        read_all()


@only_root
async def test_files_of_others_in_a_folder_that_was_named_are_not_read(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    shared = temporary / "shared"
    shared.mkdir()
    os.chown(shared, NOBODY, NOBODY)  # as a volume that several users have
    monkeypatch.setenv("FAIRLEAD_RUN_DIR", str(shared))
    (await writer()).write()
    mine = next(shared.iterdir())
    invented = shared / "worker-1.json"
    invented.write_bytes(mine.read_bytes())
    os.chown(invented, NOBODY, NOBODY)
    (shared / "worker-2.json").symlink_to(mine)
    os.mkfifo(shared / "worker-3.json")
    os.chown(shared / "worker-3.json", NOBODY, NOBODY)
    assert [status.pid for status in read_all()] == [os.getpid()]
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600


async def test_what_cannot_be_written_is_said_once_until_it_can(
    monkeypatch: pytest.MonkeyPatch, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (temporary / "file").touch()
    monkeypatch.setenv("FAIRLEAD_RUN_DIR", str(temporary / "file/run"))
    made = await writer()
    made.write()
    made.write()
    assert len(warnings(caplog)) == 1
    (temporary / "file").unlink()
    made.write()
    assert len(read_all()) == 1
    assert len(warnings(caplog)) == 1


@only_root
def test_a_probe_says_whose_folder_it_is(temporary: Path) -> None:
    folder = temporary / f"fairlead-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "check"],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "belongs to another user" in done.stderr


async def test_a_child_that_comes_or_goes_is_written_down_at_once() -> None:
    """Not with the next of the regular looks: a probe right after a start would see nobody."""
    supervisor = Supervisor(("true",), Plan(app="jobs:app"), connect, count=1)
    status = StatusWriter(supervisor, "jobs:app")
    running = asyncio.ensure_future(status.run())
    try:
        await asyncio.sleep(0)
        first = read_all()[0].written_at
        supervisor.changed.set()
        for _ in range(10):  # rounds of the loop, none of which waits
            await asyncio.sleep(0)
        assert read_all()[0].written_at > first
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_worker_that_has_not_fetched_yet_is_seen(rig: Rig) -> None:
    """A time that is no number would make its file one that no probe can read."""
    shared_state = SharedState.made(1)
    mine, other = socket.socketpair()
    channel = await Channel.over(mine)
    link = SupervisorLink(channel, shared_state, url="", retirement=Retirement())
    link._look(rig.worker(), asyncio.get_running_loop().time())
    fetched_at, _, _ = shared_state.times
    assert 0.0 <= time.monotonic() - fetched_at < 60.0
    shared_state.close()
    channel.close()
    other.close()
