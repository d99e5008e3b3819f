"""Which files a worker with --reload looks after."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.worker.process.reloader import Reloader


def look(reloader: Reloader, folder: Path) -> list[str]:
    return [os.path.relpath(each, folder) for each in reloader.look()]


def test_files_that_are_written_added_and_removed_are_seen(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text("a = 1\n")
    reloader = Reloader(tmp_path, lambda: None)
    assert look(reloader, tmp_path) == []
    (tmp_path / "shop" / "tasks.py").write_text("a = 12\n")
    (tmp_path / "fairlead.toml").write_text("")
    assert look(reloader, tmp_path) == ["fairlead.toml", "shop/tasks.py"]
    assert look(reloader, tmp_path) == []
    (tmp_path / "shop" / "tasks.py").unlink()
    assert look(reloader, tmp_path) == ["shop/tasks.py"]


def test_what_is_not_of_the_program_is_left_out(tmp_path: Path) -> None:
    reloader = Reloader(tmp_path, lambda: None)
    for name in (".git/x.py", "node_modules/x.py", "__pycache__/x.py", "env/lib/x.py", "data.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert look(reloader, tmp_path) == []


def test_a_folder_that_points_back_to_itself_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "tasks.py").write_text("")
    assert look(Reloader(tmp_path, lambda: None), tmp_path) == []
