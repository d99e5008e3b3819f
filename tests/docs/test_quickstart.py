"""The quickstart as a reader does it: one folder, `fairlead worker`, and the programs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks, kept_environment
from tests.support.servers import server

PAGE = "docs/quickstart.md"


@pytest.mark.slow  # a real server, a real worker, and a process for each program
@pytest.mark.long(10)
def test_the_programs_of_quickstart_run_beside_its_worker(tmp_path: Path) -> None:
    programs = [block for block in blocks(PAGE) if block.language == "python"]
    assert [block.output is None for block in programs] == [True, False, False, False, False]
    for number, block in enumerate(programs):
        name = block.code.partition("\n")[0].removeprefix("# ")
        path = tmp_path / (name if name.endswith(".py") else f"program_{number}.py")
        path.write_text(block.code, encoding="utf-8")
    with server() as running:
        environment = {**kept_environment(), "FAIRLEAD_URL": running.url, "PYTHONPATH": ""}
        fairlead = Path(sys.executable).with_name("fairlead")
        worker = subprocess.Popen(
            [fairlead, "worker", "tasks:app", "--grace", "1"],
            cwd=tmp_path,
            env={**environment, "FAIRLEAD_RUN_DIR": str(tmp_path)},
            stderr=subprocess.PIPE,
        )
        try:
            for number, block in enumerate(programs[1:], 1):
                name = block.code.partition("\n")[0].removeprefix("# ")
                done = subprocess.run(
                    [sys.executable, name if name.endswith(".py") else f"program_{number}.py"],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=90,
                    check=False,
                )
                assert done.returncode == 0, f"{block}: {done.stderr}"
                assert done.stdout == block.output, str(block)
            listed = subprocess.run(
                [fairlead, "schedule", "list"], env=environment, capture_output=True, text=True
            )
            assert "tasks.clean_up" in listed.stdout, listed
        finally:
            worker.terminate()
            _, told = worker.communicate(timeout=60)
        assert worker.returncode == os.EX_OK, told
