"""``fairlead manager``: a process that sends, and what it says of itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.broker import connect
from fairlead.cli.main import cli
from fairlead.ledger.ledger import Ledger
from tests.cli.running import fairlead
from tests.manager.bench import Bench, until
from tests.manager.process import ManagerProcess
from tests.support.servers import shared


async def test_a_manager_leads_sends_and_stops(
    ledger: Ledger, ledger_dsn: str, tmp_path: Path
) -> None:
    runner = CliRunner()
    ask = ["manager", "status", "--ledger", ledger_dsn]
    told_to = f"\0fairlead-{tmp_path.name}-{os.getpid()}"
    systemd = {"NOTIFY_SOCKET": told_to.replace("\0", "@")}
    with (
        shared() as valkey,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
        ManagerProcess(tmp_path, valkey.url, ledger_dsn, environment=systemd) as manager,
    ):
        heard.bind(told_to)
        heard.settimeout(40.0)
        store = connect(valkey.url)
        bench = Bench(store, ledger, ledger_dsn)
        await bench.add(count=5)
        assert await asyncio.to_thread(heard.recv, 99) == b"READY=1"

        async def sent() -> bool:
            return await bench.states() == {"queued": 5}

        await until(sent, 40.0)

        async def shown() -> bool:
            row = (await ledger.status()).get("dispatcher")
            return row is not None and bool(row.counts["pushed"])

        await until(shown)
        told = await asyncio.to_thread(runner.invoke, cli, [*ask, "--json"], standalone_mode=False)
        assert told.return_value == 0, told.output
        found = json.loads(told.stdout)
        assert found["leads"].split(":")[1] == str(manager.pid)
        assert (found["due"], found["claimed"], found["lag"]) == (0, 0, 0)
        assert found["roles"]["dispatcher"]["pushed"] == 5
        assert {"leader", "recorder", "janitor", "auditor"} <= found["roles"].keys()
        text = await asyncio.to_thread(runner.invoke, cli, ask, standalone_mode=False)
        assert "leads, since" in text.stdout
        manager.signal(signal.SIGTERM)
        assert await asyncio.to_thread(manager.wait) == 0
        assert heard.recv(99) == b"STOPPING=1"
        assert manager.log("manager stopped")
        assert "postgres" not in json.dumps(manager.log("leads"))
        await store.close()


def test_without_a_manager_the_status_says_so(ledger_dsn: str) -> None:
    ask = ["manager", "status", "--ledger", ledger_dsn]
    told = CliRunner().invoke(cli, ask, standalone_mode=False)
    assert told.return_value == 1
    assert "no manager leads" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["shop:app", "--url", "redis://nowhere"], "APP says which"),
        (["--keep", "5"], "--keep"),
        (["--url", "memory://"], "memory://"),
    ],
)
def test_wrong_usage_is_said_in_a_line(arguments: list[str], what: str) -> None:
    told = CliRunner().invoke(cli, ["manager", *arguments])
    assert told.exit_code == 2
    assert what in told.stderr


def test_a_ledger_without_a_schema_ends_it_at_once(postgres: object) -> None:
    from tests.support.postgres import Postgres

    assert isinstance(postgres, Postgres)
    with shared() as valkey, postgres.database("template0") as empty:
        done = fairlead("manager", "--url", valkey.url, "--ledger", empty)
    assert done.returncode == 1
    assert "fairlead db migrate" in done.stderr
