"""The pytest plugin, in runs of pytest as users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/testing.md"
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in a folder of its own, with the plugin only if the installation brings it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    others = ("anyio", "hypothesispytest", "platformdirs", "schemathesis", "timeout", "valkey")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"),
            *("-o", "asyncio_default_fixture_loop_scope=function"),
            *(word for name in others for word in ("-p", f"no:{name}")),
            *arguments,
        ],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="fairlead")
    assert found.value == "pytest_fairlead"


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) == len(re.findall(r"^```(?:python|toml)$", text, re.MULTILINE))
    for name, block in blocks:
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(block)
    code, output = run(tmp_path)
    assert code == 0, output
    assert re.search(r"^13 passed", output, re.MULTILINE), output


def test_nothing_of_fairlead_is_imported_unless_a_test_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_without(): assert 'pytest_fairlead' in sys.modules\n"
        "def test_not_imported(): assert not [m for m in sys.modules if m.startswith('fairlead')]\n"
        "def test_with(fairlead_app): assert 'fairlead.testing' in sys.modules\n"
    )
    code, output = run(tmp_path)
    assert code == 0, output


@pytest.mark.parametrize(
    ("setting", "said"),
    [("tasks", "must be module:name"), ("tasks:nothing", "is no Fairlead app: int")],
)
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, said: str) -> None:
    (tmp_path / "tasks.py").write_text("nothing = 1\n")
    (tmp_path / "test_wrong.py").write_text("def test_app(fairlead_app): ...\n")
    code, output = run(tmp_path, "-o", f"fairlead_app={setting}")
    assert code != 0
    assert said in output
