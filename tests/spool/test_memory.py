"""What a million records cost in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.programs import run


@pytest.mark.slow
@pytest.mark.long(30)
def test_a_million_records_cost_less_than_a_hundred_bytes_each(tmp_path: Path) -> None:
    told = run(
        f"""
import os, sys
from pathlib import Path
from fairlead.spool import Entry, Kind, Spool, SpoolLimits
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
limits = SpoolLimits(max_bytes=2**30)
def each():
    group = [Entry(Kind.SUBMISSION, b"x" * 100)] * 1000
    spool = Spool.open(Path({str(tmp_path / "spool")!r}), limits=limits)
    spool.append(group)
    before = resident()
    for _ in range(999):
        spool.append(group)
    assert spool.depth == 1_000_000
    yield (resident() - before) / 1e6
    spool.close()
    del spool
    before = resident()
    spool = Spool.open(Path({str(tmp_path / "spool")!r}), limits=limits)
    assert spool.adopt() == 1_000_000
    assert len(spool.pending()) == 256
    yield (resident() - before) / 1e6
print(*each())
""",
        timeout=110,
    )
    appended, adopted = map(float, told.split())
    assert appended < 100
    assert adopted < 100
