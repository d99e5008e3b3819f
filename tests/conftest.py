from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support import surroundings  # noqa: F401 - the first of ours
from tests.support.fair import EXAMPLES
from tests.support.order import dealt, seconds_of, turned
from tests.support.postgres import ledger, ledger_dsn, postgres  # noqa: F401 - fixtures for all

# One slow example on a busy machine is no bug; what hangs is ended by pytest's own timeout. The
# examples are the same in every run, so that a change is to blame for a failure, not a draw.
settings.register_profile(
    "fairlead",
    deadline=None,
    derandomize=EXAMPLES <= 1,
    max_examples=max(1, round(100 * EXAMPLES)),
)
settings.load_profile("fairlead")

# Hypothesis tries constants of our modules, too, and reads all of those first, in each process.
# That takes longer than the few examples of `make test`.
if EXAMPLES < 1:
    providers._get_local_constants = lambda: providers._local_constants

# What runs in memory and on Valkey in `make test` runs on these in `make check`.
_SLOW_PARAMETERS = {"redis", "cluster"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where all the timing tests run, files without any are not imported by each test process."""
    if collection_path.suffix != ".py" or not _runs_all(config):
        return None
    only_serial = config.getoption("markexpr").startswith("serial")
    return True if only_serial and "mark.serial" not in collection_path.read_text() else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is imported and collected stays: no need to look through it again and again."""
    gc.disable()
    try:
        if _runs_all(session.config) and "PYTEST_XDIST_WORKER" in os.environ:
            _import_tests(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _runs_all(config: pytest.Config) -> bool:
    return [Path(arg).name for arg in config.args] == ["tests"]


def _import_tests(config: pytest.Config) -> None:
    """Import what is to be collected: each file is compiled by one process, not by all."""
    place, processes = (os.environ[f"PYTEST_XDIST_WORKER{end}"] for end in ("", "_COUNT"))
    tests = sorted(config.rootpath.glob("tests/**/test_*.py"))
    wanted = [path for path in tests if not pytest_ignore_collect(path, config)]
    first = turned(wanted, int(place.removeprefix("gw")), int(processes))
    for path in (*config.rootpath.glob("tests/**/conftest.py"), *first):
        # What cannot be imported says so again when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    for item in items:
        parameters = item.callspec.id.split("-") if hasattr(item, "callspec") else []
        one_of_many = item.get_closest_marker("exhaustive") and crc32(item.nodeid.encode()) % 8
        if one_of_many or not _SLOW_PARAMETERS.isdisjoint(parameters):
            item.add_marker(pytest.mark.slow)
    yield  # what is not to run is left out
    # One that takes long and starts last is what all the other processes wait for.
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = dealt(items, seconds_of, processes)
