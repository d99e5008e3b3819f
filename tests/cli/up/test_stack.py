"""The parts of ``fairlead up``: lines of many processes, their ends, the port, the first lines."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli.up.banner import banner
from fairlead.cli.up.listener import open_listener
from fairlead.cli.up.output import Output
from fairlead.cli.up.parts import parts_of
from fairlead.cli.up.process import Part, PartProcess
from fairlead.cli.up.target import Target, find_target
from fairlead.model.errors import InvalidInput


def with_module_in(folder: Path) -> dict[str, str]:
    """The environment of a process that can import what is in a folder."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def released() -> tuple[Output, io.StringIO]:
    stream = io.StringIO()
    output = Output(stream)
    output.release()
    return output, stream


def test_lines_are_whole_and_behind_the_name_of_their_process() -> None:
    output, stream = released()
    output.take("worker", b"one\ntw")
    output.take("api", b"of the api\n")
    output.take("worker", b"o\r\nthe rest")
    assert stream.getvalue() == "worker   | one\napi      | of the api\nworker   | two\n"
    output.end("worker")
    assert stream.getvalue().endswith("worker   | the rest\n")


def test_a_line_without_an_end_is_bounded() -> None:
    output, stream = released()
    for _ in range(3):
        output.take("worker", b"x" * 40_000)
    assert len(stream.getvalue()) >= 80_000


def test_lines_are_held_back_until_the_first_lines_are_out() -> None:
    stream = io.StringIO()
    output = Output(stream)
    output.say("valkey", "ready")
    assert stream.getvalue() == ""
    output.release()
    assert stream.getvalue() == "valkey   | ready\n"


def test_the_usual_port_is_taken_or_else_one_that_is_free() -> None:
    with open_listener("127.0.0.1", None) as first, open_listener("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]


def test_a_port_that_was_asked_for_is_that_one_or_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port}"):
            open_listener("127.0.0.1", port)


def test_the_first_lines_fit_into_eighty_columns() -> None:
    text = banner(
        "http://127.0.0.1:8787/#sign-in=" + "0" * 12 + "-" + "a" * 22,
        seconds=1.5,
        command=".venv/bin/fairlead",
        broker="a Valkey of its own in ./.fairlead",
        where="",
        has_worker=True,
        has_demo=True,
        has_ledger=True,
    )
    assert max(map(len, text.splitlines())) <= 80


def names(demo: bool, app: str | None, ledger: bool) -> list[str]:
    target = Target(app=app, url=None, ledger=None, folder=Path("x"))
    parts = parts_of(
        target,
        demo=demo,
        ledger=ledger,
        concurrency=3,
        level="info",
        listener=7,
        reload=False,
    )
    return [" ".join((part.name, *part.arguments[:2])) for part in parts]


def test_there_is_a_worker_for_each_app_and_a_manager_for_a_ledger() -> None:
    demo = "fairlead.cli.demo_tenants.tasks:app"
    assert names(False, None, False) == ["api api --fd"]
    assert names(False, "a:b", False) == ["api api a:b", "worker worker a:b"]
    assert names(True, None, True) == [
        f"api api {demo}",
        f"worker worker {demo}",
        "manager manager run",
    ]
    assert names(True, "a:b", False) == [
        "api api a:b",
        "worker worker a:b",
        f"worker worker {demo}",
    ]


def test_a_broker_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = "from fairlead import Fairlead\napp = Fairlead('memory://')\n"
    (tmp_path / "in_memory_app.py").write_text(text)
    with pytest.raises(InvalidInput, match="inside of one process"):
        find_target("in_memory_app:app", None)


async def test_a_process_that_dies_is_started_again_until_it_is_to_end(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("print('here'); raise SystemExit(3)")
    output, stream = released()
    lifeline, alive = os.pipe()
    process = PartProcess(
        Part(name="worker", module="dies"),
        output=output,
        lifeline=lifeline,
        environment=with_module_in(tmp_path),
    )
    try:
        running = asyncio.create_task(process.run(lambda: True))
        while stream.getvalue().count("| here\n") < 2:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        process.end()
        assert await running in (3, -signal.SIGTERM)
    finally:
        os.close(lifeline)
        os.close(alive)
    assert "worker   | ended with code 3; starts again in 0.5 s\n" in stream.getvalue()


async def test_one_that_has_died_when_it_is_told_to_end_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("print('here'); raise SystemExit(3)")
    output, _ = released()
    lifeline, alive = os.pipe()
    process = PartProcess(
        Part(name="worker", module="dies"),
        output=output,
        lifeline=lifeline,
        environment=with_module_in(tmp_path),
    )
    try:
        running = asyncio.create_task(process.run(lambda: True))
        while not process.pid:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0)
        # It has ended, and the loop has not heard of it: this holds the loop.
        with contextlib.suppress(ChildProcessError):  # where a thread waits for it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        process.end()
        assert await running == 3
    finally:
        os.close(lifeline)
        os.close(alive)


async def test_one_that_dies_before_all_is_ready_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("raise SystemExit(3)")
    output, _ = released()
    lifeline, alive = os.pipe()
    process = PartProcess(
        Part(name="worker", module="dies"),
        output=output,
        lifeline=lifeline,
        environment=with_module_in(tmp_path),
    )
    try:
        assert await process.run(lambda: False) == 3
    finally:
        os.close(lifeline)
        os.close(alive)


def test_a_process_ends_when_the_one_that_started_it_has_gone(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(20)")
    lifeline, alive = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "fairlead.cli.up.lifeline", str(lifeline), "waits"],
        env=with_module_in(tmp_path),
        stdout=subprocess.PIPE,
        pass_fds=(lifeline,),
        start_new_session=True,
    ) as process:
        os.close(lifeline)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        os.close(alive)
        assert process.wait(15) == -signal.SIGTERM
