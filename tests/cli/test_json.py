"""``--json``: every command that reads has it, prints one object, and no warning of the broker's.

The server here keeps no append-only file, which is a warning in the log of every program.
"""

from __future__ import annotations

import json

import click
import pytest

from fairlead import Fairlead
from fairlead.cli.main import cli
from tests.cli.conftest import Operator
from tests.cli.test_main import PATHS

READS = [
    "task list", "task types", "dlq list", "queue list", "queue show mail", "tenant list",
    "tenant show default", "limiter list", "workers list", "schedule list", "history", "stats",
    "functions list", "migrate", "token list", "doctor", "config", "top --interval 0.2",
    "task show ID", "task explain ID", "task history ID",
]  # fmt: skip

# What runs until it is stopped, changes something and says so, prints for a shell, or hands on
# its options.
SILENT = {
    "up", "worker", "api", "manager", "init", "completion", "db", "flow", "schedule", "limiter",
    "tenant", "queue", "spool", "bench",
}  # fmt: skip


def test_every_command_that_reads_has_it() -> None:
    for path in PATHS:
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), name) or command
        reads = path[-1] in ("list", "show", "explain", "history", "next", "status", "types")
        if isinstance(command, click.Group) or not (reads or path[0] not in SILENT):
            continue
        names = {name for each in command.params for name in each.opts}
        assert "--json" in names, path


@pytest.mark.parametrize("words", READS)
def test_it_is_one_object_and_no_warning(
    words: str, app: Fairlead, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    handle = app.registered("shop.mail").enqueue("ann")
    caplog.clear()  # the app may warn
    answer = operator(*words.replace("ID", handle.id).split(), "--json")
    assert answer.returncode in (0, 1), answer.stderr
    assert isinstance(json.loads(answer.stdout), dict)
    assert [each for each in caplog.records if each.name.startswith("fairlead")] == []
