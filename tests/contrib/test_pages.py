"""What the pages about frameworks show stands in the examples, which the tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (examples/\S+)\n(.*)", re.DOTALL)
PAGES = ("django", "fastapi", "flask")


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_part_of_an_example(page: str) -> None:
    blocks = BLOCK.findall((ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        named = NAMED.fullmatch(block)
        assert named is not None, block
        assert named[2] in (ROOT / named[1]).read_text(encoding="utf-8"), block


def test_each_example_has_a_test() -> None:
    folders = [path for path in (ROOT / "examples").iterdir() if (path / "__init__.py").exists()]
    assert folders
    assert [path.name for path in folders if not [*path.rglob("test*.py")]] == []
