"""How an app gets its ledger: by argument, environment or file; one for each loop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import fairlead
from fairlead import Fairlead, InvalidInput, InvalidOption
from fairlead.cli.main import cli, run
from fairlead.ledger.migrator import migrations
from fairlead.model import ledger_errors
from tests.support.postgres import Postgres

NAMES = [f"{each.number:04d}_{each.name}" for each in migrations()]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEAD_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_ledger_is_the_arguments_the_environments_or_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def url(**options: str) -> str | None:
        return Fairlead("memory://", **options)._clients.ledger_url  # type: ignore[arg-type]

    assert url() is None
    Path("fairlead.toml").write_text('ledger = "postgresql://file/x"\n')
    assert url() == "postgresql://file/x"
    monkeypatch.setenv("FAIRLEAD_LEDGER", "postgresql://environment/x")
    assert url() == "postgresql://environment/x"
    assert url(ledger="embedded://") == "embedded://"
    with pytest.raises(InvalidOption, match="ledger="):
        url(ledger="mysql://host")
    Path("fairlead.toml").write_text("ledger = 5\n")
    monkeypatch.delenv("FAIRLEAD_LEDGER")
    with pytest.raises(InvalidInput, match='like ledger = "postgresql://host/database"'):
        url()


def test_the_errors_of_the_ledger_are_offered() -> None:
    for name, kind in vars(ledger_errors).items():
        if isinstance(kind, type) and kind.__module__ == ledger_errors.__name__:
            assert name in fairlead.__all__
            assert issubclass(kind, fairlead.FairleadError)


async def test_an_app_without_a_ledger_says_how_to_get_one() -> None:
    async with Fairlead("memory://") as app:
        with pytest.raises(InvalidInput, match="FAIRLEAD_LEDGER"):
            _ = app._clients.ledger
        with pytest.raises(InvalidInput, match="FAIRLEAD_LEDGER"):
            app.manager()


async def test_an_app_runs_a_manager_of_its_own(ledger_dsn: str) -> None:
    async with Fairlead("memory://", ledger=ledger_dsn) as app:
        double = app.task(name="double")(lambda number: 2 * number)
        with pytest.raises(InvalidOption, match="keep"):
            app.manager(keep=1)
        async with app.manager(keep="7d") as manager, app.worker(), asyncio.timeout(30):
            with psycopg.connect(ledger_dsn) as connection:
                handle = double.using(tx=connection).enqueue(4)
            assert await handle.aresult() == 8
            assert manager.term is not None
        assert manager.term is None  # it has given the leadership back


async def test_each_loop_has_its_own_and_it_closes_with_the_app(ledger_dsn: str) -> None:
    app = Fairlead("memory://", ledger=ledger_dsn)
    ledger = app._clients.ledger
    assert app._clients.ledger is ledger
    assert (await ledger.leadership()).term == 0

    async def elsewhere() -> int:
        other = app._clients.ledger
        assert other is not ledger
        try:
            return (await other.leadership()).term
        finally:
            await other.close()

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == 0
    assert (await ledger.leadership()).term == 0
    await app.aclose()
    assert ledger._pool is None


def test_fairlead_is_imported_without_psycopg() -> None:
    code = "import sys, fairlead; sys.exit('psycopg' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_psycopg_the_error_says_how_to_get_it() -> None:
    code = """
import asyncio, sys
sys.modules["psycopg"] = None
from fairlead import Fairlead, InvalidOption
async def main():
    app = Fairlead("memory://", ledger="postgresql://host/x")
    try:
        await app._clients.ledger.open()
    except InvalidOption as error:
        assert "fairlead[postgres]" in str(error), error
    else:
        raise AssertionError
    await app.aclose()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_command_migrates_and_shows(
    postgres: Postgres, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.database("template0") as dsn:
        monkeypatch.setenv("FAIRLEAD_LEDGER", dsn)
        assert run(cli, ["db", "status"]) == 1
        assert capsys.readouterr().out == "".join(f"{name}  pending\n" for name in NAMES)
        assert run(cli, ["db", "migrate"]) == 0
        assert capsys.readouterr().out == "".join(f"applied {name}\n" for name in NAMES)
        monkeypatch.delenv("FAIRLEAD_LEDGER")
        assert run(cli, ["db", "migrate", "--ledger", dsn]) == 0
        assert capsys.readouterr() == ("", "nothing to do: the schema is up to date\n")
        assert run(cli, ["db", "status", "--json", "--ledger", dsn]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == {"applied": NAMES, "pending": [], "unknown": [], "usable": True}


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["db", "status"]) == 2
    assert "which ledger?" in capsys.readouterr().err
    assert run(cli, ["db", "migrate", "--ledger", "postgresql://u:secret@127.0.0.1:1/x"]) == 3
    said = capsys.readouterr().err
    assert "127.0.0.1:1/x cannot be reached" in said
    assert "secret" not in said
