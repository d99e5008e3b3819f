"""``fairlead queue``: what it says of queues, and what it does with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fairlead import Fairlead
from tests.cli.conftest import Operator


def test_a_broker_without_queues_says_how_to_get_one(app: Fairlead, operator: Operator) -> None:
    answer = operator("queue", "list")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "there are no queues: the first task makes one\n"


def test_queues_are_listed_with_what_waits_runs_and_is_dead(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    mail.enqueue("bad")
    work_off()
    mail.enqueue("ann")
    mail.using(delay=600).enqueue("bob")
    answer = operator("queue", "list")
    assert (answer.returncode, answer.stderr) == (0, "")
    head, row = (line.split() for line in answer.stdout.splitlines())
    shown = dict(zip(head, row, strict=True))
    assert (shown["QUEUE"], shown["READY"], shown["SCHEDULED"]) == ("mail", "1", "1")
    assert (shown["DEAD"], shown["WORKERS"], shown["STATE"]) == ("1", "0", "open")
    report = json.loads(operator("queue", "list", "--json").stdout)
    assert report["queues"]["mail"]["depth"] == 2
    assert report["queues"]["mail"]["workers"] == 0


def test_show_tells_counts_settings_and_tenants(mail: Any, operator: Operator) -> None:
    mail.using(tenant="acme").enqueue("ann")
    operator("queue", "limit", "mail", "--concurrency", "3", "--keep-dead", "30d")
    answer = operator("queue", "show", "mail")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = [line.split() for line in answer.stdout.splitlines()]
    for words in (["ready", "1"], ["concurrency", "3"], ["keep_dead", "30d"], ["rate", "none"]):
        assert words in lines
    assert lines[-1] == ["acme", "1", "0", "0"]
    report = json.loads(operator("queue", "show", "mail", "--json").stdout)
    assert report["settings"]["concurrency"] == 3
    assert report["tenants"]["acme"]["ready"] == 1


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    mail: Any, operator: Operator
) -> None:
    mail.enqueue("ann")
    for verb in ("show", "pause", "purge", "delete"):
        answer = operator("queue", verb, "mial")
        assert (answer.returncode, answer.stdout) == (2, ""), verb
        assert "'mial'" in answer.stderr
        assert "did you mean mail?" in answer.stderr
    assert list(json.loads(operator("queue", "list", "--json").stdout)["queues"]) == ["mail"]


def test_a_name_may_be_new_all_the_same(mail: Any, operator: Operator) -> None:
    mail.enqueue("ann")
    answer = operator("queue", "pause", "mail2", "--new")
    assert answer.returncode == 0
    assert answer.stderr == (
        "queue 'mail2' is new: the broker did not know it\nqueue mail2 is paused\n"
    )
    assert operator("queue", "pause", "reports").returncode == 0  # like no other
    assert json.loads(operator("queue", "show", "reports", "--json").stdout)["depth"] == 0


def test_what_is_paused_starts_when_it_is_resumed(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    mail.enqueue("ann")
    assert operator("queue", "pause", "mail").returncode == 0
    assert work_off() == 0
    assert operator("queue", "list").stdout.split()[-1] == "paused"
    assert operator("queue", "resume", "mail").stderr == "queue mail is resumed\n"
    assert work_off() == 1


def test_a_rate_may_be_said_by_the_minute_and_lifted_again(mail: Any, operator: Operator) -> None:
    mail.enqueue("ann")

    def rate() -> object:
        return json.loads(operator("queue", "show", "mail", "--json").stdout)["settings"]["rate"]

    assert operator("queue", "limit", "mail", "--rate", "300/m").returncode == 0
    assert rate() == 5.0
    assert operator("queue", "limit", "mail", "--rate", "none").returncode == 0
    assert rate() is None


def test_priorities_are_made_strict_and_take_turns_again(mail: Any, operator: Operator) -> None:
    """Without the option other limits leave them as they are."""
    mail.enqueue("ann")
    for option, strict in (
        ("--strict-priorities", True),
        ("--concurrency=3", True),
        ("--no-strict-priorities", False),
        ("--concurrency=none", False),
    ):
        assert operator("queue", "limit", "mail", option).returncode == 0
        shown = json.loads(operator("queue", "show", "mail", "--json").stdout)
        assert shown["settings"]["strict_priorities"] is strict


def test_a_wrong_limit_is_named_and_changes_nothing(mail: Any, operator: Operator) -> None:
    mail.enqueue("ann")
    for option, value in (("--rate", "5/w"), ("--rate", "fast"), ("--concurrency", "2.5")):
        answer = operator("queue", "limit", "mail", option, value)
        assert answer.returncode == 2
        assert value in answer.stderr
    assert operator("queue", "limit", "mail", "--keep-dead", "soon").returncode == 2
    assert "nothing to set was named" in operator("queue", "limit", "mail").stderr


def test_purge_cancels_what_waits_once_it_is_agreed_to(mail: Any, operator: Operator) -> None:
    for tenant in ("acme", "bolt"):
        for number in range(60):
            mail.using(tenant=tenant).enqueue(f"{number}")
    answer = operator("queue", "purge", "mail")
    assert answer.returncode == 2
    assert "120 tasks waiting in queue mail would be cancelled" in answer.stderr
    assert "give --yes" in answer.stderr
    assert "120 tasks waiting" in operator("queue", "purge", "mail", "--dry-run").stderr
    answer = operator("queue", "purge", "mail", "--tenant", "acme", "--yes")
    assert (answer.returncode, answer.stderr) == (0, "60 tasks were cancelled\n")
    report = json.loads(operator("queue", "purge", "mail", "--yes", "--json").stdout)
    assert report == {"queue": "mail", "cancelled": 60, "finished": True}


def test_a_queue_is_deleted_only_when_nothing_waits_there(mail: Any, operator: Operator) -> None:
    mail.enqueue("ann")
    answer = operator("queue", "delete", "mail", "--yes")
    assert answer.returncode == 1
    assert "mail" in answer.stderr
    operator("queue", "purge", "mail", "--yes")
    answer = operator("queue", "delete", "mail", "--yes")
    assert answer.returncode == 0
    assert answer.stderr.startswith("queue mail is deleted")
    assert operator("queue", "show", "mail").returncode == 2
