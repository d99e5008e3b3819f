"""What a spool promises to those who append to it and drain it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from fairlead.model.errors import InvalidOption
from fairlead.model.spool_errors import SpoolFailed, SpoolFull
from fairlead.spool import Entry, Kind, Rejection, Spool, SpoolLimits, files, journal
from fairlead.spool.frames import FRAME, HEADER
from tests.runtime.programs import run
from tests.spool.folders import folder_of, payloads, segments, submissions


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def restarted(root: Path, **options: object) -> Spool:
    """The spool of the next process."""
    spool = Spool.open(root, **options)  # type: ignore[arg-type]
    spool.adopt()
    return spool


def test_records_come_out_in_the_order_in_which_they_went_in(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    assert spool.append(submissions(b"a", b"b")) == [1, 2]
    assert spool.append([Entry(Kind.OUTCOME, b"c")]) == [3]
    found = spool.pending()
    assert [(each.sequence, each.kind, each.payload) for each in found] == [
        (1, Kind.SUBMISSION, b"a"),
        (2, Kind.SUBMISSION, b"b"),
        (3, Kind.OUTCOME, b"c"),
    ]
    assert [each.sequence for each in spool.pending(after=1, limit=1)] == [2]
    spool.close()


def test_nothing_is_on_the_disk_before_the_first_append(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    assert spool.adopt() == 0
    assert spool.pending() == []
    spool.close()
    assert not list(tmp_path.iterdir())


def test_an_empty_append_does_nothing(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    assert spool.append([]) == []
    assert not list(tmp_path.iterdir())


def test_files_are_for_this_user_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        spool = Spool.open(tmp_path / "spool")
        spool.append(submissions(b"a", b"b"))
        spool.reject(1, b"no")
    finally:
        os.umask(old)
    found = [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert {mode for name, mode in modes.items() if "." in name or name == "lock"} == {0o600}
    assert modes["spool"] == modes[folder_of(tmp_path / "spool").name] == 0o700
    assert len(modes) == 7
    spool.close()


def test_confirmed_records_stay_away_also_after_a_restart(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a", b"b", b"c", b"d"))
    spool.confirm([3, 1, 3, 99])
    assert payloads(spool) == [b"b", b"d"]
    assert spool.depth == spool.stats().depth == 2
    spool.close()
    again = restarted(tmp_path / "spool")
    assert payloads(again) == [b"b", b"d"]
    again.confirm(each.sequence for each in again.pending())
    again.close()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [".gitignore"]


def test_a_file_goes_once_all_of_its_records_are_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT", 1000)
    spool = Spool.open(tmp_path / "spool")
    for _ in range(10):
        spool.append(submissions(b"x" * 400))
    first, *rest = segments(tmp_path / "spool")
    assert len(rest) == 4
    spool.confirm([2])
    assert first.exists()
    spool.confirm([1])
    assert not first.exists()
    assert not first.with_suffix(".marks").exists()
    spool.confirm([9, 7, 5, 3, 8, 6, 4])
    assert segments(tmp_path / "spool") == rest[-1:]  # the one that is appended to
    assert [each.sequence for each in spool.pending()] == [10]
    assert spool.append(submissions(b"y")) == [11]
    spool.close()


def test_a_large_file_goes_when_it_is_empty_even_if_it_was_appended_to(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"x" * 2_000_000))
    spool.confirm([1])
    assert not segments(tmp_path / "spool")
    assert spool.stats().bytes == 0
    assert spool.append(submissions(b"y")) == [2]
    assert payloads(spool) == [b"y"]
    spool.close()


def test_a_full_spool_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    limits = SpoolLimits(max_count=3)
    spool = Spool.open(tmp_path / "spool", limits=limits)
    spool.append(submissions(b"a", b"b"))
    with pytest.raises(SpoolFull) as full:
        spool.append(submissions(b"c", b"d"))
    assert (full.value.cause, full.value.setting, full.value.limit) == (
        "spool_full", "max_count", 3,
    )  # fmt: skip
    spool.append(submissions(b"c"))
    with pytest.raises(SpoolFull):
        spool.append(submissions(b"d"))
    assert payloads(spool) == [b"a", b"b", b"c"]
    spool.confirm([1])
    spool.append(submissions(b"d"))
    assert payloads(spool) == [b"b", b"c", b"d"]
    spool.close()


def test_bytes_are_bounded_too(tmp_path: Path) -> None:
    room = HEADER + 3 * (FRAME + 100)
    spool = Spool.open(tmp_path / "spool", limits=SpoolLimits(max_bytes=room))
    for _ in range(3):
        spool.append(submissions(b"x" * 100))
    with pytest.raises(SpoolFull) as full:
        spool.append(submissions(b""))
    assert (full.value.setting, full.value.limit) == ("max_bytes", room)
    assert spool.stats().bytes == room == segments(tmp_path / "spool")[0].stat().st_size
    spool.close()


def test_a_record_that_stays_does_not_keep_the_room_of_those_that_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT", 1000)
    spool = Spool.open(tmp_path / "spool", limits=SpoolLimits(max_bytes=10_000))
    stuck = []
    for number in range(60):
        spool.append(submissions(b"%d" % number))
        stuck += spool.append(submissions(b"%d" % number))[:1] if number % 10 == 0 else []
        (filled,) = spool.append(submissions(b"x" * 500))
        spool.confirm({filled, *range(filled - 3, filled)} - set(stuck))
    assert [each.sequence for each in spool.pending()] == stuck
    assert payloads(spool) == [b"%d" % number for number in range(0, 60, 10)]
    assert spool.stats().bytes < 10_000
    spool.close()
    assert len(payloads(restarted(tmp_path / "spool"))) == 6


def test_what_is_too_old_is_rejected_and_seen(tmp_path: Path) -> None:
    clock = Clock()
    limits = SpoolLimits(max_age=100.0)
    spool = Spool.open(tmp_path / "spool", limits=limits, clock=clock, steady=clock)
    spool.append(submissions(b"old", b"gone"))
    spool.confirm([2])
    clock.now += 60
    spool.append([Entry(Kind.OUTCOME, b"new")])
    clock.now += 50
    assert payloads(spool) == [b"new"]
    (record,) = spool.rejected()
    assert record.kind is Kind.REJECTED
    assert record.at == clock.now
    told = Rejection.decode(record.payload)
    assert (told.code, told.kind, told.payload) == ("too_old", Kind.SUBMISSION, b"old")
    assert told.at == clock.now - 110
    assert spool.stats().rejected == 1
    clock.now += 101  # the rejected one has been seen for long enough
    assert payloads(spool) == []
    assert [Rejection.decode(each.payload).payload for each in spool.rejected()] == [b"new"]
    spool.close()


def test_an_adopted_record_keeps_its_age(tmp_path: Path) -> None:
    clock = Clock()
    limits = SpoolLimits(max_age=100.0)
    spool = Spool.open(tmp_path / "spool", limits=limits, clock=clock, steady=clock)
    spool.append(submissions(b"a"))
    spool.close()
    clock.now += 99
    again = restarted(tmp_path / "spool", limits=limits, clock=clock, steady=clock)
    again.append(submissions(b"b"))
    assert again.stats().oldest_at == clock.now - 99
    assert len(again.pending()) == 2
    clock.now += 2
    assert payloads(again) == [b"b"]
    assert again.stats().oldest_at == clock.now - 2
    again.close()


def test_a_rejected_record_is_seen_until_it_is_deleted(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a", b"b", b"c"))
    spool.reject(2, b"why")
    spool.reject(2, b"again")
    assert payloads(spool) == [b"a", b"c"]
    assert [each.payload for each in spool.rejected()] == [b"why"]
    spool.close()
    again = restarted(tmp_path / "spool")
    assert payloads(again) == [b"a", b"c"]
    (record,) = again.rejected()
    assert record.payload == b"why"
    again.forget([record.sequence])
    assert again.rejected() == []
    again.close()
    assert restarted(tmp_path / "spool").rejected() == []


def test_a_crash_between_the_two_steps_of_a_rejection_rejects_once(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a", b"b"))
    spool.reject(1, b"why")
    spool.close()
    next((tmp_path / "spool").glob("*/work-*.marks")).unlink()
    again = restarted(tmp_path / "spool")
    assert payloads(again) == [b"b"]
    assert len(again.rejected()) == 1
    again.close()


def test_rejected_records_fill_a_quarter_of_the_room_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool.open(tmp_path / "spool", limits=SpoolLimits(max_bytes=1_000_000))
    for number in range(8):
        (sequence,) = spool.append(submissions(b"x"))
        spool.reject(sequence, b"%d" % number + b"y" * 40_000)
    assert spool.stats().bytes <= 251_000
    kept = [each.payload[:1] for each in spool.rejected()]
    assert kept[-1] == b"7"
    assert kept == [b"%d" % number for number in range(8)][-len(kept) :]
    assert "rejected records of the spool are deleted" in caplog.text
    spool.close()


def test_a_submission_that_was_started_here_says_so(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a", b"b"))
    spool.append([Entry(Kind.LOCAL_STARTED, b"", about=1)])
    assert [(each.payload, each.started) for each in spool.pending()] == [
        (b"a", True),
        (b"b", False),
    ]
    assert spool.depth == 2
    spool.close()
    again = restarted(tmp_path / "spool")
    assert [each.started for each in again.pending()] == [True, False]
    again.confirm(each.sequence for each in again.pending())
    again.close()
    assert not segments(tmp_path / "spool")


def test_a_completion_stands_for_its_submission(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a", b"b"))
    spool.append([Entry(Kind.LOCAL_STARTED, b"", about=1)])
    spool.append([Entry(Kind.LOCAL_DONE, b"result", about=1)])
    expected = [(Kind.SUBMISSION, b"b"), (Kind.LOCAL_DONE, b"result")]
    assert [(each.kind, each.payload) for each in spool.pending()] == expected
    assert spool.depth == 2
    spool.close()
    next((tmp_path / "spool").glob("*/*.marks")).unlink()  # the machine may lose them
    again = restarted(tmp_path / "spool")
    assert [(each.kind, each.payload) for each in again.pending()] == expected
    again.close()
    third = restarted(tmp_path / "spool")
    assert [(each.kind, each.payload) for each in third.pending()] == expected
    third.append([Entry(Kind.LOCAL_STARTED, b"", about=third.pending()[0].sequence)])
    third.close()
    assert [each.started for each in restarted(tmp_path / "spool").pending()] == [True, False]


def test_nothing_starts_that_is_not_pending(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a"))
    spool.confirm([1])
    with pytest.raises(InvalidOption, match="about=1"):
        spool.append([Entry(Kind.LOCAL_STARTED, b"", about=1)])
    spool.close()


def test_completions_are_taken_by_a_full_spool(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool", limits=SpoolLimits(max_count=1))
    spool.append(submissions(b"a"))
    spool.append([Entry(Kind.LOCAL_STARTED, b"", about=1)])
    spool.append([Entry(Kind.LOCAL_DONE, b"result", about=1)])
    assert payloads(spool) == [b"result"]
    spool.close()


def test_pending_is_bounded_in_bytes(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(*[b"x" * 1_500_000] * 4))
    assert len(spool.pending()) == 3
    spool.append(submissions(b"y" * 9_000_000))
    assert [each.sequence for each in spool.pending(after=4)] == [5]
    spool.close()


async def test_callers_of_a_loop_share_their_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(files, "sync", syncs.append)
    spool = Spool.open(tmp_path / "spool")
    found = await asyncio.gather(*(spool.aappend(submissions(b"%d" % n)) for n in range(200)))
    assert sorted(number for (number,) in found) == list(range(1, 201))
    assert len(syncs) < 20
    assert {each.sequence: each.payload for each in spool.pending(limit=1000)} == {
        number: b"%d" % n for n, (number,) in enumerate(found)
    }
    spool.close()


def test_threads_and_loops_append_together(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    answered: dict[int, bytes] = {}

    def block(name: int) -> None:
        for n in range(30):
            (number,) = spool.append(submissions(b"%d-%d" % (name, n)))
            answered[number] = b"%d-%d" % (name, n)

    async def loop(name: int) -> None:
        for n in range(30):
            (number,) = await spool.aappend(submissions(b"%d-%d" % (name, n)))
            answered[number] = b"%d-%d" % (name, n)

    threads = [
        *(threading.Thread(target=block, args=(name,)) for name in range(3)),
        *(threading.Thread(target=lambda n=name: asyncio.run(loop(n))) for name in range(3, 6)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {each.sequence: each.payload for each in spool.pending(limit=1000)}
    assert found == answered
    assert len(found) == 180
    spool.close()


async def test_a_caller_who_is_cancelled_holds_up_nobody(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    calls = [asyncio.create_task(spool.aappend(submissions(b"x"))) for _ in range(5)]
    await asyncio.sleep(0)
    calls[2].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, asyncio.CancelledError) for each in done) == 1
    assert await spool.aappend(submissions(b"y"))
    spool.close()


def test_a_closed_spool_refuses_and_leaves_what_it_has(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    spool.append(submissions(b"a"))
    spool.close()
    spool.close()
    with pytest.raises(SpoolFailed, match="closed"):
        spool.append(submissions(b"b"))
    spool.confirm([1])
    assert payloads(restarted(tmp_path / "spool")) == [b"a"]


def test_nothing_is_adopted_into_a_closed_spool(tmp_path: Path) -> None:
    left = Spool.open(tmp_path / "spool")
    left.append(submissions(b"a"))
    closed = Spool.open(tmp_path / "spool")
    closed.close()
    left.close()
    assert closed.adopt() == 0
    assert payloads(restarted(tmp_path / "spool")) == [b"a"]


def test_greenlets_append_without_holding_up_each_other(tmp_path: Path) -> None:
    told = run(f"""
