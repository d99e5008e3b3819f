"""What a spool holds, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.spool import Spool, SpoolLimits, clock
from tests.spool.folders import payloads, submissions

KIB = 1024


def test_a_small_spool_in_which_all_is_confirmed_is_not_full(tmp_path: Path) -> None:
    limits = SpoolLimits(max_bytes=512 * KIB)
    spool = Spool.open(tmp_path / "spool", limits=limits)
    for _ in range(30):
        spool.confirm(spool.append(submissions(b"x" * 50_000)))
        assert spool.stats().bytes < limits.max_bytes // 2
    spool.close()


@pytest.mark.parametrize("max_bytes", [512 * KIB, 4096 * KIB])
def test_a_small_spool_with_one_record_that_stays_is_not_full(
    tmp_path: Path, max_bytes: int
) -> None:
    spool = Spool.open(tmp_path / "spool", limits=SpoolLimits(max_bytes=max_bytes))
    spool.append(submissions(b"stays"))
    for number in range(3 * max_bytes // 50_000):
        spool.confirm(spool.append(submissions(b"x" * 50_000)))
        if number == 20:
            spool.append(submissions(b"stays too"))
    assert payloads(spool) == [b"stays", b"stays too"]
    spool.close()


DAY = 86_400.0


class Times:
    """A clock of the wall that somebody sets, and one that goes on from the machine's start."""

    def __init__(self) -> None:
        self.wall, self.steady = 100.0, 20.0

    def spool(self, root: Path) -> Spool:
        return Spool.open(root, clock=lambda: self.wall, steady=lambda: self.steady)

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def test_a_clock_that_is_set_makes_nothing_too_old(tmp_path: Path) -> None:
    times = Times()
    spool = times.spool(tmp_path / "spool")
    spool.append(submissions(b"a"))
    times.wall = 1_900_000_000.0  # by the network, after a start in 1970
    spool.append(submissions(b"b"))
    assert [(each.payload, each.at) for each in spool.pending()] == [
        (b"a", 100.0),
        (b"b", times.wall),
    ]
    spool.close()
    again = times.spool(tmp_path / "spool")
    assert again.adopt() == 2
    times.pass_(6 * DAY)
    assert payloads(again) == [b"a", b"b"]
    times.wall = 100.0  # and back: it does not make them young
    times.pass_(2 * DAY)
    assert payloads(again) == []
    assert again.stats().rejected == 2
    again.close()


def test_after_another_start_of_the_machine_the_wall_tells_the_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Times()
    for payload, boot in ((b"old", b"1" * 16), (b"young", b"2" * 16)):
        monkeypatch.setattr(clock, "boot", lambda boot=boot: boot)
        spool = times.spool(tmp_path / "spool")
        spool.append(submissions(payload))
        spool.close()
        times.wall += 6 * DAY
        times.steady = 20.0
    monkeypatch.setattr(clock, "boot", lambda: b"3" * 16)
    again = times.spool(tmp_path / "spool")
    assert again.adopt() == 2
    assert payloads(again) == [b"young"]
    assert again.stats().rejected == 1
    again.close()
