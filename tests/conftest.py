from __future__ import annotations

import gc
from collections.abc import Generator
from zlib import crc32

import pytest
from _pytest.unraisableexception import collect_unraisable
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support import surroundings  # noqa: F401 - the first of ours
from tests.support.apps import app  # noqa: F401 - a fixture for all
from tests.support.fair import EXAMPLES
from tests.support.forks import Forks, importing_from_the_end
from tests.support.postgres import ledger, ledger_dsn, postgres  # noqa: F401 - fixtures for all
from tests.support.processor_times import ProcessorTimes

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jobs", type=int, default=1, help="Run the tests in so many processes.")
    parser.addoption("--processor-times", action="store_true", help="List who took how much.")
    parser.addoption(
        "--find-leaks", action="store_true", help="Let the test fail that left something open."
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("processor_times"):
        config.pluginmanager.register(ProcessorTimes())
    jobs = config.getoption("jobs")
    if jobs > 1 and not config.getoption("usepdb"):
        config.pluginmanager.register(Forks(config, jobs))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is imported and collected stays: no need to look through it again and again."""
    gc.disable()
    try:
        with importing_from_the_end(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Otherwise the collector finds what was left when it comes round, in some other test."""
    yield
    if item.config.getoption("find_leaks"):
        gc.collect()
        collect_unraisable(item.config)


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
    items.sort(key=lambda item: item.get_closest_marker("serial") is not None)
