"""Files that end anywhere, or have other bytes in them than were written.

Every acknowledged record whose bytes are whole comes back, and nothing comes back that was not
appended.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.spool import Kind, Spool, files, journal
from fairlead.spool.frames import FRAME, HEADER, Header, encode, read_header, scan
from tests.spool.folders import folder_of, left_behind, payloads, segments, submissions, written

GROUPS = [[b"first"], [b"", b"\0\0\0\0"], [b"torn"]]
APPENDED = [payload for group in GROUPS for payload in group]
NAME = "work-0000000000000001.segment"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The bytes of a segment; from now on nothing waits for the disk."""
    path = written(tmp_path / "source", GROUPS)
    monkeypatch.setattr(files, "sync", lambda fd: None)
    monkeypatch.setattr(files, "sync_folder", lambda folder: None)
    return path.read_bytes()


def ends_of(data: bytes) -> list[int]:
    header = read_header(data)
    assert header is not None
    return [frame.end for frame in scan(header, data).frames]


def test_a_file_that_ends_at_any_byte_gives_back_every_whole_record(
    tmp_path: Path, data: bytes
) -> None:
    ends = ends_of(data)
    assert len(ends) == len(APPENDED)
    for length in range(len(data) + 1):
        root = tmp_path / str(length)
        left_behind(root, [(NAME, data[:length])])
        spool = Spool.open(root)
        whole = sum(end <= length for end in ends)
        assert spool.adopt() == whole == spool.depth, length
        assert payloads(spool) == APPENDED[:whole], length
        assert spool.stats().quarantined == 0
        if length % 4:
            continue
        # What is appended next is found as well: nothing is left of the torn one.
        spool.append(submissions(b"next"))
        spool.close()
        again = Spool.open(root)
        assert again.adopt() == whole + 1
        assert payloads(again) == [*APPENDED[:whole], b"next"]
        again.confirm(each.sequence for each in again.pending())
        again.close()


@pytest.mark.parametrize("flip", [0xFF, 0x01])
def test_a_wrong_byte_anywhere_costs_no_other_record(
    tmp_path: Path, data: bytes, flip: int
) -> None:
    ends = ends_of(data)
    for place in range(len(data)):
        root = tmp_path / str(place)
        left_behind(root, [(NAME, _flipped(data, place, flip))])
        spool = Spool.open(root)
        spool.adopt()
        hit = None if place < HEADER else sum(end <= place for end in ends)
        expected = [payload for n, payload in enumerate(APPENDED) if n != hit]
        assert payloads(spool) == expected, place
        # The last one cannot be told from one that was being written.
        is_seen = hit is not None and hit != len(APPENDED) - 1
        assert spool.stats().quarantined == is_seen
        assert len(list(root.glob("quarantine/*"))) == is_seen
        if place % 4:
            continue
        spool.close()
        again = Spool.open(root)  # and it is put aside once
        again.adopt()
        assert payloads(again) == expected
        assert again.stats().quarantined == 0
        again.close()