from gevent import monkey
monkey.patch_all()
import gevent, time
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool, files
sync = files.sync
def slow(fd):
    monkey.get_original("time", "sleep")(0.05)
    sync(fd)
files.sync = slow
spool = Spool.open(Path({str(tmp_path / "spool")!r}))
ticks = []
def tick():
    while len(ticks) < 20:
        ticks.append(spool.depth)
        gevent.sleep(0.002)
ticker = gevent.spawn(tick)
gevent.joinall([gevent.spawn(spool.append, [Entry(Kind.SUBMISSION, b"x")]) for _ in range(10)])
ticker.join()
assert ticks[5] == 0, ticks
print(spool.depth)
spool.close()
""")
    assert told == "10\n"


def test_only_what_can_be_drained_is_appended(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path / "spool")
    with pytest.raises(InvalidOption, match="kind"):
        spool.append([Entry(Kind.DONE, b"")])


def test_a_file_system_that_is_soon_gone_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "volatile", lambda path: "tmpfs")
    caplog.set_level(logging.WARNING)
    Spool.open(tmp_path / "spool").close()
    Spool.open(tmp_path / "spool").close()
    assert [each.getMessage() for each in caplog.records] == [
        f"the spool is on a file system that is gone after a restart (tmpfs): {tmp_path}/spool"
    ]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no tmpfs here")
def test_a_file_system_in_memory_is_known_for_one() -> None:
    assert files.volatile(Path("/dev/shm/some/where")) == "tmpfs"
