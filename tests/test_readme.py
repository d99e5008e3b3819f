"""The README's examples are programs, and the first one runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.embedded.processes import ended, holder_of

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

OUTPUT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    """The Python blocks of the README, in order, without the indentation of lists."""
    found = []
    for match in BLOCK.finditer(README.read_text(encoding="utf-8")):
        indent = len(match[1])
        found.append("".join(line[indent:] for line in match[2].splitlines(keepends=True)))
    return found


def printed() -> str:
    """What the README says that its first example prints."""
    text = README.read_text(encoding="utf-8")
    first = BLOCK.search(text)
    assert first is not None
    found = OUTPUT.search(text, first.end())
    assert found is not None
    return found[1]


def environment() -> dict[str, str]:
    """Without what could lead the example to another broker than its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}


def test_there_is_an_example() -> None:
    assert blocks()


def test_every_example_is_python() -> None:
    for block in blocks():
        compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_first_example_runs_and_prints_what_it_is_said_to_print(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(blocks()[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == printed()
    ended(holder_of(tmp_path / ".fairlead").pid)