def test_a_bad_end_of_a_file_that_is_not_the_last_is_put_aside(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    header = Header(bytes(16), 100, b"mark")
    later = header.encode() + encode(header, Kind.SUBMISSION, 100, time.time(), [b"later"])
    root = tmp_path / "spool"
    left_behind(root, [(NAME, data[:-1]), ("work-0000000000000064.segment", later)])
    spool = Spool.open(root)
    assert spool.adopt() == len(APPENDED)
    assert payloads(spool) == [*APPENDED[:-1], b"later"]
    assert spool.stats().quarantined == 1
    (aside,) = root.glob("quarantine/*")
    assert aside.read_bytes() == data[ends_of(data)[-2] : -1]
    assert aside.name == "0" * 31 + "1-work-0000000000000001-" + f"{ends_of(data)[-2]}.bad"
    assert aside.stat().st_mode & 0o777 == 0o600
    assert len(caplog.records) == 1
    spool.close()


def test_a_file_without_a_legible_head_is_put_aside_whole(tmp_path: Path, data: bytes) -> None:
    header = Header(bytes(16), 100, b"mark")
    later = header.encode() + encode(header, Kind.SUBMISSION, 100, time.time(), [b"later"])
    root = tmp_path / "spool"
    beheaded = b"\0" * HEADER + data[HEADER:]
    left_behind(root, [(NAME, beheaded), ("work-0000000000000064.segment", later)])
    spool = Spool.open(root)
    assert spool.adopt() == 1
    assert payloads(spool) == [b"later"]
    (aside,) = root.glob("quarantine/*")
    assert aside.read_bytes() == beheaded
    spool.close()


def test_a_file_of_a_later_version_is_left_alone(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    later = Header(bytes(16), 9, b"mark", version=2).encode()
    root = tmp_path / "spool"
    folder = left_behind(root, [(NAME, data[:-1]), ("work-0000000000000009.segment", later)])
    spool = Spool.open(root)
    assert spool.adopt() == 0
    assert (folder / NAME).read_bytes() == data[:-1]
    assert "later version" in caplog.text


@given(st.binary(max_size=300), st.integers(0, 400), st.data())
def test_whatever_is_in_a_payload_nothing_is_taken_for_a_record(
    payload: bytes, cut: int, draw: st.DataObject
) -> None:
    header = Header(bytes(16), 1, b"\x01\x02\x03\x04")
    forged = encode(Header(bytes(16), 1, b"\0\0\0\0"), Kind.SUBMISSION, 2, 1.0, [b"forged"])
    payload = payload[:cut] + forged + payload[cut:]
    frame = encode(header, Kind.SUBMISSION, 1, 1.0, [payload])
    data = header.encode() + frame
    place = draw.draw(st.integers(HEADER, len(data) - 1))
    assert scan(header, _flipped(data, place, 0xFF)).frames == []
    assert scan(header, data[:place]).frames == []


def test_a_record_with_an_old_number_is_not_taken(tmp_path: Path) -> None:
    header = Header(bytes(16), 5, b"mark")
    frames = [encode(header, Kind.SUBMISSION, n, 1.0, [b"%d" % n]) for n in (5, 6, 6, 4, 7)]
    found = scan(header, header.encode() + b"".join(frames))
    assert [frame.sequence for frame in found.frames] == [5, 6, 7]
    assert len(found.bad) == 1


def test_damaged_checkpoints_confirm_nothing_that_was_not(tmp_path: Path, data: bytes) -> None:
    spool = Spool.open(tmp_path / "source")
    spool.adopt()
    spool.confirm([1, 3])
    spool.confirm([2])
    spool.close()
    folder = folder_of(tmp_path / "source")
    marks = next(folder.glob("*.marks")).read_bytes()
    kept = (folder / NAME).read_bytes()
    for place in range(len(marks)):
        for spoiled in (marks[:place], _flipped(marks, place, 0xFF)):
            root = tmp_path / f"{place}-{len(spoiled)}"
            left_behind(root, [(NAME, kept), (NAME.replace("segment", "marks"), spoiled)])
            again = Spool.open(root)
            again.adopt()
            missing = [n for n, each in enumerate(APPENDED, 1) if each not in payloads(again)]
            assert missing in ([], [2], [1, 3], [1, 2, 3])
            again.close()


def test_a_record_that_is_damaged_while_the_process_lives_is_put_aside(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    spool = Spool.open(root)
    spool.append(submissions(b"a", b"bbbb", b"c"))
    (path,) = segments(root)
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"bbxb"))
    assert payloads(spool) == [b"a", b"c"]
    assert spool.stats().quarantined == 1
    (aside,) = root.glob("quarantine/*")
    assert b"bbxb" in aside.read_bytes()
    assert spool.depth == 2
    spool.close()


def test_a_file_that_somebody_removed_is_told_of_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "_SEGMENT", 200)
    root = tmp_path / "spool"
    spool = Spool.open(root)
    for n in range(4):
        spool.append(submissions(b"%d" % n * 60))
    segments(root)[1].unlink()
    assert [each[:1] for each in payloads(spool)] == [b"0", b"2", b"3"]
    assert spool.depth == 3
    assert len(caplog.records) == 1
    spool.close()


def test_a_frame_has_the_size_that_is_written_down() -> None:
    header = Header(bytes(16), 1, b"mark")
    assert len(encode(header, Kind.SUBMISSION, 1, 1.0, [b"xyz"])) == FRAME + 3 == 32
    assert len(header.encode()) == HEADER == 132


def _flipped(data: bytes, place: int, bits: int) -> bytes:
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]
