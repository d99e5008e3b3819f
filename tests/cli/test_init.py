"""``fairlead init`` writes a project that runs, is typed and tested, and overwrites nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import answered
from tests.cli.up.up_process import running_up


def test_it_writes_tasks_their_test_and_settings_and_says_what_is_next(tmp_path: Path) -> None:
    place = tmp_path / "shop"
    done = answered("init", str(place), "--module", "jobs")
    assert done.returncode == 0, done.stderr
    assert [Path(line).name for line in done.stdout.split()] == [
        "jobs.py",
        "test_jobs.py",
        "fairlead.toml",
    ]
    assert f"next: cd {place} && fairlead up jobs:app --reload" in done.stderr
    assert (place / ".gitignore").read_text().startswith(".fairlead/")


def test_its_test_passes_without_a_server(tmp_path: Path) -> None:
    assert answered("init", str(tmp_path)).returncode == 0
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_tasks.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout
    assert not (tmp_path / ".fairlead").exists()


def test_what_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text("# mine\n")
    done = answered("init", str(tmp_path))
    assert done.returncode == 2
    assert "fairlead.toml' is there already" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["fairlead.toml"]
    assert (tmp_path / "fairlead.toml").read_text() == "# mine\n"


@pytest.mark.parametrize("module", ["a b", "../x", "9", "A", "x.y"])
def test_a_module_has_a_name_that_can_be_imported(tmp_path: Path, module: str) -> None:
    done = answered("init", str(tmp_path), "--module", module)
    assert done.returncode == 2
    assert "no name of a module" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_project_runs_and_new_code_is_loaded_when_it_is_saved(tmp_path: Path) -> None:
    assert answered("init", str(tmp_path), "--module", "jobs").returncode == 0
    with running_up(tmp_path, "jobs:app", "--reload", "--port", "0") as up:
        order = ("task", "enqueue", "jobs.send_mail", "ann@example.com", "--wait")
        assert "sent to ann@example.com" in up.fairlead(*order).stdout
        code = tmp_path / "jobs.py"
        code.write_text(code.read_text().replace("sent to", "is on its way to"))
        while "child ended" not in up.logged:  # the new one is there, the old one has gone
            assert up.process.poll() is None
        assert "is on its way to ann@example.com" in up.fairlead(*order).stdout
        code.write_text("this is no Python")
        while "child not replaced" not in up.logged:
            assert up.process.poll() is None
        assert "is on its way to ann@example.com" in up.fairlead(*order).stdout
