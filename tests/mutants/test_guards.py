"""The list of guards is true of the source as it is: a quick check, without running mutants."""

from __future__ import annotations

import pytest

from tests.mutants.guards import GUARDS, Guard
from tests.mutants.run import ROOT


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: str(guard.name))
def test_each_guard_stands_exactly_once_where_the_list_says(guard: Guard) -> None:
    text = (ROOT / "src" / guard.file).read_text()
    for old, new in guard.edits:
        assert text.count(old) == 1
        assert old != new


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: str(guard.name))
def test_each_named_test_exists(guard: Guard) -> None:
    path, _, name = guard.test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
