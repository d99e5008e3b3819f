"""Take the guards out one by one; each removal must turn its named test red.

    python tests/mutants/run.py [NAME …]

Exit 1 if a mutant survives, if a guard is not found where it should be, or if a named test is red
without any mutant.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from _pytest.config import default_plugins

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.guards import GUARDS  # noqa: E402 - the path comes first
from tests.mutants.mutant import Guard, Mutant, mutants  # noqa: E402
from tests.support import surroundings  # noqa: E402, F401 - for the processes to be started

_TIMEOUT = 120  # seconds for one named test; a mutant that hangs is noticed by it
_moments = itertools.count(1_000_000_000)
_AT_ONCE = 5  # every tenth waits for ten seconds or more until it is noticed
# Most of a run would be imports of what stays the same: processes are forked from one that has it.
_SAME = (
    *(f"_pytest.{name}" for name in default_plugins),
    *("anyio.pytest_plugin", "pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin"),
    *("hypothesis.stateful", "rich.console", "pygments.lexers", "pdb", "xml.etree.ElementTree"),
    *("asyncio", "click", "cronsim", "execnet.gateway", "httpx", "msgspec", "psycopg"),
    *("psycopg_pool", "redis.asyncio", "uvicorn", "websockets"),
)
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(list(_SAME))
# No named test is one of Schemathesis, whose plugin takes longer to import than most tests take.
_OPTIONS = (
    *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:schemathesis"),
    *("-W", "ignore:Module already imported"),
)


def main(names: list[str]) -> int:
    """Run the mutants of the guards with these names, or of all; print a table."""
    guards = [guard for guard in GUARDS if not names or guard.name in names]
    if not guards:
        known = ", ".join(guard.name for guard in GUARDS)
        print(f"no guard of that name; there are: {known}", file=sys.stderr)
        return 2
    work = [(guard, mutant, test) for guard in guards for mutant, test in mutants(guard)]
    print("the named tests without any mutant …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # PostgreSQL runs as another account, if this is root
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(_AT_ONCE):
            copies.put(Path(shutil.copytree(ROOT / "src", Path(folder, str(number)))))
        # As many at once as later: a test that is red beside so many others says nothing.
        red = _red(
            Path(folder, "0"), [test for _, _, test in work], "-n", str(_AT_ONCE), seconds=600
        )
        if red:
            print("red without any mutant:\n" + red, file=sys.stderr)
            return 1
        survivors = 0
        print(f"{'guard taken out':16} {'of':7} {'noticed':8} {'s':>5}  by")
        for guard, mutant, test, noticed, spent in _results(work, copies):
            survivors += not noticed
            said = "yes" if noticed else "NO"
            print(f"{guard.name:16} {mutant.where:7} {said:8} {spent:5.1f}  {test}", flush=True)
        shutil.rmtree(Path(sys.prefix, ".bytecode", *Path(folder).parts[1:]), ignore_errors=True)
    print(f"{len(work) - survivors} of {len(work)} mutants noticed")
    return 1 if survivors else 0


def _results(
    work: list[tuple[Guard, Mutant, str]], copies: SimpleQueue[Path]
) -> Iterator[tuple[Guard, Mutant, str, bool, float]]:
    """What became of each mutant, in order; as many at a time as there are copies of the source."""

    def one(item: tuple[Guard, Mutant, str]) -> tuple[Guard, Mutant, str, bool, float]:
        guard, mutant, test = item
        copy = copies.get()
        try:
            started = time.monotonic()
            noticed = _noticed(copy, guard.name, mutant, test)
            return guard, mutant, test, noticed, time.monotonic() - started
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        yield from threads.map(one, work)


def _noticed(copy: Path, name: str, mutant: Mutant, test: str) -> bool:
    """Whether the named test is red without the guard; the copy is whole again afterwards."""
    path = copy / mutant.file
    whole = path.read_text()
    text = whole
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise SystemExit(
                f"guard {name!r}: expected once in {mutant.file}, "
                f"found {text.count(old)} times: {old!r}"
            )
        text = text.replace(old, new)
    before = path.stat()
    path.write_text(text)
    # Bytecode is told from a newer one by whole seconds: no two mutants may have the same.
    os.utime(path, (0, next(_moments)))
    try:
        return bool(_red(copy, [test]))
    finally:
        path.write_text(whole)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _red(copy: Path, tests: list[str], *options: str, seconds: float = _TIMEOUT) -> str:
    """What pytest says if one of the tests fails; empty if all pass."""
    said = copy.with_suffix(".said")
    process = _FORKED.Process(target=_run_tests, args=(copy, said, [*options, *tests]))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        return f"no end within {seconds:g} s"
    if process.exitcode not in (0, 1):  # collection errors and such prove nothing about a guard
        raise SystemExit(f"pytest could not run {tests}:\n{said.read_text()}")
    return said.read_text() if process.exitcode else ""


def _run_tests(copy: Path, said: Path, arguments: list[str]) -> None:
    """In a process of its own: run pytest with the product of this copy."""
    with said.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(ROOT)
    # Of a process that was forked nobody tidies up: what it leaves lies beside the copy.
    os.environ.update(PYTHONPATH=str(copy), TMPDIR=str(copy.parent))
    tempfile.tempdir = None
    sys.path.insert(0, str(copy))
    try:
        code = int(pytest.main([*_OPTIONS, *arguments]))
    except BaseException:  # noqa: BLE001 - or it would pass for a red test
        traceback.print_exc()
        code = 3
    sys.exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
