"""``fairlead tenant``: what tenants have and get, and what is set for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fairlead import Fairlead
from tests.cli.conftest import Operator


def test_without_work_there_is_nobody_to_list(app: Fairlead, operator: Operator) -> None:
    answer = operator("tenant", "list")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "no tenant has work" in answer.stderr


def test_tenants_are_listed_with_their_shares(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    for tenant, count in (("acme", 3), ("bolt", 1)):
        for number in range(count):
            mail.using(tenant=tenant).enqueue(f"{number}")
    work_off()
    mail.using(tenant="bolt").enqueue("waits")
    answer = operator("tenant", "list")
    assert (answer.returncode, answer.stderr) == (0, "")
    _, bolt, acme = (line.split() for line in answer.stdout.splitlines())
    assert bolt[:7] == ["bolt", "1", "1", "0", "1", "25.0%", "50.0%"]
    assert acme[:7] == ["acme", "1", "0", "0", "3", "75.0%", "50.0%"]
    report = json.loads(operator("tenant", "list", "--queue", "mail", "--json").stdout)
    assert [each["tenant"] for each in report["tenants"]] == ["bolt", "acme"]
    assert operator("tenant", "list", "--queue", "mial").returncode == 2


def test_what_is_set_for_a_tenant_is_shown(mail: Any, operator: Operator) -> None:
    mail.using(tenant="acme").enqueue("ann")
    assert operator("tenant", "weight", "acme", "3").stderr == "tenant acme has weight 3\n"
    assert operator("tenant", "limit", "acme", "--rate", "60/m", "--queue", "mail").returncode == 0
    assert operator("tenant", "limit", "acme", "--concurrency", "2").returncode == 0
    answer = operator("tenant", "show", "acme")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "in queue mail: rate 1.0" in answer.stdout
    report = json.loads(operator("tenant", "show", "acme", "--json").stdout)
    assert report["settings"] == {"": {"weight": 3.0, "concurrency": 2}, "mail": {"rate": 1.0}}
    assert report["queues"]["mail"]["counts"]["ready"] == 1


def test_a_paused_tenant_starts_nothing_until_it_is_resumed(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    mail.using(tenant="acme").enqueue("ann")
    assert operator("tenant", "pause", "acme").returncode == 0
    assert work_off() == 0
    assert "paused" in operator("tenant", "list").stdout
    assert operator("tenant", "resume", "acme").returncode == 0
    assert work_off() == 1


def test_a_tenant_whose_work_has_ended_is_known(
    mail: Any, operator: Operator, work_off: Callable[[], int]
) -> None:
    mail.using(tenant="acme").enqueue("ann")
    work_off()
    assert operator("tenant", "weight", "acme", "2").stderr == "tenant acme has weight 2\n"


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    mail: Any, operator: Operator
) -> None:
    mail.using(tenant="acme").enqueue("ann")
    for args in (("weight", "acmee", "3"), ("pause", "acmee"), ("show", "acmee")):
        answer = operator("tenant", *args)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert "did you mean acme?" in answer.stderr
    answer = operator("tenant", "weight", "northwind", "3")
    assert answer.returncode == 0
    assert "tenant 'northwind' is new" in answer.stderr


def test_a_weight_out_of_bounds_is_named(app: Fairlead, operator: Operator) -> None:
    answer = operator("tenant", "weight", "acme", "0")
    assert answer.returncode == 2
    assert "0" in answer.stderr
