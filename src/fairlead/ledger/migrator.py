"""Brings the schema of a ledger up to date: numbered files, each in a transaction of its own.

An advisory lock lets one process at a time do it; the others wait and find it done. What was
applied stands in ``fairlead.migrations``. Files only add: processes of the release before go on
working while the next one's migrations are applied, and after.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.ledger.address import psycopg_of
from fairlead.ledger.errors import meaning
from fairlead.ledger.pool import Pool
from fairlead.model.ledger_errors import LedgerRefused, LedgerUnreachable

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_LOCK = 0x666C_6D69  # "flmi": whoever migrates holds this advisory lock
_LOCK_IN = 60.0  # seconds to wait for another process that migrates
_ANSWER_IN = 15.0  # seconds for what takes milliseconds
_STEP_IN = 3600.0  # seconds for one migration, which may have to make an index
_PAUSE = 0.05
_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")
_UNDEFINED = ("42P01", "3F000")

_PREPARE = """
create schema if not exists fairlead;
create table if not exists fairlead.migrations (
    number     integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp()
);
"""


class Migration(msgspec.Struct, frozen=True):
    """One file of ``ledger/migrations``."""

    number: int
    name: str
    text: str


class SchemaStatus(msgspec.Struct, frozen=True):
    """Which migrations a ledger has, by name."""

    applied: list[str]
    pending: list[str]
    unknown: list[str]  # of a later release

    @property
    def is_usable(self) -> bool:
        """Whether this release can work with it; what a later one added does no harm."""
        return not self.pending


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations of this release, in their order."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files("fairlead.ledger").joinpath("migrations").iterdir()
        if (match := _FILE.match(file.name))
    ]
    return tuple(sorted(found, key=lambda each: each.number))


async def migrate(
    pool: Pool, steps: Sequence[Migration] | None = None, *, timeout: float = _LOCK_IN
) -> list[str]:
    """Apply what is missing of ``steps``, those of this release; the names of what was applied.

    Several processes may call it at once. ``timeout`` is how long to wait for another one.
    """
    psycopg = psycopg_of()
    wanted = migrations() if steps is None else steps
    connection = await pool.connect()
    try:
        async with asyncio.timeout(timeout + _ANSWER_IN):
            await _lock(connection, pool, timeout)
            had = {number for number, _ in await _applied(connection)}
            missing = [each for each in wanted if each.number not in had]
            if missing:  # else no rights are needed
                await connection.execute(_PREPARE)
        done = []
        for each in missing:
            await _apply(connection, each)
            done.append(_name(each.number, each.name))
    except psycopg.errors.InsufficientPrivilege as error:
        raise LedgerRefused(
            "permission",
            f"the ledger at {pool.where} refuses (42501): migrate as the owner of the schema "
            "fairlead, or if there is none yet as a role that may create it: `grant create on "
            "database`",
            "42501",
        ) from error
    except psycopg.Error as error:
        raise meaning(error, pool.where, is_in_doubt=True) from error
    except TimeoutError as error:
        raise LedgerUnreachable(f"the ledger at {pool.where} does not answer") from error
    else:
        return done
    finally:
        await connection.close()  # which lets go of the lock


async def _apply(connection: AsyncConnection[Any], step: Migration) -> None:
    # It may take longer than what other statements may.
    async with asyncio.timeout(_STEP_IN), connection.transaction():
        await connection.execute("set local statement_timeout = 0")
        await connection.execute(step.text)
        await connection.execute(
            "insert into fairlead.migrations (number, name) values (%s, %s)",
            (step.number, step.name),
        )


async def schema_status(pool: Pool) -> SchemaStatus:
    """Return which migrations the ledger has."""
    psycopg = psycopg_of()
    connection = await pool.connect()
    try:
        async with asyncio.timeout(_ANSWER_IN):
            applied = await _applied(connection)
    except psycopg.Error as error:
        raise meaning(error, pool.where, is_in_doubt=False) from error
    except TimeoutError as error:
        raise LedgerUnreachable(f"the ledger at {pool.where} does not answer") from error
    finally:
        await connection.close()
    known = {each.number for each in migrations()}
    had = {number for number, _ in applied}
    return SchemaStatus(
        applied=[_name(number, name) for number, name in applied if number in known],
        pending=[_name(each.number, each.name) for each in migrations() if each.number not in had],
        unknown=[_name(number, name) for number, name in applied if number not in known],
    )


async def check_schema(pool: Pool) -> None:
    """Refuse a ledger whose schema is missing or older than this release."""
    found = await schema_status(pool)
    if not found.is_usable:
        has = "has no schema" if not found.applied else f"lacks {', '.join(found.pending)}"
        raise LedgerRefused(
            "schema", f"the ledger at {pool.where} {has}; run `fairlead db migrate`"
        )


async def _lock(connection: AsyncConnection[Any], pool: Pool, timeout: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    while True:
        cursor = await connection.execute("select pg_try_advisory_lock(%s)", (_LOCK,))
        row = await cursor.fetchone()
        if row is not None and row[0]:
            return
        if loop.time() > until:
            raise LedgerUnreachable(
                f"another process has been migrating the ledger at {pool.where} for {timeout:g} s; "
                "look for it in pg_stat_activity, or try again"
            )
        await asyncio.sleep(_PAUSE)


async def _applied(connection: AsyncConnection[Any]) -> list[tuple[int, str]]:
    psycopg = psycopg_of()
    try:
        cursor = await connection.execute(
            "select number, name from fairlead.migrations order by number"
        )
        return [(int(number), str(name)) for number, name in await cursor.fetchall()]
    except psycopg.Error as error:
        if error.sqlstate in _UNDEFINED:
            return []
        raise


def _name(number: int, name: str) -> str:
    return f"{number:04d}_{name}"
