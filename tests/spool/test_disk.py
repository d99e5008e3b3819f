"""A disk that is full, or fails."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fairlead.model.spool_errors import SpoolFailed
from fairlead.runtime import native_threads
from fairlead.spool import Spool, SpoolLimits, files, segment
from fairlead.spool.committer import Committer, Request
from tests.runtime.programs import ROOT, run
from tests.spool.folders import payloads, segments, submissions


def failing(code: int, times: int = 1) -> object:
    """Something in the place of a call that fails at first."""
    left = [times]

    def call(fd: int, *_: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        os.fdatasync(fd)

    return call


def survivors(root: Path) -> list[bytes]:
    again = Spool.open(root)
    again.adopt()
    try:
        return payloads(again)
    finally:
        again.close()


async def test_a_failed_sync_refuses_all_of_its_group_and_that_file_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.open(tmp_path / "spool")
    await spool.aappend(submissions(b"before"))
    monkeypatch.setattr(files, "sync", failing(errno.EIO))
    calls = [spool.aappend(submissions(b"refused %d" % n)) for n in range(5)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, SpoolFailed) for each in found[:1])
    refused = {b"refused %d" % n for n, each in enumerate(found) if isinstance(each, Exception)}
    (number,) = await spool.aappend(submissions(b"after"))
    assert refused.isdisjoint(payloads(spool))
    first, second = segments(tmp_path / "spool")
    assert b"before" in first.read_bytes()
    assert b"refused 0" not in first.read_bytes()
    assert b"after" in second.read_bytes()
    expected = payloads(spool)
    spool.close()
    assert survivors(tmp_path / "spool") == expected
    assert number > 2


def test_refused_records_do_not_come_back_if_the_file_cannot_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"before"))
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(SpoolFailed):
            spool.append(submissions(b"refused"))
    assert b"refused" in segments(tmp_path / "spool")[0].read_bytes()
    assert payloads(spool) == [b"before"]
    spool.append(submissions(b"after"))
    spool.close()
    assert survivors(tmp_path / "spool") == [b"before", b"after"]


def test_a_new_file_is_acknowledged_once_its_name_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool._home.folder()
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", failing(errno.EIO))
        with pytest.raises(SpoolFailed):
            spool.append(submissions(b"refused"))
    assert not segments(tmp_path / "spool")
    spool.append(submissions(b"after"))
    spool.close()
    assert survivors(tmp_path / "spool") == [b"after"]


def test_a_failed_first_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.open(tmp_path / "spool")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", failing(errno.ENOSPC))
        with pytest.raises(SpoolFailed, match=r"No space left on device.*make room"):
            spool.append(submissions(b"secret"))
    assert not segments(tmp_path / "spool")
    spool.append(submissions(b"after"))
    assert payloads(spool) == [b"after"]
    spool.close()


def test_an_error_tells_no_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.open(tmp_path / "spool")
    monkeypatch.setattr(files, "sync", failing(errno.EIO))
    with pytest.raises(SpoolFailed) as failed:
        spool.append(submissions(b"secret"))
    assert "secret" not in str(failed.value)
    assert failed.value.cause == "spool_failed"


def test_a_folder_that_was_removed_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path,
) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"lost with the folder"))
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolFailed):
        spool.append(submissions(b"refused"))
    spool.append(submissions(b"after"))
    assert payloads(spool) == [b"after"]
    spool.close()
    assert survivors(tmp_path / "spool") == [b"after"]


def test_what_is_confirmed_stays_confirmed_here_if_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a", b"b", b"c"))
    monkeypatch.setattr(segment.Segment, "mark_numbers", fail)
    spool.confirm([1])
    spool.confirm([2])
    assert payloads(spool) == [b"c"]
    assert len(caplog.records) == 1
    spool.close()
    assert survivors(tmp_path / "spool") == [b"a", b"b", b"c"]  # sent again, and known by their ids


def test_a_root_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("something else")
    spool = Spool.open(tmp_path / "spool")
    with pytest.raises(SpoolFailed, match="directory"):
        spool.append(submissions(b"a"))
    (tmp_path / "spool").unlink()
    assert spool.append(submissions(b"b"))
    spool.close()


def test_a_disk_that_is_full_in_the_middle_of_a_record_loses_nothing_before_it(
    tmp_path: Path,
) -> None:
    """The kernel refuses to let the file grow: part of the write is done, the rest fails."""
    root = tmp_path / "spool"
    told = run(f"""
