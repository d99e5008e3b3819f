"""``fairlead events tail`` and ``fairlead completion``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Operator
from tests.cli.running import answered, fairlead


def test_events_come_in_order_and_of_those_types_that_are_asked_for(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    bad = mail.enqueue("bad")
    mail.enqueue("ann")
    work_off()
    answer = operator("events", "tail", "dead", "--after", "oldest", "--count", "1")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.split()[1:4] == ["task.dead", "shop.mail", bad.id]
    answer = operator(
        "events", "tail", "--task", bad.id, "--after", "oldest", "--count", "4", "--json"
    )
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["type"] for line in lines] == [
        "task.submitted",
        "task.started",
        "task.failed",
        "task.dead",
    ]


def test_an_unknown_type_is_named(mail: Any, operator: Operator) -> None:
    answer = operator("events", "tail", "deed")
    assert answer.returncode == 2
    assert "types='deed' is not valid: it must be task.dead, or one of " in answer.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_what_it_needs(shell: str) -> None:
    answer = answered("completion", shell)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "_FAIRLEAD_COMPLETE" in answer.stdout


def test_a_shell_is_told_commands_and_options() -> None:
    answer = fairlead(
        _FAIRLEAD_COMPLETE="bash_complete", COMP_WORDS="fairlead task re", COMP_CWORD="2"
    )
    assert "plain,retry" in answer.stdout
    assert answered("completion", "tcsh").returncode == 2
