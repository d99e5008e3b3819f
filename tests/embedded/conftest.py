from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.processes import sweep


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where a server may live; none is left there."""
    yield tmp_path / ".fairlead"
    sweep(tmp_path)