import resource
from pathlib import Path
from fairlead import SpoolFailed
from fairlead.spool import Entry, Kind, Spool
spool = Spool.open(Path({str(root)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for number in range(20):
    try:
        spool.append([Entry(Kind.SUBMISSION, b"%03d" % number + b"x" * 300)])
        print("taken", number)
    except SpoolFailed as failed:
        assert "File too large" in str(failed), failed
        print("refused", number)
""")
    taken = [int(line.split()[1]) for line in told.splitlines() if line.startswith("taken")]
    assert 0 < len(taken) < 20
    assert all(path.stat().st_size < 1000 for path in segments(root))
    assert [int(payload[:3]) for payload in survivors(root)] == taken


PROGRAM = """
import sys
import threading
import time
from pathlib import Path
from fairlead import SpoolFailed
from fairlead.spool import Entry, Kind, Spool
spool = Spool.open(Path(sys.argv[1]))
for number in range(12):
    try:
        spool.append([Entry(Kind.SUBMISSION, b"%d" % number)])
        print("taken", number, flush=True)
    except SpoolFailed:
        print("refused", number, flush=True)
"""


def test_a_thread_that_cannot_be_started_refuses_one_call_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    spool = Spool.open(tmp_path / "spool", limits=SpoolLimits(max_count=1))
    with monkeypatch.context() as without:
        without.setattr(native_threads, "start_thread", refused)
        with pytest.raises(SpoolFailed, match="new thread"):
            spool.append(submissions(b"a"))
    found: list[bytes] = []

    def go_on() -> None:
        spool.append(submissions(b"b"))  # there is room: what was refused takes none
        found.extend(payloads(spool))
        spool.close()

    later = threading.Thread(target=go_on, daemon=True)
    later.start()
    later.join(5.0)
    assert not later.is_alive()
    assert found == [b"b"]


def _can_trace() -> bool:
    strace = shutil.which("strace")
    if strace is None:
        return False
    done = subprocess.run([strace, "-f", "-o", "/dev/null", "true"], capture_output=True)
    return done.returncode == 0


@pytest.mark.skipif(not _can_trace(), reason="strace is not to be had here")
@pytest.mark.parametrize(
    "faults",
    [["fdatasync:error=EIO:when=5+3"], ["fdatasync:error=EIO:when=3+2", "ftruncate:error=EIO"]],
)
def test_what_the_kernel_refuses_is_not_acknowledged(tmp_path: Path, faults: list[str]) -> None:
    root = tmp_path / "spool"
    filters = [part for each in faults for part in ("-e", f"inject={each}")]
    done = subprocess.run(
        ["strace", "-f", "-o", str(tmp_path / "trace"), *filters,
         sys.executable, "-c", PROGRAM, str(root)],
        capture_output=True, text=True, cwd=ROOT, timeout=100,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 12, done.stderr
    taken = [line.split()[1].encode() for line in lines if line.startswith("taken")]
    assert 3 <= len(taken) <= 10
    assert survivors(root) == taken


def test_a_disk_that_answers_while_the_time_is_read_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Committer(lambda drafts: range(len(drafts)), lambda count, size: None)
    written._began = 1_000.0

    def answered() -> float:
        written._began = 0.0
        return 1_001.0

    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", answered)
        request = Request([], 0, 0)
        written.submit(request)
    assert request.waiter.result(timeout=30) == []
    assert written.close()
