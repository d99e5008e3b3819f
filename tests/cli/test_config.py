"""``fairlead config``: every setting, and who says so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.common.exit_codes import FAILURE, OK
from fairlead.cli.main import cli, run

FILE = """
url = "redis://user:hunter2@file:1/3"
fallback = "local"
local_queues = ["mail"]
[spool]
max_bytes = "1GiB"
max_age = "2h"
"""


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("FAIRLEAD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], code: int = OK) -> Any:
    assert run(cli, ["config", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_each_value_is_shown_with_its_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fairlead.toml").write_text(FILE)
    monkeypatch.setenv("FAIRLEAD_SPOOL", "/var/spool/here")
    monkeypatch.setenv("FAIRLEAD_SPOOL_MAX_AGE", "90s")
    found = printed(capsys)
    file = str(Path("fairlead.toml").absolute())
    said = {name: (row["value"], row["source"]) for name, row in found["settings"].items()}
    said = {name: row for name, row in said.items() if not name.startswith(("worker.", "api."))}
    assert said == {
        "url": ("redis://file:1/3", file),
        "ledger": (None, "default"),
        "namespace": (None, "default"),
        "timeout": (10.0, "default"),
        "routes": ({}, "default"),
        "shards": ({}, "default"),
        "require_url": (False, "default"),
        "fallback": ("local", file),
        "local_queues": (["mail"], file),
        "local_concurrency": (4, "default"),
        "spool.directory": ("/var/spool/here", "FAIRLEAD_SPOOL"),
        "spool.max_bytes": (1024**3, file),
        "spool.max_count": (1_000_000, "default"),
        "spool.max_age": (90.0, "FAIRLEAD_SPOOL_MAX_AGE"),
    }
    assert found["settings"]["spool.directory"]["variable"] == "FAIRLEAD_SPOOL"
    assert (found["errors"], found["variables"]) == ([], {})


def test_no_password_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "redis://user:hunter2@host?timeout=3s")
    monkeypatch.setenv("FAIRLEAD_LEDGER", "postgresql://user:hunter2@host/shop")
    monkeypatch.setenv("FAIRLEAD_ROUTES", "queue:a=redis://user:hunter2@bulk")
    assert run(cli, ["config"]) == OK
    shown = capsys.readouterr()
    assert "hunter2" not in shown.out + shown.err
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in shown.out.splitlines()}
    assert lines["ledger"].split() == ["host/shop", "FAIRLEAD_LEDGER"]
    assert lines["timeout"].split(maxsplit=1) == ["3", "FAIRLEAD_URL, ?timeout= of the URL"]
    assert lines["routes"].split() == ["queue:a=redis://…", "FAIRLEAD_ROUTES"]
    assert lines["require_url"].split() == ["no", "default"]


def test_all_that_is_wrong_is_told_at_once_and_the_rest_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fairlead.toml").write_text('falback = "spool"\n[spool]\nmax_byte = 5\nmax_age = "soon"\n')
    monkeypatch.setenv("FAIRLEAD_TIMEOUT", "later")
    monkeypatch.setenv("FAIRLEAD_SPOOL_MAX_CUONT", "5")
    found = printed(capsys, FAILURE)
    texts = " ".join(found["errors"])
    for words in (
        "FAIRLEAD_TIMEOUT is 'later'",
        "has 'soon' as spool.max_age",
        "the key 'falback', which Fairlead does not know; did you mean fallback?",
        "the key 'max_byte' in [spool], which Fairlead does not know; did you mean max_bytes?",
    ):
        assert words in texts
    assert found["variables"] == {"FAIRLEAD_SPOOL_MAX_CUONT": "FAIRLEAD_SPOOL_MAX_COUNT"}
    assert found["settings"]["spool.max_bytes"]["value"] == 256 * 1024**2
    assert "timeout" not in found["settings"]
    Path("fairlead.toml").write_text("spool = 5")
    assert "has no table as spool" in " ".join(printed(capsys, FAILURE)["errors"])
    assert run(cli, ["config"]) == FAILURE
    assert "warning: FAIRLEAD_SPOOL_MAX_CUONT is set" in capsys.readouterr().err


def test_one_setting_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["config", "spool.max_count"]) == OK
    assert capsys.readouterr().out.split() == ["spool.max_count", "1000000", "default"]
    assert run(cli, ["config", "falback"]) == 2
    assert "there is no setting 'falback'; did you mean fallback?" in capsys.readouterr().err
