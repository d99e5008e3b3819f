"""The table of promises names tests that there are."""

from __future__ import annotations

import re

from tests.architecture.source import ROOT

HEADING = re.compile(r"^## .*`(tests/\S+\.py)`$", re.MULTILINE)
NAMED = re.compile(r"\| `([^`]+)` \|$", re.MULTILINE)


def named() -> list[tuple[str, str]]:
    """Return file and function of each row; no function where the whole file is named."""
    _, *parts = HEADING.split((ROOT / "tests/acceptance/promises.md").read_text(encoding="utf-8"))
    found = []
    for own, rows in zip(parts[::2], parts[1::2], strict=True):
        for name in NAMED.findall(rows):
            file, _, function = name.rpartition("::") if "::" in name else (own, "", name)
            found.append((name, "") if name.endswith(".py") else (file, function))
    return found


def test_every_test_that_keeps_a_promise_is_there() -> None:
    rows = named()
    assert len(rows) > 100
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in rows}
    missing = [row for row in rows if row[1] and f"def {row[1]}(" not in texts[row[0]]]
    assert missing == []


def test_every_test_of_a_document_keeps_a_promise_of_the_table() -> None:
    kept = set(named())
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests/acceptance").glob("test_seed_*.py")
        for name in re.findall(
            r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert sorted(found - kept) == []
