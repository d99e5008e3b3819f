"""Several processes at one root: killed, forked, adopting each other's records."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.embedded.directory import LockFile
from fairlead.spool import Spool, SpoolLimits, folders, inspection, journal
from fairlead.spool.process_folder import ProcessFolder
from tests.runtime.programs import ROOT, run
from tests.spool.folders import left_behind, payloads, segments, submissions

# Appends from 8 callers at once, and writes each payload to stdout when it is acknowledged.
PRODUCER = """
import asyncio, os, sys
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool, journal
journal._SEGMENT = 20_000
spool = Spool.open(Path(sys.argv[1]))
async def caller(name):
    number = 0
    while True:
        text = b"%d-%d-%d" % (os.getpid(), name, number)
        await spool.aappend([Entry(Kind.SUBMISSION, text + b"." * (number % 200))])
        os.write(1, text + b"\\n")
        number += 1
async def main():
    await asyncio.gather(*(caller(name) for name in range(8)))
asyncio.run(main())
"""

ADOPTER = """
import sys
from pathlib import Path
from fairlead.spool import Spool
spool = Spool.open(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
count = spool.adopt()
found = []
while records := spool.pending(records[-1].sequence if found else 0, 1000):
    found += [record.payload.decode().rstrip(".") for record in records]
print(count, *found, flush=True)
sys.stdin.readline()
"""


def started(program: str, root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(root)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip


def killed(process: subprocess.Popen[bytes], after: int) -> set[bytes]:
    """Kill a producer once it has acknowledged so many; return all that it has."""
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(after)]
    process.kill()
    rest = process.stdout.read().splitlines(keepends=True)
    process.communicate()
    return {line.strip() for line in (*told, *rest) if line.endswith(b"\n")}


@pytest.mark.parametrize("round_", range(3))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, round_: int) -> None:
    root = tmp_path / "spool"
    acknowledged = killed(started(PRODUCER, root), random.Random(round_).randint(1, 2000))
    spool = Spool.open(root)
    spool.adopt()
    found = [payload.rstrip(b".") for payload in payloads(spool)]
    assert len(found) == len(set(found))
    assert acknowledged <= set(found)
    assert len(set(found) - acknowledged) <= 16  # on the disk, and their callers not told yet
    assert spool.stats().quarantined == 0
    assert len(list(root.iterdir())) == 2  # the folder of the dead one is gone
    spool.close()


def test_two_processes_at_one_root_have_a_folder_each(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    processes = [started(PRODUCER, root) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
    spool = Spool.open(root)
    assert spool.adopt() == 0  # both live
    assert len({path.parent for path in segments(root)}) == 2
    acknowledged = killed(processes[0], 1)
    assert spool.adopt() >= len(acknowledged)
    assert processes[1].poll() is None
    assert {payload.split(b"-")[0] for payload in payloads(spool)} == {b"%d" % processes[0].pid}
    killed(processes[1], 1)
    spool.adopt()
    pids = {payload.split(b"-")[0] for payload in payloads(spool)}
    assert pids == {b"%d" % process.pid for process in processes}
    spool.close()


def test_a_stopped_process_is_not_adopted(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    process = started(PRODUCER, root)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    assert Spool.open(root).adopt() == 0
    killed(process, 0)


def test_three_adopters_at_once_share_the_dead_and_take_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    acknowledged: set[bytes] = set()
    producers = [started(PRODUCER, root) for _ in range(3)]
    for producer in producers:
        acknowledged |= killed(producer, 300)
    adopters = [started(ADOPTER, root) for _ in range(3)]
    for adopter in adopters:
        assert adopter.stdout is not None
        assert adopter.stdout.readline() == b"ready\n"
    for adopter in adopters:
        assert adopter.stdin is not None
        adopter.stdin.write(b"\n")
        adopter.stdin.flush()
    told = [adopter.stdout.readline().split() for adopter in adopters if adopter.stdout]
    found = [payload for count, *payloads in told for payload in payloads]
    assert [int(count) for count, *_ in told] == [len(payloads) - 1 for payloads in told]
    assert len(found) == len(set(found))
    assert acknowledged <= set(found)
    for adopter in adopters:
        adopter.kill()
        adopter.communicate()
    spool = Spool.open(root)  # and the adopters can be adopted
    assert spool.adopt() == len(found)
    spool.close()


def test_an_adopter_that_dies_half_way_leaves_each_record_once(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    acknowledged = killed(started(PRODUCER, root), 1500)
    assert len(segments(root)) > 3
    run(f"""
import os
from pathlib import Path
from fairlead.spool import Spool, journal
move, moved = journal.Journal._move, []
def some(self, *args):
    if len(moved) == 2:
        os._exit(0)
    moved.append(args)
    move(self, *args)
journal.Journal._move = some
Spool.open(Path({str(root)!r})).adopt()
""")
    assert len({path.parent for path in segments(root)}) == 2
    spool = Spool.open(root)
    spool.adopt()
    found = [payload.rstrip(b".") for payload in payloads(spool)]
    assert len(found) == len(set(found))
    assert acknowledged <= set(found)
    spool.close()


def test_confirmed_records_of_a_dead_process_are_not_adopted(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    run(f"""
import os
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool, journal
journal._SEGMENT = 1000
spool = Spool.open(Path({str(root)!r}))
for number in range(100):
    spool.append([Entry(Kind.SUBMISSION, b"%d" % number)])
spool.confirm(range(1, 101, 2))
spool.confirm(range(20, 60))
os._exit(0)
""")
    spool = Spool.open(root)
    left = [number - 1 for number in range(2, 101, 2) if not 20 <= number < 60]
    assert spool.adopt() == len(left)
    assert [int(payload) for payload in payloads(spool)] == left
    spool.close()


def test_confirmed_records_stay_confirmed_from_adopter_to_adopter(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    spool = Spool.open(root)
    spool.append(submissions(b"a", b"b", b"c", b"d"))
    for gone in (b"a", b"c"):
        spool.confirm(each.sequence for each in spool.pending() if each.payload == gone)
        spool.close()
        spool = Spool.open(root)
        spool.adopt()
    assert payloads(spool) == [b"b", b"d"]
    spool.close()


def test_own_and_adopted_records_have_different_numbers(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    left = Spool.open(root)
    left.append(submissions(b"left", b"too"))
    left.close()
    spool = Spool.open(root)
    spool.append(submissions(b"own"))
    spool.adopt()
    spool.append(submissions(b"later"))
    found = spool.pending()
    assert [each.payload for each in found] == [b"own", b"left", b"too", b"later"]
    assert len({each.sequence for each in found}) == 4
    spool.confirm([found[3].sequence])
    assert payloads(spool) == [b"own", b"left", b"too"]
    spool.confirm([found[1].sequence])
    assert payloads(spool) == [b"own", b"too"]
    spool.close()


def test_a_folder_that_was_removed_between_opening_and_locking_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another adopter has finished in between, and a third one has the name of the folder."""
    root = tmp_path / "spool"
    folder = left_behind(root, [])
    try_exclusive = LockFile.try_exclusive

    def slowly(lock: LockFile) -> bool:
        assert lock.fd
        (folder / "lock").unlink()
        (folder / "lock").touch()
        return try_exclusive(lock)

    with ProcessFolder(root).claimed(folder.name) as found:
        assert found == folder
    with monkeypatch.context() as patch:
        patch.setattr(LockFile, "try_exclusive", slowly)
        with ProcessFolder(root).claimed(folder.name) as found:
            assert found is None


def test_a_crowded_spool_leaves_dead_ones_until_it_has_room(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    limits = SpoolLimits(max_bytes=4000)
    for name in (b"a", b"b"):
        spool = Spool.open(root, limits=limits)
        spool.append(submissions(name * 1500))
        spool.close()
    spool = Spool.open(root, limits=limits)
    assert spool.adopt() == 1
    assert spool.adopt() == 0  # half of the room is for this process
    spool.append(submissions(b"own"))
    (first, *_) = spool.pending()
    spool.confirm([first.sequence])
    spool.confirm([spool.pending()[0].sequence])
    assert spool.adopt() == 1
    spool.close()


def test_a_folder_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "spool"
    folder = left_behind(root, [])
    (folder / "work-0000000000000001.segment").mkdir()  # reading it is an error
    spool = Spool.open(root)
    spool.append(submissions(b"a"))
    spool.close()
    spool = Spool.open(root)
    assert spool.adopt() == 1
    assert spool.adopt() == 0
    assert len([each for each in caplog.records if "cannot be adopted" in each.message]) == 1
    spool.close()


def test_a_folder_that_is_being_made_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    folder = left_behind(root, [])
    unborn = folder.rename(root / f".new-{folder.name}")
    spool = Spool.open(root)
    spool.adopt()
    assert unborn.exists()
    os.utime(unborn, (time.time() - 3600,) * 2)  # nobody takes so long
    spool.adopt()
    assert not unborn.exists()


def test_a_forked_child_has_a_folder_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    told = run(f"""
import os
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool
root = Path({str(root)!r})
spool = Spool.open(root)
spool.append([Entry(Kind.SUBMISSION, b"parent")])
before = {{path: path.read_bytes() for path in root.glob("*/*")}}
pid = os.fork()
if pid == 0:
    assert spool.depth == 0 and spool.pending() == []
    assert spool.adopt() == 0  # the parent lives
    spool.append([Entry(Kind.SUBMISSION, b"child")])
    assert [each.payload for each in spool.pending()] == [b"child"]
    assert before == {{path: path.read_bytes() for path in before}}
    print(len(set(path.parent for path in root.glob("*/lock"))), flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
spool.append([Entry(Kind.SUBMISSION, b"parent again")])
assert spool.adopt() == 1
print(*(each.payload.decode() for each in spool.pending()), sep=",")
""")
    assert told.splitlines() == ["2", "parent,parent again,child"]


def test_a_child_that_outlives_its_parent_does_not_keep_the_parents_lock(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    program = f"""
import os, sys, time
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool
spool = Spool.open(Path({str(root)!r}))
spool.append([Entry(Kind.SUBMISSION, b"parent")])
if os.fork() == 0:
    print("forked", os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
sys.stdin.readline()
"""
    process = started(program, root)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[1])
    try:
        assert Spool.open(root).adopt() == 0
        process.kill()
        process.wait()
        spool = Spool.open(root)
        assert spool.adopt() == 1
        spool.close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_a_child_forked_while_others_append_can_append(tmp_path: Path) -> None:
    told = run(f"""
import os, threading
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool
spool = Spool.open(Path({str(tmp_path / "spool")!r}))
stop = []
def busy():
    while not stop:
        spool.append([Entry(Kind.SUBMISSION, b"x")])
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        spool.append([Entry(Kind.SUBMISSION, b"child")])
        os._exit(0 if [each.payload for each in spool.pending()] == [b"child"] else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.append(1)
for thread in threads:
    thread.join()
depth = spool.depth
print(spool.adopt(), spool.depth - depth)
spool.close()
""")
    assert told == "10 10\n"


def test_what_is_for_another_broker_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "spool"
    left = Spool.open(root, broker="redis://a")
    left.append(submissions(b"a"))
    left.close()
    other = Spool.open(root, broker="redis://b")
    assert [other.adopt(), other.adopt(), other.depth] == [0, 0, 0]
    assert caplog.text.count("for another broker (redis://a)") == 1
    nameless = Spool.open(root)
    assert nameless.adopt() == 0
    same = Spool.open(root, broker="redis://a")
    assert same.adopt() == 1
    assert [folder.broker for folder in folders(root)] == ["redis://a"]
    same.close()
    assert other.adopt(any_broker=True) == 1
    assert payloads(other) == [b"a"]
    other.close()


def test_the_limit_of_a_segment_is_that_of_the_documents() -> None:
    assert journal._SEGMENT == 16 * 1024 * 1024


def test_a_folder_that_goes_while_it_is_looked_at_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who adopts it renames and removes it; a worker that begins looks there at that moment."""
    other, spool = Spool.open(tmp_path), Spool.open(tmp_path)
    other.append(submissions(b"a"))
    [record] = spool.pending_of_others()
    assert record.payload == b"a"

    def gone(folder: Path, stream: str) -> list[Path]:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(inspection, "segments", gone)
    assert list(spool.pending_of_others()) == []
    assert {each.depth for each in folders(tmp_path)} == {0}
    other.close()
    spool.close()
