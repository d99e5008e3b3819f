"""The code blocks of the pages, and a process that runs the Python ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.architecture.source import ROOT

__all__ = ("Block", "Ran", "blocks", "kept_environment", "pages", "run")

FENCE = re.compile(
    r"^( *)(?P<ticks>```+)(?P<info>[^\n`]*)\n(?P<code>.*?)^\1(?P=ticks)[ ]*$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A code block: its page and line, its language, and the text of the output that follows."""

    page: str
    line: int
    language: str
    code: str
    output: str | None

    @property
    def source(self) -> Path | None:
        """The file of the repository that the block is taken from, if its first line names one."""
        name = self.code.partition("\n")[0].removeprefix("# ")
        path = ROOT / name
        return path if "/" in name and path.suffix == ".py" and path.is_file() else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Ran(NamedTuple):
    """What a program did."""

    code: int
    output: str
    errors: str


def pages() -> list[str]:
    """The pages that are for users, as paths from the root."""
    found = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for folder in ("docs", "docs/how-to", "docs/frameworks", "docs/moving", "docs/reference"):
        found += sorted((ROOT / folder).glob("*.md"))
    return list(dict.fromkeys(path.relative_to(ROOT).as_posix() for path in found))


def blocks(page: str) -> list[Block]:
    """The code blocks of a page in their order, without the indentation of lists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    matches = list(FENCE.finditer(text))
    found = []
    for number, match in enumerate(matches):
        follower = matches[number + 1] if number + 1 < len(matches) else None
        output = None
        if follower is not None and follower["info"].strip() == "text":
            between = text[match.end() : follower.start()]
            output = _dedented(follower) if not between.strip() else None
        words = match["info"].split()
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, words[0] if words else "", _dedented(match), output))
    return found


def run(programs: list[Block], folder: Path, **environment: str) -> list[Ran]:
    """Run each program in a process and a folder of its own; the imports are done once for all."""
    for number, block in enumerate(programs):
        (folder / str(number)).mkdir()
        # A blank line for each above it: tracebacks then show the line of the page.
        text = "\n" * block.line + block.code
        (folder / str(number) / Path(block.page).name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("runner.py"), folder],
        env={**kept_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [Ran(*each) for each in json.loads(done.stdout)]


def kept_environment() -> dict[str, str]:
    """The variables of this process, without what could lead a program to another broker."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD_", "REDIS_"))}


def _dedented(match: re.Match[str]) -> str:
    indent = len(match[1])
    return "".join(line[indent:] for line in match["code"].splitlines(keepends=True))
