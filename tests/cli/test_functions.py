"""``fairlead functions``: libraries are listed, loaded ahead and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cli.main import cli, run
from tests.support.servers import Running, server

OLD = "fairlead_find_0123456789abcdef"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server() as made:
        yield made


@pytest.fixture(autouse=True)
def _empty(running: Running) -> None:
    running.admin("CONFIG", "SET", "maxmemory", 0)
    running.admin("FUNCTION", "FLUSH")
    source = f"#!lua name={OLD}\nredis.register_function('f', function() return 1 end)"
    running.admin("FUNCTION", "LOAD", source)


def asked(
    running: Running, *args: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    code = run(cli, ["functions", *args, "--url", running.url, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def test_what_is_missing_can_be_loaded_ahead(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    code, before = asked(running, "list", capsys=capsys)
    others = [each for each in before["libraries"] if not each["current"]]
    assert (code, others) == (1, [{"name": OLD, "functions": 1, "current": False}])

    code, done = asked(running, "load", capsys=capsys)
    assert (code, done["loaded"]) == (0, before["missing"])
    assert len(done["loaded"]) > 5

    code, after = asked(running, "list", capsys=capsys)
    assert (code, after["missing"]) == (0, [])
    there = {each["name"] for each in (*before["libraries"], *after["libraries"])}
    assert {each["name"] for each in after["libraries"]} == there >= {OLD, *done["loaded"]}


def test_libraries_of_other_releases_go_only_when_that_is_confirmed(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(running, "prune", capsys=capsys) == (0, {"libraries": [OLD], "deleted": False})
    assert len(running.admin("FUNCTION", "LIST", "LIBRARYNAME", OLD)) == 1
    code = run(cli, ["functions", "prune", "--yes", "--url", running.url])
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (0, f"{OLD}\n", "deleted 1 libraries\n")
    assert running.admin("FUNCTION", "LIST", "LIBRARYNAME", OLD) == []


def test_a_full_server_says_that_it_is_full(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    running.admin("CONFIG", "SET", "maxmemory", 1)
    code = run(cli, ["functions", "load", "--url", running.url])
    assert code == 1
    assert "out of memory" in capsys.readouterr().err
    assert asked(running, "list", capsys=capsys)[0] == 1
