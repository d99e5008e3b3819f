"""Databases for the tests of transactions: one for each module, because making one takes long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    """A database with a table of the caller's own beside those of Fairlead."""
    with postgres.database() as made:
        postgres.execute("create table orders (n integer)", dsn=made)
        yield made


@pytest.fixture(scope="module")
def empty(postgres: Postgres) -> Iterator[str]:
    """A database without the schema."""
    with postgres.database("template0") as made:
        yield made


@pytest.fixture
def dsn(database: str, postgres: Postgres) -> str:
    """The database of this module, with nothing in its tables: making one takes long."""
    postgres.execute(
        "delete from orders; delete from fairlead.tasks; delete from fairlead.flows", dsn=database
    )
    return database
