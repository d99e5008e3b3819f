"""``fairlead schedule``: its commands, what they print, and their exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, State
from fairlead.cli.main import cli, run
from tests.cli.running import fairlead
from tests.support.servers import Running, server

APP = """
import os

from fairlead import Fairlead

app = Fairlead(os.environ["TEST_URL"])
memory = Fairlead("memory://")


@app.task(name="jobs.report")
def report(region: str = "all", *, top: int = 3) -> None: ...
"""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server(aof=True) as running:
        yield running


@pytest.fixture
def url(valkey: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty server, as FAIRLEAD_URL says, and an app in the working directory."""
    valkey.admin("FLUSHALL")
    (tmp_path / "cli_jobs.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_jobs", raising=False)  # of a server that may be gone
    monkeypatch.setenv("TEST_URL", valkey.url)
    monkeypatch.setenv("FAIRLEAD_URL", valkey.url)
    return valkey.url


def schedule(*args: str) -> int:
    return run(cli, ["schedule", *args])


def create(*args: str) -> int:
    return schedule("create", "cli_jobs:app", *args)


@pytest.fixture
def nightly(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A schedule, by its name."""
    assert (
        create(
            *("nightly", "jobs.report", "--cron", "30 2 * * *", "--tz", "Europe/Berlin"),
            *("--args", '["eu"]', "--kwargs", '{"top": 5}', "--tenant", "acme"),
            *("--missed", "all", "--max-missed", "7"),
        )
        == 0
    )
    said = capsys.readouterr().out
    assert said.startswith("nightly  next 20")
    assert "02:30:00+0" in said
    return "nightly"


def test_create_and_show_and_list(nightly: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule("show", nightly) == 0
    text = capsys.readouterr().out
    for part in (
        "30 2 * * * Europe/Berlin",
        "all, 7 at most",
        "forward: after; back: first",
        "jobs.report in queue default, tenant acme",
        "'eu', top=5",
        "active",
        "hand",
    ):
        assert part in text
    assert schedule("show", nightly, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["timing"]["expression"]) == ("nightly", "30 2 * * *")
    assert (shown["args"], shown["kwargs"], shown["paused"]) == (["eu"], {"top": 5}, False)

    assert create("poll", "jobs.report", "--every", "5m", "--json") == 0
    assert json.loads(capsys.readouterr().out)["timing"]["every"] == 300
    assert schedule("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "nightly", "poll"]
    assert schedule("list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["schedules"]
    assert [each["name"] for each in found] == ["nightly", "poll"]


def test_an_empty_list_is_said_on_stderr(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule("list") == 0
    assert capsys.readouterr() == ("", "there are no schedules\n")


def test_pause_and_resume_and_delete(nightly: str, capsys: pytest.CaptureFixture[str]) -> None:
    create("poll", "jobs.report", "--every", "5m")
    assert schedule("pause", nightly, "poll") == 0
    capsys.readouterr()
    schedule("list")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 2
    assert all(line.endswith("paused") for line in lines)
    assert schedule("resume", nightly) == 0
    schedule("show", nightly)
    assert "active" in capsys.readouterr().out
    assert schedule("delete", nightly, "poll") == 0
    assert schedule("show", nightly) == 2
    assert "there is no schedule 'nightly' (next: look for its name" in capsys.readouterr().err


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    nightly: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["show", "nightl"], ["next", "nightl"], ["change", "nightl", "--every", "5m"]):
        assert schedule(*command) == 2
        assert "no schedule 'nightl'; did you mean nightly? (next: " in capsys.readouterr().err
    assert schedule("pause", "nightl") == 1
    assert "no schedule 'nightl'; did you mean nightly?\n" in capsys.readouterr().err


def test_an_unknown_name_does_not_keep_the_others_from_being_done(
    nightly: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, done in (("pause", "paused"), ("resume", "resumed"), ("delete", "deleted")):
        assert schedule(command, "ghost", nightly, "no way") == 1
        out, err = capsys.readouterr()
        assert out == f"nightly  {done}\n"
        assert err.splitlines()[0] == "error: there is no schedule 'ghost'"
        assert len(err.splitlines()) == 2
    assert schedule("list") == 0
    assert "there are no schedules" in capsys.readouterr().err


def test_change(nightly: str, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> Any:
        assert schedule("show", nightly, "--json") == 0
        return json.loads(capsys.readouterr().out)

    assert schedule("change", nightly, "--cron", "30 4 * * *") == 0
    said = capsys.readouterr().out
    assert said.startswith("nightly  next 20")
    assert "04:30:00+0" in said
    after = shown()
    assert (after["timing"]["expression"], after["timing"]["tz"]) == ("30 4 * * *", "Europe/Berlin")
    assert (after["timing"]["missed"], after["args"], after["kwargs"]) == (
        "all",
        ["eu"],
        {"top": 5},
    )

    assert schedule("change", nightly, "--args", '["us"]', "--queue", "slow", "--json") == 0
    after = json.loads(capsys.readouterr().out)
    assert (after["args"], after["kwargs"], after["queue"]) == (["us"], {"top": 5}, "slow")
    assert (after["tenant"], after["timing"]["expression"]) == ("acme", "30 4 * * *")

    more = ("--kwargs", "{}", "--tenant", "other", "--priority", "low", "--every", "5m")
    assert schedule("change", nightly, *more) == 0
    capsys.readouterr()
    after = shown()
    assert (after["args"], after["kwargs"], after["tenant"]) == (["us"], {}, "other")
    assert (after["timing"]["kind"], after["task"]) == ("interval", "jobs.report")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nightly",), "nothing to change was named"),
        (("ghost", "--every", "5m"), "there is no schedule 'ghost'"),
        (("nightly", "--cron", "61 * * * *"), "field 1 (minute)"),
        (("nightly", "--at", "2001-01-01T00:00Z"), "lies in the past"),
        (("nightly", "--args", "{}"), "--args '{}' is not a list"),
        (("nightly", "--queue", "no way"), "no way"),
        (("nightly", "--tenant", ""), "tenant '' is not valid"),
        (("nightly", "--priority", "odd"), "odd"),
    ],
)
def test_a_change_that_is_refused(
    nightly: str, args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule("show", nightly, "--json")
    before = capsys.readouterr().out
    assert schedule("change", *args) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    schedule("show", nightly, "--json")
    assert capsys.readouterr().out == before


def test_next_and_run(nightly: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule("next", nightly, "-n", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(" 02:30:00+0" in line for line in lines)
    assert schedule("next", nightly, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["next"]) == 5
    assert schedule("run", nightly) == 0
    id = capsys.readouterr().out.strip()
    with Fairlead(url) as app:
        assert app.handle(id, "acme").state is State.QUEUED
    assert schedule("run", nightly, "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] != id


def test_create_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert create("sale", "jobs.report", "--at", "2099-01-01T00:00+01:00") == 0
    assert capsys.readouterr().out == "sale  next 2098-12-31 23:00:00+00:00\n"
    assert create("sale2", "jobs.report", "--at", "4070905200") == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("x", "jobs.report", "--cron", "61 * * * *"), 2, "field 1 (minute) has '61' at column 1"),
        (("x", "jobs.report"), 2, "one of cron, every and at"),
        (("x", "jobs.report", "--every", "5m", "--args", "{}"), 2, "--args '{}' is not a list"),
        (("x", "jobs.report", "--every", "5m", "--args", "["), 2, "is not JSON"),
        (("x", "jobs.report", "--every", "5m", "--args", "[1, 2, 3]"), 2, "too many"),
        (("x", "jobs.report", "--at", "tomorrow"), 2, "--at 'tomorrow' is no moment"),
        (("x", "jobs.report", "--at", "2099-01-01T00:00"), 2, "tz="),
        (("x", "jobs.report", "--at", "2001-01-01T00:00Z"), 2, "lies in the past"),
        (("x", "jobs.reprot", "--every", "5m"), 2, "did you mean jobs.report"),
        (("no way", "jobs.report", "--every", "5m"), 2, "schedule 'no way' is not valid"),
        (("nightly", "jobs.report", "--every", "5m"), 1, "exists already"),
    ],
)
def test_what_is_refused(
    nightly: str, args: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert create(*args) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_app_in_memory_has_no_schedules_for_others(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schedule("create", "cli_jobs:memory", "x", "jobs.report", "--every", "5m") == 2
    assert "lives in memory" in capsys.readouterr().err


def test_a_process_of_its_own(nightly: str, url: str) -> None:
    answer = fairlead("schedule", "list", "--url", url, FAIRLEAD_URL="")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "nightly" in answer.stdout
    answer = fairlead("schedule", "list", FAIRLEAD_URL="redis://127.0.0.1:1?timeout=1s")
    assert answer.returncode == 3


@pytest.mark.parametrize(
    "command", ["list", "show", "create", "change", "pause", "resume", "delete", "run", "next"]
)
def test_every_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule(command, "--help") == 0
    assert "Examples:" in capsys.readouterr().out
