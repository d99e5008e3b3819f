"""The examples as their README says: the commands of each, and its program beside them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.docs.pages import Block, blocks, kept_environment
from tests.support.servers import shared

PAGE = "examples/README.md"
FAIRLEAD = Path(sys.executable).with_name("fairlead")


def runs() -> dict[str, tuple[list[str], Block]]:
    """Of each example the commands, in their order, and the program."""
    found: dict[str, tuple[list[str], Block]] = {}
    commands: list[str] = []
    for block in blocks(PAGE):
        if block.language == "":
            commands = [line.rstrip(" &") for line in block.code.splitlines()]
        elif block.language == "python":
            name = commands[-1].partition(".tasks:app")[0].split()[-1]
            found[name] = [line for line in commands if line.startswith("fairlead ")], block
    return found


def run(name: str, folder: Path, **environment: str) -> None:
    """Start what an example needs, run its program, and compare what it prints."""
    commands, program = runs()[name]
    environment = {
        **kept_environment(),
        "FAIRLEAD_RUN_DIR": str(folder),
        "PYTHONPATH": str(ROOT / "examples"),
        **environment,
    }
    servers = [
        subprocess.Popen(
            [FAIRLEAD, *shlex.split(command)[1:]],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
        )
        for command in commands
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-c", program.code],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
    finally:
        for server in servers:
            server.terminate()
        told = b"".join(server.communicate(timeout=60)[1] for server in servers).decode()
    assert (done.returncode, done.stdout) == (0, program.output), done.stderr + told


def test_each_example_has_a_program() -> None:
    assert list(runs()) == ["tenant_mails", "etl_flow", "crawler", "orders", "images"]


@pytest.mark.slow  # processes of their own
@pytest.mark.parametrize("name", ["tenant_mails", "etl_flow", "crawler", "images"])
def test_an_example_does_what_its_readme_says(name: str, tmp_path: Path) -> None:
    with shared() as running:
        run(name, tmp_path, FAIRLEAD_URL=running.url)


@pytest.mark.slow  # the same, with a queue manager
def test_orders_are_billed_as_the_readme_says(ledger_dsn: str, tmp_path: Path) -> None:
    with shared() as running:
        run("orders", tmp_path, FAIRLEAD_URL=running.url, FAIRLEAD_LEDGER=ledger_dsn)
