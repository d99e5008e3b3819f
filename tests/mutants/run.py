"""Take the guards out one by one; each removal must turn its named test red.

    python tests/mutants/run.py [NAME …]

Exit 1 if a mutant survives, if a guard is not found where it should be, or if a named test is red
without any mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.guards import GUARDS, Guard  # noqa: E402 - the path must be set first

_TIMEOUT = 120  # seconds for one named test; a mutant that hangs is noticed by it


def main(names: list[str]) -> int:
    """Run the mutants with these names, or all of them; print a table."""
    guards = [guard for guard in GUARDS if not names or guard.name in names]
    if not guards:
        known = ", ".join(guard.name for guard in GUARDS)
        print(f"no mutant of that name; there are: {known}", file=sys.stderr)
        return 2
    print("the named tests without any mutant …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "src")
        shutil.copytree(ROOT / "src", copy)
        red = _red(copy, [guard.test for guard in guards])
        if red:
            print("red without any mutant:\n" + red, file=sys.stderr)
            return 1
        survivors = 0
        print(f"{'guard taken out':26} {'noticed':8} {'s':>5}  by")
        for guard in guards:
            started = time.monotonic()
            noticed = _noticed(copy, guard)
            survivors += not noticed
            spent = time.monotonic() - started
            print(f"{guard.name:26} {'yes' if noticed else 'NO':8} {spent:5.1f}  {guard.test}")
    print(f"{len(guards) - survivors} of {len(guards)} mutants noticed")
    return 1 if survivors else 0


def _noticed(copy: Path, guard: Guard) -> bool:
    """Whether the named test is red without the guard; the copy is whole again afterwards."""
    path = copy / guard.file
    whole = path.read_text()
    text = whole
    for old, new in guard.edits:
        if text.count(old) != 1:
            raise SystemExit(
                f"guard {guard.name!r}: expected once in {guard.file}, "
                f"found {text.count(old)} times: {old!r}"
            )
        text = text.replace(old, new)
    path.write_text(text)
    try:
        return bool(_red(copy, [guard.test]))
    finally:
        path.write_text(whole)


def _red(copy: Path, tests: list[str]) -> str:
    """What pytest says if one of the tests fails; empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_TIMEOUT} s"
    if done.returncode not in (0, 1):  # collection errors and such prove nothing about a guard
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout}{done.stderr}")
    return done.stdout if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
