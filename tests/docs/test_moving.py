"""The pages about moving: both halves of each program run, the other one where its package is.

The packages are not installed for the tests. `make bench ARGS=peers` installs them into .bench, one
environment each, and they are found there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.docs.pages import blocks, kept_environment
from tests.support.servers import server

PEERS = ("arq", "celery", "dramatiq", "rq")


def interpreter(peer: str) -> Path:
    """An interpreter that has the package, or skip."""
    for folder in (Path(sys.executable).parents[1], *(ROOT / ".bench").glob("*")):
        python = folder / "bin" / "python"
        if python.exists() and list(folder.glob(f"lib/python*/site-packages/{peer}/__init__.py")):
            return python
    pytest.skip(f"{peer} is not installed: make bench ARGS=peers")


def test_there_is_a_page_for_each() -> None:
    assert {path.stem for path in (ROOT / "docs/moving").glob("*.md")} == set(PEERS)


@pytest.mark.parametrize("peer", PEERS)
def test_a_page_shows_the_program_before_and_after(peer: str) -> None:
    before, after = (b for b in blocks(f"docs/moving/{peer}.md") if b.language == "python")
    assert f"import {peer}" in before.code or f"from {peer}" in before.code
    assert before.output is None
    assert "from fairlead import" in after.code  # test_blocks runs it
    assert after.output is not None


@pytest.mark.parametrize("peer", PEERS)
def test_the_program_before_runs(peer: str, tmp_path: Path) -> None:
    python = interpreter(peer)
    before = next(b for b in blocks(f"docs/moving/{peer}.md") if b.language == "python")
    with server(tcp=True) as running:
        done = subprocess.run(
            [python, "-c", before.code],
            cwd=tmp_path,
            env={**kept_environment(), "REDIS_URL": running.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert running.admin("DBSIZE") != 0
