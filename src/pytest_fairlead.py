"""Fixtures for pytest. Fairlead is not imported before a test asks for one of them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fairlead import Fairlead
    from fairlead.testing import Kit, ManualClock


def pytest_addoption(parser: pytest.Parser) -> None:
    """Learn which app is to be tested."""
    parser.addini("fairlead_app", "The app under test, as in `fairlead worker`: module:name.")


@pytest.fixture
def fairlead_target(pytestconfig: pytest.Config) -> Fairlead | None:
    """The app under test: the one that the setting ``fairlead_app`` names; None: a new one.

    Define a fixture of this name in conftest.py to say it in code.
    """
    name = str(pytestconfig.getini("fairlead_app"))
    if not name:
        return None
    if ":" not in name:
        raise pytest.UsageError(f"fairlead_app must be module:name, such as shop.tasks:app: {name}")
    found: object = pkgutil.resolve_name(name)
    from fairlead import Fairlead

    if not isinstance(found, Fairlead):
        raise pytest.UsageError(f"fairlead_app {name} is no Fairlead app: {type(found).__name__}")
    return found


@pytest.fixture
def fairlead_kit(fairlead_target: Fairlead | None) -> Iterator[Kit]:
    """The app under test in memory, empty, with a clock that stands still: see ``Kit``."""
    from fairlead.testing import Kit

    with Kit(fairlead_target) as kit:
        yield kit


@pytest.fixture
def fairlead_app(fairlead_kit: Kit) -> Fairlead:
    """The app of the kit."""
    return fairlead_kit.app


@pytest.fixture
def fairlead_clock(fairlead_kit: Kit) -> ManualClock:
    """The clock of the kit."""
    return fairlead_kit.clock
