"""A process that has imported the product, from which one is forked for each mutant.

Most of what a short test takes is imports. Whatever depends on the file that a mutant changes is
forgotten in the fork and imported there, as it is then; all else stays.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grimp
import pytest

__all__ = ("ROOT", "forget", "module_of", "serve")

ROOT = Path(__file__).resolve().parents[2]
# What is imported by the names of the files that are found stands in no import statement.
_FINDS = "fairlead.api.route_table"
_FOUND = (
    *("fairlead.api.routes.", "fairlead.api.live", "fairlead.api.metrics", "fairlead.api.page"),
    "fairlead.api.auth.sign_in",
)
_OURS = ("fairlead", "tests")
# No named test is one of Schemathesis, whose plugin takes longer to import than most tests take.
_OPTIONS = (
    *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:schemathesis"),
    *("-W", "ignore:Module already imported"),
)
_FORK = multiprocessing.get_context("fork")


def serve(copy: Path, orders: Connection) -> None:
    """Import the product of this copy, then run what is ordered, each in a fork, until the end.

    An order is a file that differs ("" for none), arguments for pytest, and a time limit. The
    answer is pytest's exit code, None if it did not end in time.
    """
    said = copy.with_suffix(".said")
    os.chdir(ROOT)
    # Of a process that was forked nobody tidies up: what it leaves lies beside the copy. Two that
    # tidy up in one folder disturb each other.
    temporary = copy.with_suffix(".tmp")
    temporary.mkdir()
    temporary.chmod(0o711)  # PostgreSQL runs as another account, if this is root
    os.environ.update(PYTHONPATH=str(copy), TMPDIR=str(temporary))
    tempfile.tempdir = None
    sys.path.insert(0, str(copy))
    read: set[str] = set()
    sys.addaudithook(lambda event, args: _note(event, args, read))
    for name in sorted(_graph().modules):
        is_wanted = name.startswith(("fairlead.", "tests.support.")) or ".conftest" in name
        if is_wanted and not name.endswith("__main__"):
            import_module(name)
    assert threading.active_count() == 1, "a fork has one thread only"
    gc.collect()
    gc.freeze()
    while (order := orders.recv()) is not None:
        file, arguments, seconds = order
        was_read = str(copy / file) in read and not file.endswith(".py")
        process = _FORK.Process(target=_run_tests, args=(said, file, was_read, arguments))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            orders.send(None)
        else:
            orders.send(process.exitcode)
        process.close()


def _note(event: str, args: tuple[Any, ...], read: set[str]) -> None:
    if event == "open" and isinstance(args[0], str):
        read.add(args[0])


def _run_tests(said: Path, file: str, was_read: bool, arguments: list[str]) -> None:
    """In a process of its own: run pytest with the product of this copy as it is now."""
    with said.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        forget(file, was_read=was_read)
        code = int(pytest.main([*_OPTIONS, *arguments]))
    except BaseException:  # noqa: BLE001 - or it would pass for a red test
        traceback.print_exc()
        code = 3
    sys.exit(code)


def forget(file: str, *, was_read: bool = False) -> None:
    """Forget all modules of ours that may be others if this file, below ``src``, is another.

    A file that is no module changes none, unless it was read by one that was imported.
    """
    if file.endswith(".py"):
        name = module_of(file)
        gone = {name, *_graph().find_downstream_modules(name)}
    elif was_read:
        gone = {name for name in sys.modules if name.partition(".")[0] in _OURS}
    else:
        return
    for name in gone & sys.modules.keys():
        del sys.modules[name]
        package, _, leaf = name.rpartition(".")
        if hasattr(sys.modules.get(package), leaf):
            delattr(sys.modules[package], leaf)
    # A package that is imported again does not know the modules in it that were not forgotten.
    for name, module in list(sys.modules.items()):
        package, _, leaf = name.rpartition(".")
        if package in gone and name not in gone:
            setattr(import_module(package), leaf, module)


def module_of(file: str) -> str:
    """Return the name of the module in this file, below ``src``."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def _graph() -> grimp.ImportGraph:
    """Return which of our modules imports which."""
    graph = grimp.build_graph(*_OURS, cache_dir=None)
    for name in graph.modules:
        if name.startswith(_FOUND):
            graph.add_import(importer=_FINDS, imported=name)
    return graph
