"""Which broker a command talks to where nobody names one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead import Fairlead
from tests.cli.running import answered


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRLEAD_URL", "FAIRLEAD_REQUIRE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_the_server_of_an_app_in_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Fairlead("embedded://") as app:

        @app.task(name="work")
        async def work() -> None: ...

        work.enqueue()
        report = json.loads(answered("queue", "list", "--json").stdout)
    assert report["queues"]["default"]["ready"] == 1


def test_without_one_the_next_step_and_the_place_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = answered("queue", "list")
    assert (answer.returncode, answer.stdout) == (2, "")
    for words in ("which broker?", "--url redis://HOST", "FAIRLEAD_URL", str(tmp_path)):
        assert words in answer.stderr
    assert not (tmp_path / ".fairlead").exists()  # a command starts none


def test_where_a_url_is_required_none_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".fairlead" / "valkey").mkdir(parents=True)
    monkeypatch.setenv("FAIRLEAD_REQUIRE_URL", "1")
    assert answered("queue", "list").returncode == 2
