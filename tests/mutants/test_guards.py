"""The list of guards is true of the source as it is: a quick check, without running mutants."""

from __future__ import annotations

import pytest

from tests.mutants.guards import GUARDS
from tests.mutants.mutant import Mutant, mutants
from tests.mutants.run import ROOT

EACH = pytest.mark.parametrize(
    ("mutant", "test"),
    [
        pytest.param(mutant, test, id=f"{guard.name}: {mutant.file}")
        for guard in GUARDS
        for mutant, test in mutants(guard)
    ],
)


@EACH
def test_each_guard_stands_exactly_once_where_the_list_says(mutant: Mutant, test: str) -> None:
    text = (ROOT / "src" / mutant.file).read_text()
    for old, new in mutant.edits:
        assert text.count(old) == 1
        assert old != new


@EACH
def test_each_named_test_exists(mutant: Mutant, test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()


def test_each_guard_of_the_memory_broker_stands_in_the_scripts_as_well() -> None:
    for guard in GUARDS:
        places = {mutant.where for mutant in guard.mutants}
        assert places in ({"memory", "valkey"}, {"valkey"}, {""}), guard.name
