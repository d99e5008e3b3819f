"""``fairlead doctor --repair``: shown first, done when told to, audited afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fairlead.broker import connect
from fairlead.broker.records import Mended, WorkerRecord
from fairlead.broker.redis import RedisBroker
from fairlead.cli.main import cli, run
from tests.support.servers import Running, server
from tests.support.store import Client, submit


@pytest.fixture(scope="module")
def sound() -> Iterator[Running]:
    """A server as it should be."""
    with server(aof=True) as running:
        yield running


@pytest.fixture
def valkey(sound: Running) -> Running:
    """The same, with ten tasks whose line was deleted."""
    sound.admin("FLUSHALL")
    sound.admin("CONFIG", "SET", "slowlog-log-slower-than", -1)  # this machine may be busy

    async def fill() -> None:
        store = connect(sound.url)
        await store.enqueue(Client(store).call(), [submit(f"t{n}") for n in range(10)])
        await store.beat("w1", worker=WorkerRecord(incarnation="w1", queues=("default",)))
        await store.close()

    asyncio.run(fill())
    assert sound.admin("DEL", "fl1:{0}:line:default:2:a") == 1
    return sound


def length(valkey: Running) -> int:
    return int(valkey.admin("LLEN", "fl1:{0}:line:default:2:a"))


def test_it_shows_what_it_would_do(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", valkey.url, "--repair"]) == 2
    out = capsys.readouterr().out
    assert "to do: 10 tasks put where their state says that they stand" in out
    assert "`--repair --yes` does it" in out
    assert length(valkey) == 0


def test_told_to_it_does_so_and_audits(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", valkey.url, "--repair", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "10 tasks put where their state says that they stand" in out
    assert out.endswith("everything that is stored is sound\n")
    assert length(valkey) == 10
    assert run(cli, ["doctor", "--url", valkey.url, "--repair"]) == 0
    assert "there is nothing to mend" in capsys.readouterr().out


def test_programs_read_it_as_json(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", valkey.url, "--repair", "--yes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    place = next(each for each in report["repair"] if each["kind"] == "place")
    assert (place["done"], place["left"], report["audit"]["findings"]) == (10, 0, [])


@pytest.mark.parametrize(("said", "code", "there"), [(True, 0, 10), (False, 2, 0)])
def test_a_terminal_is_asked(
    valkey: Running, monkeypatch: pytest.MonkeyPatch, said: bool, code: int, there: int
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: said)
    assert run(cli, ["doctor", "--url", valkey.url, "--repair"]) == code
    assert length(valkey) == there


def test_what_could_not_be_judged_is_a_warning(
    valkey: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def repair(*_: object, **__: object) -> list[Mended]:
        return [Mended(kind="tenant", text="tenants counted anew", busy=3)]

    monkeypatch.setattr(RedisBroker, "repair", repair)
    assert run(cli, ["doctor", "--url", valkey.url, "--repair", "--yes"]) == 1
    out = capsys.readouterr().out
    assert "not compared with their tasks, because work went on in them: 3 tenants" in out
    assert "there is nothing to mend" in out


def test_yes_alone_is_refused(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", valkey.url, "--yes"]) == 2
    assert "--yes belongs to --repair" in capsys.readouterr().err


def test_ctrl_c_at_the_question_ends_it_at_once(valkey: Running) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fairlead", "doctor", "--url", valkey.url, "--repair"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        said = b""
        while b"Mend this now?" not in said:
            assert select.select([ours], [], [], 60)[0], said
            said += os.read(ours, 4096)
        # Python shows the prompt before it begins to read, and what comes between is heard with
        # the next key only. Nobody is that quick.
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert length(valkey) == 0
