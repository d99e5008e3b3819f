"""A file that outgrows its reader is two files."""

from pathlib import Path

import pytest

from tests.architecture.source import ROOT, at, files, plant

LIMITS = (
    ("src", ".py", 400), ("src", ".js", 400), ("tests", ".py", 600), ("src", ".lua", 500),
    ("tools", ".py", 400),
)  # fmt: skip


def oversized(root: Path) -> list[str]:
    found = []
    for folder, suffix, limit in LIMITS:
        for path in files(root, folder, suffix):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > limit:
                found.append(at(root, path, lines, f"{lines} lines, at most {limit}"))
    return found


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    assert oversized(ROOT) == []


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("src/fairlead/broker/long.py", 400),
        ("tests/broker/test_long.py", 600),
        ("src/fairlead/broker/redis/lua/long.lua", 500),
    ],
)
def test_the_size_rule_counts_to_the_line(tmp_path: Path, name: str, limit: int) -> None:
    plant(tmp_path, name, "x\n" * limit)
    assert oversized(tmp_path) == []

    plant(tmp_path, name, "x\n" * (limit + 1))
    assert oversized(tmp_path) == [f"{name}:{limit + 1}: {limit + 1} lines, at most {limit}"]


def test_files_made_by_tools_may_have_any_size(tmp_path: Path) -> None:
    plant(tmp_path, "src/fairlead/api/static/bundle.py", "x\n" * 1000)
    assert oversized(tmp_path) == []
