"""What docs/how-to/events.md shows is run as it stands there."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.api.live.site import Site, opened
from tests.worker.harness import until

PAGE = Path(__file__).parents[3] / "docs/how-to/events.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(PAGE.read_text()) if name == language]


def printed(place: int) -> str:
    """What the page says that its examples print."""
    return blocks("text")[place]


@asynccontextmanager
async def started(
    command: list[str], site: Site, scheme: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    """A program of the page, and the lines that it has printed."""
    environment = {
        "PATH": str(Path(command[0]).parent),
        "FAIRLEAD_API": f"{scheme}://127.0.0.1:{site.port}",
        "FAIRLEAD_TOKEN": await site.token(),
    }
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines: list[str] = []

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            lines.append(line.decode().rstrip())  # noqa: PERF401 - they are read meanwhile

    reading = asyncio.ensure_future(read())
    try:
        yield process, lines
    finally:
        process.terminate()
        await process.wait()
        await reading
        process._transport.close()  # type: ignore[attr-defined]


def node() -> list[str]:
    """Node, with the flag that it needs before version 22."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("Node is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    major = int(version.removeprefix("v").partition(".")[0])
    if major < 20:
        pytest.skip(f"Node {version.strip()} has no WebSocket")
    return [path] if major >= 22 else [path, "--experimental-websocket"]


async def test_the_script_for_node_prints_events_and_comes_again(tmp_path: Path) -> None:
    script = tmp_path / "watch.mjs"
    script.write_text(blocks("js")[0])
    async with opened() as site, started([*node(), str(script)], site, "ws") as (_, lines):
        await until(lambda: "snapshot" in lines)
        await site.add.aenqueue(1, 2)
        await site.app.drain()
        await until(lambda: any("completed" in line for line in lines))
        shown = [line.partition(" add")[0] for line in lines if "Warning" not in line]
        assert shown[:6] == [line.partition(" add")[0] for line in printed(0).splitlines()]
        assert re.fullmatch(r"task.completed add [\d.]+", lines[-1])

        site.hub.end_all("slow")  # it connects again, behind the last event
        await site.fail.aenqueue()
        await site.app.drain()
        await until(lambda: lines[-1].startswith("task.dead"))
        assert lines.count("snapshot") == 2
        again = [line.split()[0] for line in lines[-4:]]
        assert again == ["task.submitted", "task.started", "task.failed", "task.dead"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_command_for_curl_prints_events() -> None:
    (command,) = [text.strip() for text in blocks("bash")]
    shell = shutil.which("sh")
    assert shell is not None
    line = [shell, "-c", f"exec {command}"]
    async with opened() as site, started(line, site, "http") as (_, lines):
        await until(lambda: "event: snapshot" in lines)
        await site.add.aenqueue(1, 2)
        await site.app.drain()
        await until(lambda: "event: task.completed" in lines)
        assert "event: task.started" not in lines


@pytest.mark.parametrize("place", [0, 1])
def test_the_examples_in_python_print_what_they_are_said_to_print(
    place: int, tmp_path: Path
) -> None:
    example = tmp_path / "example.py"
    example.write_text(blocks("python")[place])
    done = subprocess.run(
        [sys.executable, "-W", "error", example], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, printed(2 + place)), done.stderr
