"""``fairlead doctor``: what it looks at, what it says, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.broker import connect
from fairlead.broker.records import Finding, WorkerRecord
from fairlead.cli.main import cli, run
from fairlead.settings import Configured
from tests.cli.running import fairlead
from tests.support.servers import Running, server
from tests.support.store import Client, submit

CHECKS = (
    "broker",
    "server",
    "role",
    "persistence",
    "memory",
    "eviction",
    "clock",
    "shard",
    "slow log",
)


@pytest.fixture(scope="module")
def sound() -> Iterator[Running]:
    """A server as it should be."""
    with server(aof=True) as running:
        yield running


@pytest.fixture
def valkey(sound: Running) -> Running:
    sound.admin("FLUSHALL")
    sound.admin("CONFIG", "SET", "slowlog-log-slower-than", -1)  # this machine may be busy
    sound.admin("SLOWLOG", "RESET")
    sound.admin("CONFIG", "SET", "maxmemory", 0, "maxmemory-policy", "noeviction")
    return sound


def enqueue(url: str, *, worker: bool = False) -> None:
    async def work() -> None:
        store = connect(url)
        await store.enqueue(Client(store).call(), [submit("one"), submit("two", queue="mail")])
        if worker:
            record = WorkerRecord(incarnation="w1", queues=("default", "mail"))
            await store.beat("w1", worker=record)
        await store.close()

    asyncio.run(work())


def checks(answer: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(answer)["checks"]}


def test_a_sound_server_is_all_ok(valkey: Running) -> None:
    enqueue(valkey.url, worker=True)
    answer = fairlead("doctor", "--audit", FAIRLEAD_URL=valkey.url)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert all(line.startswith("ok    ") for line in lines), lines
    names = [*CHECKS, "workers", "queue default", "queue mail", "audit"]
    assert [line[6:].partition("  ")[0] for line in lines] == names
    assert f"unix://{valkey.path} (from FAIRLEAD_URL)" in lines[0]
    assert "Valkey" in lines[1]


def test_a_url_may_have_a_time_limit(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", f"{valkey.url}?timeout=5"]) == 0
    assert f"unix://{valkey.path} (from --url)" in capsys.readouterr().out


def test_json_says_the_same(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    enqueue(valkey.url, worker=True)
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["status"] == "ok"
    assert "audit" not in json.loads(out)
    found = checks(out)
    assert list(found) == [*CHECKS, "workers", "queue default", "queue mail"]
    assert found["queue mail"] == {
        "name": "queue mail",
        "status": "ok",
        "text": "1 wait (1 ready), 1 workers serve it",
        "hint": "",
    }


def test_a_queue_that_nobody_serves_is_a_warning(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue(valkey.url)
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) == 1
    queue = checks(capsys.readouterr().out)["queue mail"]
    assert (queue["status"], queue["text"]) == ("warn", "1 wait (1 ready), 0 workers serve it")
    assert queue["hint"].startswith("start a worker")


def test_a_paused_queue_is_a_warning(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    enqueue(valkey.url, worker=True)

    async def pause() -> None:
        from fairlead.broker.requests import QueueChange

        store = connect(valkey.url)
        await store.configure(Client(store, "o").call(), [QueueChange(queue="mail", paused=True)])
        await store.close()

    asyncio.run(pause())
    assert run(cli, ["doctor", "--url", valkey.url]) == 1
    assert "paused; 1 wait" in capsys.readouterr().out


def test_a_server_that_may_drop_tasks_is_a_failure(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    valkey.admin("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) == 1
    assert checks(capsys.readouterr().out)["eviction"]["status"] == "warn"

    valkey.admin("CONFIG", "SET", "maxmemory", 10**9)
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) == 2
    eviction = checks(capsys.readouterr().out)["eviction"]
    assert eviction["status"] == "fail"
    assert "noeviction" in eviction["hint"]


def test_memory_that_is_nearly_used_up_is_told(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    used = int(valkey.admin("INFO", "memory")["used_memory"])
    valkey.admin("CONFIG", "SET", "maxmemory", int(used * 1.15))
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) in (1, 2)
    assert checks(capsys.readouterr().out)["memory"]["status"] in ("warn", "fail")


def test_a_server_without_a_file_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with server() as running:
        assert run(cli, ["doctor", "--url", running.url, "--json"]) == 1
        persistence = checks(capsys.readouterr().out)["persistence"]
        assert persistence["status"] == "warn"
        assert "appendonly yes" in persistence["hint"]


def test_a_slow_command_is_told(valkey: Running, capsys: pytest.CaptureFixture[str]) -> None:
    valkey.admin("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
    valkey.admin("DEBUG", "SLEEP", "0.03")
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) == 1
    slow = checks(capsys.readouterr().out)["slow log"]
    assert slow["status"] == "warn"
    assert "DEBUG SLEEP" in slow["text"].upper()


def test_what_may_not_be_asked_is_unknown_and_no_failure(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ("on", ">secret", "~*", "&*", "+@all", "-info", "-config", "-slowlog")
    valkey.admin("ACL", "SETUSER", "plain", *rules)
    try:
        url = valkey.url.replace("unix://", "unix://plain:secret@")
        assert run(cli, ["doctor", "--url", url, "--json"]) == 1
        found = checks(capsys.readouterr().out)
        assert "INFO" in found["server"]["hint"]
        assert found["slow log"]["text"] == "it may not be asked"
    finally:
        valkey.admin("ACL", "DELUSER", "plain")


def test_clocks_that_differ_are_a_warning(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue(valkey.url, worker=True)
    valkey.set_numbers(now=valkey.numbers()["now"] + 500)
    assert run(cli, ["doctor", "--url", valkey.url, "--json"]) == 1
    clock = checks(capsys.readouterr().out)["clock"]
    assert clock["status"] == "warn"
    assert "set back: the broker's time is 8 min" in clock["text"]
    assert "a tenth slower for another 8" in clock["text"]


def test_what_the_audit_finds_is_a_failure(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue(valkey.url, worker=True)
    valkey.admin("SET", "fl1:{0}:stranger", "?")
    assert run(cli, ["doctor", "--url", valkey.url]) == 0
    capsys.readouterr()
    assert run(cli, ["doctor", "--url", valkey.url, "--audit"]) == 2
    out = capsys.readouterr().out
    assert out.splitlines()[-1].split("  ")[0] == "fail"
    assert out.endswith("the key 'stranger' is none that Fairlead writes\n")


def test_of_many_findings_the_first_hundred_are_shown(
    valkey: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(105):
        valkey.admin("SET", f"fl1:{{0}}:stranger-{number}", "?")
    assert run(cli, ["doctor", "--url", valkey.url, "--audit"]) == 2
    out, err = capsys.readouterr()
    assert out.count("stranger-") == 100
    assert err == "5 more findings are not shown\n"

    assert run(cli, ["doctor", "--url", valkey.url, "--audit", "--json"]) == 2
    audit = json.loads(capsys.readouterr().out)["audit"]
    assert (len(audit["findings"]), audit["more"]) == (100, 5)


def test_a_terminal_sees_how_far_the_audit_is(
    valkey: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(valkey.url, worker=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(cli, ["doctor", "--url", valkey.url, "--audit", "--json"]) == 0
    assert " keys read" in capsys.readouterr().err


def test_without_a_broker_it_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.settings.configured", Configured)
    assert run(cli, ["doctor"]) == 2
    err = capsys.readouterr().err
    assert "--url redis://HOST" in err
    assert "FAIRLEAD_URL" in err


def test_a_broker_in_memory_cannot_be_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", "memory://"]) == 2
    assert "lives inside the process" in capsys.readouterr().err


def test_a_server_that_is_not_there_has_its_own_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.broker.redis import RedisBroker

    def impatient(url: str) -> RedisBroker:
        return RedisBroker(url, patience=0.0)

    monkeypatch.setattr("fairlead.broker.connect", impatient)
    assert run(cli, ["doctor", "--url", "unix:///nowhere/s"]) == 3
    assert capsys.readouterr().err.startswith("error: ")


async def test_a_store_in_memory_says_that_it_is_one() -> None:
    store = connect("memory://")
    found = await store.diagnose()
    assert [each.name for each in found] == ["persistence", "shard"]
    assert isinstance(found[0], Finding)
    assert found[0].status == "warn"
    await store.close()
