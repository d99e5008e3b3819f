from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.testing import Kit
from images.tasks import app, render


@pytest.fixture
def fairlead_target() -> Fairlead:
    return app


def test_the_handler_alone_draws_an_image(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    assert render(str(path), 8) == path.stat().st_size
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_image_is_drawn_in_a_process_of_its_own(fairlead_kit: Kit, tmp_path: Path) -> None:
    handle = render.enqueue(str(tmp_path / "set.png"), 16)
    assert fairlead_kit.drain() == 1
    assert handle.result() == (tmp_path / "set.png").stat().st_size
