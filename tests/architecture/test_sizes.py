"""A file that outgrows its reader is two files."""

import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, at, files, plant

LIMITS = (
    ("src", ".py", 400), ("src", ".js", 400), ("tests", ".py", 600), ("src", ".lua", 500),
    ("tools", ".py", 400),
)  # fmt: skip

HEADER_WORDS = ("KEYS", "ARGV", "Returns")


def oversized(root: Path) -> list[str]:
    found = []
    for folder, suffix, limit in LIMITS:
        for path in files(root, folder, suffix):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > limit:
                found.append(at(root, path, lines, f"{lines} lines, at most {limit}"))
    return found


def lua_without_contract(root: Path) -> list[str]:
    """Each script opens with comment lines that name its KEYS, its ARGV and what it Returns."""
    found = []
    for path in files(root, "src", ".lua"):
        opening = re.match(r"(?:--.*(?:\n|$))*", path.read_text(encoding="utf-8"))
        header = opening.group() if opening else ""
        missing = [word for word in HEADER_WORDS if not re.search(rf"\b{word}\b", header)]
        if missing:
            found.append(at(root, path, 1, f"the header does not name {', '.join(missing)}"))
    return found


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    assert oversized(ROOT) == []


def test_each_lua_file_opens_with_its_contract() -> None:
    assert lua_without_contract(ROOT) == []


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


def test_the_lua_rule_wants_the_contract_at_the_top(tmp_path: Path) -> None:
    name = "src/fairlead/broker/redis/lua/beat.lua"
    contract = "-- KEYS[1] the leases\n-- ARGV[1] the incarnation\n-- Returns how many are kept\n"

    plant(tmp_path, name, f"{contract}return 0\n")
    assert lua_without_contract(tmp_path) == []

    plant(tmp_path, name, f"return 0\n{contract}")
    assert lua_without_contract(tmp_path) == [
        f"{name}:1: the header does not name KEYS, ARGV, Returns"
    ]

    plant(tmp_path, name, "-- KEYS[1] the leases; Returns nothing\nreturn ARGV[1]\n")
    assert lua_without_contract(tmp_path) == [f"{name}:1: the header does not name ARGV"]
