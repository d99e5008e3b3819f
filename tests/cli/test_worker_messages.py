"""What ``fairlead worker`` says when something is wrong: whose fault it is, and where."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead
from tests.support.servers import Running, server
from tests.support.worker_process import WorkerProcess, until

APP = """
import asyncio
from pathlib import Path
from fairlead import Fairlead

app = Fairlead()

def deeper(secret: str) -> None:
    raise ValueError("the card was refused")

@app.task(name="pay", max_retries=0)
def pay(secret: str) -> None:
    deeper(secret)

@app.task(name="nap")
async def nap() -> None:
    Path("begun").touch()
    await asyncio.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(APP)
    return tmp_path


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server("valkey", password="hunter2", tcp=True) as running:
        yield running


def worker_of(folder: Path, url: str, *options: str, name: str = "worker") -> WorkerProcess:
    run = str(folder / "run")
    environment = {"FAIRLEAD_URL": url, "FAIRLEAD_RUN_DIR": run, "NO_COLOR": "1"}
    return WorkerProcess(folder, *options, environment=environment, name=name).start()


def ended(folder: Path, *command: str, url: str = "redis://127.0.0.1:1") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *command],
        cwd=folder, env={**os.environ, "FAIRLEAD_URL": url},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr


async def test_a_broker_that_is_away_is_named_with_the_reason(folder: Path) -> None:
    worker = worker_of(folder, "redis://user:hunter2@127.0.0.1:1?timeout=1")
    try:
        await worker.logged("waiting for the broker at redis://127.0.0.1:1")

        def failed() -> bool:
            lines = [str(entry.get("event")) for entry in worker.log(component="worker")]
            return any(re.match(r"broker failed: .*127\.0\.0\.1:1\b", line) for line in lines)

        await until(failed, lambda: f"the reason\n{worker.tail()}")
        worker.signal(signal.SIGINT)
        assert await worker.wait() == 0
        assert worker.log("child died") == []  # it was told to end, and had nothing
        assert "hunter2" not in worker.text()
    finally:
        worker.close()


def test_a_refused_login_ends_the_worker_with_code_3(folder: Path, valkey: Running) -> None:
    code, said = ended(folder, "worker", "jobs:app", url=valkey.url.replace("hunter2", "wrong"))
    *_, last = said.splitlines()
    assert code == 3, said
    assert f"127.0.0.1:{valkey.port} refused the login; check user and password" in last
    assert "wrong" not in said


def test_an_error_in_an_import_names_the_line_of_the_program(folder: Path) -> None:
    (folder / "settings.py").write_text("import json\n\nRATES = json.loads('{')\n")
    (folder / "shop.py").write_text("import settings\n" + APP)
    code, said = ended(folder, "worker", "shop:app")
    *others, last = said.splitlines()
    assert code == 1, said
    assert others == []  # no process "died": it said why it cannot start
    assert "JSONDecodeError: Expecting property name" in last
    assert f"({folder}/settings.py, line 3; raised in " in last
    assert "Traceback" not in said

    code, said = ended(folder, "--debug", "worker", "shop:app", "--log-format", "console")
    assert code == 1
    assert "Traceback (most recent call last)" in said
    assert f'File "{folder}/shop.py", line 1, in <module>' in said


def test_a_line_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "shop.py").write_text("from fairlead import Fairlead\napp = Fairlead(\n")
    _, said = ended(folder, "worker", "shop:app")
    assert f"SyntaxError: '(' was never closed ({folder}/shop.py, line 2)" in said


async def test_what_handlers_raise_is_shown_on_a_console_and_not_in_json(
    folder: Path, valkey: Running
) -> None:
    async with Fairlead(valkey.url) as app:
        console = worker_of(folder, valkey.url, "--log-format", "console")
        try:
            await app.named("pay", strict=False).aenqueue("s3cret")
            await until(lambda: "task dead: pay" in console.text(), console.tail)
            text = console.text()
            _, _, told = text.partition("task dead: pay")
            assert "ValueError: the card was refused" in told.splitlines()[0]
            lines = [line.strip() for line in told.splitlines()[1:]]
            assert lines[0] == "Traceback (most recent call last):"
            assert lines[1] == f'File "{folder}/jobs.py", line 13, in pay'
            assert "s3cret" not in text
            warning = "the server keeps no append-only file"  # by the supervisor, for all processes
            await until(lambda: warning in console.text(), console.tail)
            assert console.text().count(warning) == 1
        finally:
            console.close()
        machine = worker_of(folder, valkey.url, name="machine")
        try:
            await app.named("pay", strict=False).aenqueue("s3cret")
            await until(lambda: bool(machine.log(task="pay")), machine.tail)
            (entry,) = machine.log(task="pay")
            assert entry["error"] == "ValueError"
            assert "refused" not in machine.text()
        finally:
            machine.close()


async def test_the_first_ctrl_c_says_what_is_waited_for_and_how_to_leave(
    folder: Path, valkey: Running
) -> None:
    worker = worker_of(folder, valkey.url, "--grace", "40")
    try:
        async with Fairlead(valkey.url) as app:
            await app.named("nap", strict=False).aenqueue()
            await until((folder / "begun").exists, worker.tail)
            worker.signal(signal.SIGINT)
            await worker.logged(
                "worker stops: 1 task has 40 s to finish; Ctrl-C (or TERM) again hands it back at"
                " once"
            )
            worker.signal(signal.SIGINT)
            assert await worker.wait() == 0
            assert worker.log("worker leaves at once")
    finally:
        worker.close()


async def test_a_queue_that_nobody_fills_is_said_by_one_process(
    folder: Path, valkey: Running
) -> None:
    worker = worker_of(folder, valkey.url, "-q", "defualt", "-p", "2")
    try:
        text = "nothing was ever sent to queue defualt, and no task of this app names it"
        await worker.logged(f"{text}; did you mean default?")
        await worker.ready()
        assert len([entry for entry in worker.log() if text in str(entry.get("event"))]) == 1
    finally:
        worker.close()


async def test_until_empty_a_worker_ends_by_itself_once_all_is_done(
    folder: Path, valkey: Running
) -> None:
    (folder / "jobs.py").write_text(APP.replace("sleep(60)", "sleep(0.01)"))
    async with Fairlead(valkey.url) as app:
        await app.apurge()
        nap = app.named("nap", strict=False)
        handles = await app.aenqueue_many([nap.call() for _ in range(50)])
        worker = worker_of(folder, valkey.url, "--burst", "-p", "2", "-c", "5")
        try:
            assert await worker.wait() == 0
            states = {(await handle.ainfo()).state for handle in handles}
        finally:
            worker.close()
    assert states == {"completed"}
    assert len(worker.log("child retires", why="its queues are empty")) == 2
    assert worker.log("child died") == []
