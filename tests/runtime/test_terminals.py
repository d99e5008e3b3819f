"""The end of a process whose terminal, or the reader of whose output, is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.runtime.programs import ROOT

PROGRAM = """
import sys
from fairlead.runtime.terminals import end_without_outputs

end_without_outputs()
for stream in (sys.stdout, sys.stderr):
    try:
        print("nobody reads this", file=stream, flush=True)
    except OSError:
        pass
print("and this is in a buffer")
sys.exit(3)
"""


@pytest.mark.parametrize(
    "before",
    ["", "sys.stdout.close()", "sys.stdout = sys.stderr = None", "import os; os.close(1)"],
)
def test_a_process_ends_with_its_own_exit_code_without_its_outputs(before: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        program = PROGRAM.replace("sys.exit", f"{before}\nsys.exit" if before else "sys.exit")
        if before == "sys.stdout.close()":  # which tries once more
            program = program.replace(before, f"try: {before}\nexcept OSError: pass")
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=theirs,
            stderr=theirs,
            timeout=60,
            cwd=ROOT,
            check=False,
        )
    finally:
        os.close(theirs)

    assert done.returncode == 3
