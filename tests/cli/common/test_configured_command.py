"""Options of the worker and the API in the environment and the file; who goes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.api import api
from fairlead.cli.common.configured_command import ConfiguredCommand
from fairlead.cli.worker import worker
from fairlead.settings.keys import COMMAND_TABLES
from tests.cli.running import answered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str) -> None:
    Path("fairlead.toml").write_text(text)


def shown(**environment: str) -> dict[str, Any]:
    answer = answered("config", "--json", **environment)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def parsed(*args: str) -> dict[str, Any]:
    """The options of a worker, as its command takes them from all sources."""
    return worker.make_context("worker", ["shop:app", *args]).params


def test_the_command_line_goes_before_the_variable_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parsed()["concurrency"] == 10
    write("[worker]\nconcurrency = 20\nlog_tasks = true\n")
    assert (parsed()["concurrency"], parsed()["log_tasks"]) == (20, True)
    monkeypatch.setenv("FAIRLEAD_WORKER_CONCURRENCY", "30")
    assert parsed()["concurrency"] == 30
    assert parsed("-c", "40")["concurrency"] == 40
    monkeypatch.setenv("FAIRLEAD_WORKER_CONCURRENCY", "")  # says nothing
    assert parsed()["concurrency"] == 20


def test_config_shows_each_with_its_source() -> None:
    write('[worker]\nmax_rss = "512MB"\n[api]\nallow_host = ["a.example", "b.example"]\n')
    found = shown(FAIRLEAD_WORKER_GRACE="7", FAIRLEAD_HTTP_PORT="9000")
    assert found["errors"] == []
    file = str(Path("fairlead.toml").absolute())
    said = {name: (row["value"], row["source"]) for name, row in found["settings"].items()}
    assert said["worker.grace"] == (7.0, "FAIRLEAD_WORKER_GRACE")
    assert said["worker.max_rss"] == ("512MB", file)
    assert said["worker.queues"] == (None, "default")
    assert said["api.port"] == (9000, "FAIRLEAD_HTTP_PORT")
    assert said["api.allow_host"] == (["a.example", "b.example"], file)
    assert said["api.redact"] == ([], "default")
    one = answered("config", "worker.grace")
    assert one.stdout.split() == ["worker.grace", "30", "default"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[worker]\nconcurency = 2\n", "did you mean concurrency?"),
        ("[worker]\nnonsense = 2\n", "it may have concurrency, "),
        ("[worker]\nlog_tasks = 'yes'\n", "write true or false"),
        ("[api]\nallow_host = 'one'\n", "no list of texts as allow_host"),
        ("worker = 5\n", "has no table as worker; write [worker]"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(text: str, words: str) -> None:
    write(text)
    assert words in " ".join(shown()["errors"])


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("[worker]\nconcurrency = 0\n", {}, "(in [worker] of '"),
        ("", {"FAIRLEAD_WORKER_GRACE": "soon"}, "(in FAIRLEAD_WORKER_GRACE)"),
    ],
)
def test_a_wrong_value_keeps_the_worker_from_starting_and_its_source_is_named(
    text: str, environment: dict[str, str], words: str
) -> None:
    write(text)
    answer = answered("worker", "shop:app", **environment)
    assert answer.returncode == 2
    assert words in answer.stderr


@pytest.mark.parametrize(
    ("command", "table", "variable"),
    [("worker", "[worker]", "FAIRLEAD_WORKER_QUEUES="), ("api", "[api]", "FAIRLEAD_HTTP_HOST=")],
)
def test_the_help_says_where_else_options_may_stand(
    command: str, table: str, variable: str
) -> None:
    told = " ".join(answered(command, "--help").stdout.split())
    assert f"may also stand in {table} of fairlead.toml" in told
    assert variable in told


def test_a_wrong_file_does_not_keep_the_help_from_helping() -> None:
    write("[worker]\nnonsense = 2\n")
    assert answered("worker", "--help").returncode == 0


def test_names_that_kubernetes_sets_are_no_options() -> None:
    found = shown(FAIRLEAD_API_PORT="tcp://10.0.0.1:8800", FAIRLEAD_WORKER_PORT="tcp://10.0.0.1:1")
    assert (found["errors"], found["variables"]) == ([], {})
    assert found["settings"]["api.port"]["value"] == 8800


def test_tables_and_variables_are_those_that_the_settings_know() -> None:
    commands = (api, worker)
    assert all(isinstance(each, ConfiguredCommand) for each in commands)
    assert {each.table: f"{each.prefix}_" for each in commands} == COMMAND_TABLES
