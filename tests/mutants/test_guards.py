"""The list of guards is true of the source as it is: a quick check, without running mutants."""

from __future__ import annotations

from functools import cache

from tests.mutants.guards import GUARDS
from tests.mutants.mutant import mutants, quarter
from tests.mutants.preloaded import ROOT

EACH = [(guard.name, mutant, test) for guard in GUARDS for mutant, test in mutants(guard)]


@cache
def text(path: str) -> str:
    return (ROOT / path).read_text()


def test_each_guard_stands_exactly_once_where_the_list_says() -> None:
    astray = [
        (name, old)
        for name, mutant, _ in EACH
        for old, new in mutant.edits
        if text(f"src/{mutant.file}").count(old) != 1 or old == new
    ]
    assert astray == []


def test_each_named_test_exists() -> None:
    named = {test.partition("[")[0].partition("::")[::2] for _, _, test in EACH}
    assert [each for each in named if f"def {each[1]}(" not in text(each[0])] == []


def test_each_guard_of_the_memory_broker_stands_in_the_scripts_as_well() -> None:
    for guard in GUARDS:
        places = {mutant.where for mutant in guard.mutants}
        assert places in ({"memory", "valkey"}, {"valkey"}, {""}), guard.name


def test_four_commits_may_try_all_guards_and_each_tries_many() -> None:
    quarters = [quarter(GUARDS, f"abc{turn}") for turn in range(4)]
    assert sorted(guard.name for each in quarters for guard in each) == sorted(
        guard.name for guard in GUARDS
    )
    assert min(map(len, quarters)) > len(GUARDS) / 8
