"""``fairlead spool``: what dead processes left is seen, exported and sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fairlead.broker import Store
from fairlead.broker.requests import Submission
from fairlead.cli.common.broker_option import with_store
from fairlead.cli.main import cli, run
from fairlead.fallback.codec import SpooledTask, encode_submission, moment_now
from fairlead.model.message import Message
from fairlead.spool import Entry, Kind, Rejection, Spool
from tests.support.servers import Running, server

AWAY = "redis://127.0.0.1:1"  # where nothing answers


class Say(Protocol):
    """Run a command; return what it wrote to stdout and stderr."""

    def __call__(self, *args: str, code: int = 0) -> tuple[str, str]: ...


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


def entry(id: str, tenant: str = "acme") -> Entry:
    body = b"\x93\xa9shop.mail\x90\x80"
    message = Message(id=id, queue="default", tenant=tenant, body=body)
    return Entry(
        Kind.SUBMISSION, encode_submission(SpooledTask(Submission(message=message), moment_now()))
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A spool of a process that has ended: two tasks, and one that was rejected."""
    spool = Spool.open(tmp_path / "spool", broker=AWAY)
    spool.append([entry("a"), entry("b", "globex"), entry("c")])
    (*_, last) = spool.pending()
    left = Rejection("conflict", "task c exists", last.kind, last.payload, last.at)
    spool.reject(last.sequence, left.encode())
    spool.close()
    return tmp_path / "spool"


@pytest.fixture
def said(root: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    def say(*args: str, code: int = 0) -> tuple[str, str]:
        assert run(cli, ["spool", *args, "--directory", str(root)]) == code
        return capsys.readouterr()

    return say


def test_a_list_tells_of_each_process(said: Say, root: Path) -> None:
    living = Spool.open(root)
    living.append([entry("d")])
    found = json.loads(said("list", "--json")[0])
    assert (found["directory"], found["quarantined"]) == (str(root), 0)
    dead, alive = found["spools"]
    assert (dead["lives"], dead["depth"], dead["rejected"]) == (False, 2, 1)
    assert (alive["lives"], alive["depth"], alive["rejected"]) == (True, 1, 0)
    text = said("list")[0].splitlines()
    assert text[0].split() == [
        "SPOOL",
        "PROCESS",
        "RECORDS",
        "OLDEST",
        "REJECTED",
        "BYTES",
        "BROKER",
    ]
    assert text[1].split()[-1] == AWAY
    assert "ended" in text[1]
    assert "ended" not in text[2]
    living.confirm([1])
    living.close()


def test_rejected_tasks_are_listed_with_the_reason(said: Say) -> None:
    (row,) = json.loads(said("list", "--rejected", "--json")[0])["rejected"]
    assert (row["code"], row["message"]) == ("conflict", "task c exists")
    assert (row["id"], row["task"], row["tenant"], row["queue"]) == (
        "c", "shop.mail", "acme", "default",
    )  # fmt: skip
    assert "conflict" in said("list", "--rejected")[0]


def test_an_export_has_a_line_for_each_record_and_bodies_on_request_only(said: Say) -> None:
    rows = [json.loads(line) for line in said("export")[0].splitlines()]
    assert [(row["id"], row["task"], row["tenant"]) for row in rows] == [
        ("a", "shop.mail", "acme"),
        ("b", "shop.mail", "globex"),
    ]
    assert not any("payload" in row for row in rows)
    (row,) = (json.loads(line) for line in said("export", "--rejected", "--bodies")[0].splitlines())
    assert row["rejected"] == "submission"
    assert row["payload"]


def test_looking_changes_nothing(said: Say, root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    said("list")
    said("list", "--rejected")
    said("export")
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_what_is_no_task_is_told_of_as_unreadable(said: Say, root: Path) -> None:
    living = Spool.open(root)
    living.append([Entry(Kind.SUBMISSION, b"what?"), Entry(Kind.OUTCOME, b"")])
    rows = [json.loads(line) for line in said("export")[0].splitlines()]
    assert [row.get("unreadable") for row in rows] == [None, None, True, True]
    living.close()


def test_a_drain_sends_what_was_left(said: Say, root: Path, valkey: Running) -> None:
    told = json.loads(said("drain", "--any-broker", "--json", "--url", valkey.url)[0])
    assert told == {
        "adopted": 2, "sent": 2, "settled": 0, "rejected": 0, "left": 0, "skipped": 0,
    }  # fmt: skip

    async def known(store: Store) -> int:
        return (await store.snapshot()).queues["default"].ready

    assert with_store(valkey.url, known) == 2
    found = json.loads(said("list", "--json")[0])["spools"]
    assert [(each["depth"], each["rejected"]) for each in found] == [(0, 1)]
    assert json.loads(said("forget", "--json")[0]) == {"forgotten": 1}
    assert json.loads(said("list", "--json")[0])["spools"] == []


def test_a_drain_leaves_what_is_for_another_broker(said: Say, root: Path, valkey: Running) -> None:
    told = json.loads(said("drain", "--json", "--url", valkey.url)[0])
    assert (told["adopted"], told["sent"], told["left"], told["skipped"]) == (0, 0, 0, 2)
    assert "2 are for another broker" in said("drain", "--url", valkey.url)[1]
    (row,) = json.loads(said("list", "--json")[0])["spools"]
    assert (row["depth"], row["broker"]) == (2, AWAY)
    assert json.loads(said("forget", "--json")[0]) == {"forgotten": 1}
    (row,) = json.loads(said("list", "--json")[0])["spools"]
    assert (row["depth"], row["rejected"], row["broker"]) == (2, 0, AWAY)


def test_a_drain_without_a_broker_leaves_everything(said: Say, root: Path) -> None:
    told = json.loads(said("drain", "--json", "--url", f"redis://me:secret@{AWAY[8:]}", code=1)[0])
    assert (told["sent"], told["left"]) == (0, 2)
    assert json.loads(said("list", "--json")[0])["spools"][0]["depth"] == 2


def test_a_place_without_a_spool_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["spool", "list", "-d", str(tmp_path / "none")]) == 0
    assert "there is no spool" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [[], ["list"], ["export"], ["drain"], ["forget"]])
def test_each_command_has_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["spool", *command, "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


def test_the_bench_tells_what_the_disk_and_the_spool_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run(cli, ["bench", "spool", "--quick", "--json", "--scale", "0.02"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["callers"], found["aim"]) == (64, 20_000)
    assert len(found["rows"]) == 4
    assert all(row["rate"] > 0 and row["p50_ms"] <= row["p99_ms"] for row in found["rows"])
    assert run(cli, ["bench", "spool", "--quick", "--scale", "0.02"]) == 0
    assert "times what the disk does alone" in capsys.readouterr().out
