"""What a mutant's process has imported already is nothing that the mutant could change."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.preloaded import ROOT, module_of

_FORGETS = """
import sys
import fairlead.api.route_table
import fairlead.broker.memory.broker
import fairlead.worker.runner
from tests.mutants.preloaded import forget

before = dict(sys.modules)
forget({file!r})
from importlib import import_module
for name in {again!r}:
    assert import_module(name) is not before[name], name
    package, _, leaf = name.rpartition(".")
    assert getattr(sys.modules[package], leaf) is sys.modules[name], name
for name in {same!r}:
    assert import_module(name) is before[name], name
    package, _, leaf = name.rpartition(".")
    assert getattr(import_module(package), leaf) is before[name], name
"""


def test_modules_are_named_as_they_are_imported() -> None:
    assert module_of("fairlead/model/clock.py") == "fairlead.model.clock"
    assert module_of("fairlead/broker/__init__.py") == "fairlead.broker"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "again", "same"),
    [
        (
            "fairlead/broker/memory/retention.py",
            ["fairlead.broker.memory.retention", "fairlead.broker.memory.broker"],
            ["fairlead.model.lifecycle", "fairlead.broker.records"],
        ),
        (
            "fairlead/api/routes/tasks.py",  # found by its name, imported by no statement
            ["fairlead.api.routes.tasks", "fairlead.api.route_table"],
            ["fairlead.api.http.route", "fairlead.broker.memory.broker"],
        ),
        (
            "fairlead/broker/redis/lua/exchange.lua",
            [],
            ["fairlead.broker.memory.broker", "fairlead.api.route_table"],
        ),
    ],
)
def test_what_depends_on_a_file_is_imported_again_and_nothing_else(
    file: str, again: list[str], same: list[str]
) -> None:
    assert (ROOT / "src" / file).is_file()
    script = _FORGETS.format(file=file, again=again, same=same)
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
