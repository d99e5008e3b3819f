from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Site, opened
from tests.support.servers import server
from tests.support.worker_process import is_alive


@pytest.fixture
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """A site on a server of its own; the tasks are the TASKS of the test's module."""
    with server() as running:
        async with opened(running.url, tmp_path, getattr(request.module, "TASKS", "")) as made:
            yield made
            log = running.folder / "log"
            said = log.read_text() if log.exists() else "its folder is gone"
            assert is_alive(running.pid), f"the server ended by itself:\n{said[-2000:]}"
