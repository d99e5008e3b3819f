"""``fairlead task list``, ``retry``, ``cancel`` and ``delete``: some tasks, or all that match."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Fairlead
from tests.cli.conftest import Operator


def ids(operator: Operator, *args: str) -> list[str]:
    return [
        each["id"] for each in json.loads(operator("task", "list", *args, "--json").stdout)["tasks"]
    ]


def test_tasks_are_listed_by_what_they_are(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    bad, good = mail.enqueue("bad"), mail.using(tenant="acme").enqueue("ann")
    work_off()
    later = mail.using(delay=600).enqueue("bob")
    assert set(ids(operator)) == {bad.id, good.id, later.id}
    assert ids(operator, "--state", "dead") == [bad.id]
    assert ids(operator, "--tenant", "acme") == [good.id]
    assert ids(operator, "--error", "ValueError: no mailbox") == [bad.id]
    assert ids(operator, "--error", "exhausted") == [bad.id]
    assert set(ids(operator, "--name", "shop.*", "--since", "1h")) == {bad.id, good.id, later.id}
    assert ids(operator, "--until", "1h") == []
    assert len(ids(operator, "--limit", "2")) == 2
    answer = operator("task", "list", "--state", "dead")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "ValueError: no mailbox 'bad'" in answer.stdout


def test_a_listing_says_that_there_is_more(mail: Any, operator: Operator) -> None:
    for number in range(3):
        mail.enqueue(f"{number}")
    answer = operator("task", "list", "--limit", "2")
    assert len(answer.stdout.splitlines()) == 3
    assert "more than 2" in answer.stderr


def test_payloads_are_shown_only_if_asked_for(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    handle = mail.enqueue("ann", secret="swordfish")
    work_off()
    for args in (("list",), ("list", "--json"), ("show", handle.id), ("show", handle.id, "--json")):
        assert "swordfish" not in operator("task", *args).stdout
    answer = operator("task", "show", handle.id, "--payload")
    assert 'kwargs        {"secret": "swordfish"}' in answer.stdout
    report = json.loads(operator("task", "show", handle.id, "--payload", "--json").stdout)
    assert (report["args"], report["result"]) == (["ann"], "ann")


def test_where_nothing_matches_a_name_may_be_nearly_right(mail: Any, operator: Operator) -> None:
    mail.enqueue("ann")
    answer = operator("task", "list", "--queue", "mial")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "there is no queue 'mial'; did you mean mail?\n"
    assert "not known to any worker" in operator("task", "list", "--name", "shop.mial").stderr
    assert operator("task", "list", "--state", "dead").stderr == "no task matches\n"


@pytest.mark.parametrize("value", ["yesterday", "2 hours"])
def test_a_wrong_moment_is_named(app: Fairlead, operator: Operator, value: str) -> None:
    answer = operator("task", "list", "--since", value)
    assert answer.returncode == 2
    assert value in answer.stderr


def test_named_tasks_are_retried_cancelled_and_deleted(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    bad = mail.enqueue("bad")
    work_off()
    assert operator("task", "retry", bad.id).stdout == f"{bad.id}  retried\n"
    assert bad.state == "queued"
    assert operator("task", "cancel", bad.id).stdout == f"{bad.id}  cancelled\n"
    chosen = mail.using(id="order-7", tenant="acme").enqueue("ann")
    assert operator("task", "cancel", "order-7", "--tenant", "acme").returncode == 0
    assert chosen.state == "cancelled"
    assert operator("task", "delete", bad.id).stdout == f"{bad.id}  deleted\n"
    assert operator("task", "show", bad.id).returncode == 1


def test_a_task_that_is_unknown_or_in_another_state_is_said_so(
    mail: Any, operator: Operator
) -> None:
    waits = mail.enqueue("ann")
    answer = operator("task", "retry", waits.id, "order-8")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert f"task {waits.id!r} is queued: only dead tasks can be retried" in answer.stderr
    assert "task 'order-8' is not known (next: fairlead task list)" in answer.stderr
    report = json.loads(operator("task", "cancel", waits.id, "order-8", "--json").stdout)
    assert report["tasks"] == {waits.id: "done", "order-8": "unknown"}
    assert report["changed"] == 1


def test_all_that_match_are_counted_and_agreed_to_first(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    for number in range(120):
        mail.using(tenant="acme" if number % 2 else "bolt").enqueue(f"bad-{number}")
    work_off()
    args = ("task", "retry", "--all-matching", "--tenant", "acme")
    answer = operator(*args)
    assert answer.returncode == 2
    assert "60 tasks would be retried" in answer.stderr
    assert "--yes" in answer.stderr
    answer = operator(*args, "--dry-run")
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 10
    assert answer.stderr == "60 tasks would be retried, the first 10 of them above\n"
    assert len(ids(operator, "--state", "dead", "--limit", "500")) == 120
    answer = operator(*args, "--yes")
    assert (answer.returncode, answer.stderr) == (0, "60 tasks were retried\n")
    assert len(ids(operator, "--state", "dead", "--limit", "500")) == 60
    report = json.loads(
        operator("task", "delete", "--all-matching", "--state", "dead", "--yes", "--json").stdout
    )
    assert (report["matched"], report["changed"], report["finished"]) == (60, 60, True)


class Terminal(io.StringIO):
    """Somebody at a keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("said", "code", "state"), [("n\n", 1, "queued"), ("y\n", 0, "cancelled")])
def test_somebody_at_a_terminal_is_asked(
    mail: Any,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    code: int,
    state: str,
) -> None:
    handle = mail.enqueue("ann")
    monkeypatch.setattr("sys.stdin", Terminal(said))
    answer = operator("task", "cancel", "--all-matching", "--queue", "mail")
    assert (answer.returncode, answer.stdout) == (code, "")
    assert "1 task would be cancelled. Go on? [y/N]" in answer.stderr
    assert ("nothing was changed" in answer.stderr) is (code == 1)
    assert handle.state == state


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("retry",), "--all-matching"),
        (("retry", "01f3", "--all-matching"), "which?"),
        (("retry", "01f3", "--queue", "mail"), "filters go with --all-matching"),
        (("retry", "01f3", "--dry-run"), "--dry-run goes with --all-matching"),
        (("retry", "--all-matching", "--state", "queued"), "for tasks that are dead"),
        (("cancel", "--all-matching", "--state", "deed"), "deed"),
    ],
)
def test_wrong_usage_says_what_is_right(
    app: Fairlead, operator: Operator, args: tuple[str, ...], words: str
) -> None:
    answer = operator("task", *args)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert words in answer.stderr


def test_what_operators_do_is_in_the_audit_trail(
    app: Fairlead, mail: Any, operator: Operator
) -> None:
    mail.enqueue("ann")
    operator("queue", "pause", "mail")
    operator("task", "cancel", "--all-matching", "--queue", "mail", "--yes")
    notes = app._clients.sync(lambda client: client.store.notes("audit"))
    lines = [json.loads(each.value) for each in notes]
    assert [(line["action"], line["target"], line["peer"]) for line in lines] == [
        ("tasks.cancel", "*", "cli"),
        ("queue.configure", "mail", "cli"),
    ]
    assert lines[0]["details"] == {"changed": 1, "queue": "mail"}
