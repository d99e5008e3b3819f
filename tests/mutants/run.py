"""Take the guards out one by one; each removal must turn its named test red.

    python tests/mutants/run.py [--after-suite] [--a-quarter] [NAME …]

``--after-suite`` says that all tests have just passed: the named ones are not run without a mutant.
``--a-quarter`` takes a quarter of the guards, another one for every commit: so each change is tried
with some, and each guard soon comes round. That every guard is where it should be is a test.

Exit 1 if a mutant survives, if a guard is not found where it should be, or if a named test is red
without any mutant.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from _pytest.config import default_plugins

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.mutants.guards import GUARDS
from tests.mutants.mutant import Guard, Mutant, mutants, quarter
from tests.mutants.preloaded import ROOT, serve
from tests.support import surroundings  # noqa: F401 - for the processes to be started

_TIMEOUT = 120  # seconds for one named test; a mutant that hangs is noticed by it
_SLOWEST = 10
_AFTER_SUITE = "--after-suite"
_A_QUARTER = "--a-quarter"
_moments = itertools.count(1_000_000_000)
_AT_ONCE = 8  # most wait: every tenth for ten seconds or more, until it is noticed
# Most of a run would be imports of what stays the same: processes are forked from one that has it.
_SAME = (
    *(f"_pytest.{name}" for name in default_plugins),
    *("anyio.pytest_plugin", "pytest_asyncio.plugin", "pytest_timeout"),
    *("hypothesis.stateful", "rich.console", "pygments.lexers", "pdb", "xml.etree.ElementTree"),
    *("asyncio", "click", "cronsim", "httpx", "msgspec", "psycopg"),
    *("psycopg_pool", "redis.asyncio", "uvicorn", "websockets"),
)
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(list(_SAME))

W = TypeVar("W")
R = TypeVar("R")
_Work = tuple[Guard, Mutant, str]


class _Slot:
    """A copy of the source, and a process that has imported the product from it."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        self._orders, theirs = _FORKED.Pipe()
        self._process = _FORKED.Process(target=serve, args=(copy, theirs))
        self._process.start()
        theirs.close()

    def red(self, file: str, tests: list[str], *options: str, seconds: float = _TIMEOUT) -> str:
        """What pytest says if one of the tests fails with this file as it is; empty if none."""
        self._orders.send((file, [*options, *tests], seconds))
        code = self._orders.recv()
        if code is None:
            return f"no end within {seconds:g} s"
        said = self.copy.with_suffix(".said").read_text()
        if code not in (0, 1):  # collection errors and such prove nothing about a guard
            raise SystemExit(f"pytest could not run {tests}:\n{said}")
        return said if code else ""

    def close(self) -> None:
        self._orders.send(None)
        self._process.join()


def main(names: list[str]) -> int:
    """Run the mutants of the guards with these names, or of all; print a table."""
    is_after_suite = _AFTER_SUITE in names
    guards = GUARDS if _A_QUARTER not in names else quarter(GUARDS, _commit())
    names = [name for name in names if name not in (_AFTER_SUITE, _A_QUARTER)]
    guards = [guard for guard in guards if not names or guard.name in names]
    if not guards:
        known = ", ".join(guard.name for guard in GUARDS)
        print(f"no guard of that name; there are: {known}", file=sys.stderr)
        return 2
    work = [(guard, mutant, test) for guard in guards for mutant, test in mutants(guard)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        Path(folder).chmod(0o711)  # PostgreSQL runs as another account, if this is root
        slots: SimpleQueue[_Slot] = SimpleQueue()
        for number in range(min(_AT_ONCE, len(work))):
            slot = _Slot(_copied(ROOT / "src", Path(folder, str(number))))
            stack.callback(slot.close)
            slots.put(slot)
        if not is_after_suite:
            print("the named tests without any mutant …", file=sys.stderr)
            if red := "".join(_each(slots, _whole, _by_file(work))):
                print("red without any mutant:\n" + red, file=sys.stderr)
                return 1
        survivors = 0
        spent = []
        print(f"{'guard taken out':16} {'of':7} {'noticed':8} {'s':>5}  by")
        for (guard, mutant, test), (noticed, seconds) in zip(
            work, _each(slots, _noticed, work), strict=True
        ):
            survivors += not noticed
            said = "yes" if noticed else "NO"
            line = f"{guard.name:16} {mutant.where:7} {said:8} {seconds:5.1f}  {test}"
            print(line, flush=True)
            spent.append((seconds, line))
        shutil.rmtree(_bytecode(Path(folder)), ignore_errors=True)
    print(f"the {_SLOWEST} that took longest:")
    print("\n".join(line for _, line in sorted(spent, reverse=True)[:_SLOWEST]))
    print(f"{len(work) - survivors} of {len(work)} mutants noticed")
    if len(guards) < len(GUARDS):
        print(f"of {len(guards)} of {len(GUARDS)} guards; make mutants tries all of them")
    return 1 if survivors else 0


def _commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "0"  # a tree without its history


def _copied(source: Path, copy: Path) -> Path:
    """Copy a folder of modules with what is compiled of them, which may lie apart."""
    shutil.copytree(source, copy)
    if _bytecode(source).is_dir():
        shutil.copytree(_bytecode(source), _bytecode(copy))
    return copy


def _bytecode(folder: Path) -> Path:
    return Path(sys.prefix, ".bytecode", *folder.parts[1:])


def _each(
    slots: SimpleQueue[_Slot], run: Callable[[_Slot, W], R], work: Iterable[W]
) -> Iterator[R]:
    """What became of each, in order; as many at a time as there are slots."""

    def one(item: W) -> R:
        slot = slots.get()
        try:
            return run(slot, item)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        yield from threads.map(one, work)


def _by_file(work: list[_Work]) -> list[tuple[str, list[str]]]:
    """The files of which there are mutants, each with its named tests."""
    found: dict[str, list[str]] = {}
    for _, mutant, test in work:
        tests = found.setdefault(mutant.file, [])
        if test not in tests:
            tests.append(test)
    return list(found.items())


def _whole(slot: _Slot, item: tuple[str, list[str]]) -> str:
    """What is red though nothing is changed: all that depends on the file is imported again."""
    file, tests = item
    return slot.red(file, tests, seconds=600)


def _noticed(slot: _Slot, item: _Work) -> tuple[bool, float]:
    """Whether the named test is red without the guard, and after how many seconds.

    The copy is whole again afterwards.
    """
    guard, mutant, test = item
    path = slot.copy / mutant.file
    whole = path.read_text()
    text = whole
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise SystemExit(
                f"guard {guard.name!r}: expected once in {mutant.file}, "
                f"found {text.count(old)} times: {old!r}"
            )
        text = text.replace(old, new)
    before = path.stat()
    started = time.monotonic()
    path.write_text(text)
    # Bytecode is told from a newer one by whole seconds: no two mutants may have the same.
    os.utime(path, (0, next(_moments)))
    try:
        return bool(slot.red(mutant.file, [test], "--tb=no")), time.monotonic() - started
    finally:
        path.write_text(whole)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
