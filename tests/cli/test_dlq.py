"""``fairlead dlq``: dead letters by what they died of, put back or deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Fairlead
from tests.cli.conftest import Operator


@pytest.fixture
def letters(app: Fairlead, mail: Any, work_off: Callable[[], int]) -> None:
    """Five that died of a mailbox, in two queues, and two of a printer."""

    @app.task(name="print", max_retries=0)
    async def print_it(page: int) -> None:
        raise OSError(f"page {page}: no paper")

    for number in range(5):
        queue = "mail" if number < 3 else "other"
        mail.using(queue=queue, tenant="acme" if number else "bolt").enqueue(f"bad-{number}")
    for number in range(2):
        print_it.enqueue(number)
    work_off()


def groups(operator: Operator, *args: str) -> dict[str, int]:
    report = json.loads(operator("dlq", "list", *args, "--json").stdout)
    return {each["task"]: each["count"] for each in report["groups"]}


def test_without_dead_letters_it_says_so(app: Fairlead, operator: Operator) -> None:
    answer = operator("dlq", "list")
    assert (answer.returncode, answer.stdout, answer.stderr) == (
        0,
        "",
        "there are no dead letters\n",
    )


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_grouped_by_task_and_error(operator: Operator) -> None:
    answer = operator("dlq", "list")
    assert (answer.returncode, answer.stderr) == (0, "")
    _, first, second = answer.stdout.splitlines()
    assert first.split()[:2] == ["5", "shop.mail"]
    assert first.endswith("ValueError: no mailbox '…'")
    assert second.split()[:2] == ["2", "print"]
    assert second.endswith("OSError: page #: no paper")
    assert groups(operator, "--queue", "mail") == {"shop.mail": 3}
    assert groups(operator, "--tenant", "bolt") == {"shop.mail": 1}
    assert groups(operator, "--error", "paper") == {"print": 2}


@pytest.mark.usefixtures("letters")
def test_the_tasks_of_a_group_are_listed_and_put_back(operator: Operator) -> None:
    report = json.loads(operator("dlq", "list", "--json").stdout)
    group = report["groups"][1]["group"][:6]
    assert len(json.loads(operator("dlq", "list", "--group", group, "--json").stdout)["tasks"]) == 2
    answer = operator("dlq", "retry", "--group", group, "--dry-run")
    assert answer.stderr == "2 tasks would be retried\n"
    answer = operator("dlq", "retry", "--group", group, "--yes")
    assert (answer.returncode, answer.stderr) == (0, "2 tasks were retried\n")
    assert groups(operator) == {"shop.mail": 5}


@pytest.mark.usefixtures("letters")
def test_all_of_them_go_only_if_it_is_said(operator: Operator) -> None:
    answer = operator("dlq", "delete", "--yes")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--all-matching" in answer.stderr
    assert operator("dlq", "delete", "--queue", "mail", "--yes").stderr == "3 tasks were deleted\n"
    assert operator("dlq", "delete", "--all-matching", "--yes").stderr == "4 tasks were deleted\n"
    assert groups(operator) == {}
