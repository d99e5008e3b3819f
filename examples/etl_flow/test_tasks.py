from __future__ import annotations

from pathlib import Path

import pytest

from etl_flow.tasks import app, report
from fairlead import Fairlead
from fairlead.testing import Kit


@pytest.fixture
def fairlead_target() -> Fairlead:
    return app


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("one.csv", "two.csv")]
    made[0].write_text("country,amount\nde,3\nfr,4\n")
    made[1].write_text("country,amount\nde,5\n")
    return made


def test_a_report_of_all_files(fairlead_kit: Kit, files: list[Path], tmp_path: Path) -> None:
    flow = report(files, tmp_path / "report.csv")
    assert fairlead_kit.drain() == 4
    assert flow.state == "completed"
    assert (tmp_path / "report.csv").read_text() == "country,amount\nde,8\nfr,4\n"


def test_the_part_that_failed_is_repeated(
    fairlead_kit: Kit, files: list[Path], tmp_path: Path
) -> None:
    flow = report([*files, tmp_path / "late.csv"], tmp_path / "report.csv")
    fairlead_kit.elapse("1h", raise_errors=False)
    assert flow.state == "dead"
    (tmp_path / "late.csv").write_text("country,amount\nit,1\n")
    flow.retry()
    assert fairlead_kit.drain() == 3  # the late file, the join and the report
    assert (tmp_path / "report.csv").read_text() == "country,amount\nde,8\nfr,4\nit,1\n"
