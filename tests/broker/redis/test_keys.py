"""What is stored is written down, and each name is spelled in one place."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.broker.redis.keys import KINDS
from tests.architecture.source import ROOT

LUA = ROOT / "src/fairlead/broker/redis/lua"
DOC = ROOT / "docs/internals/keys.md"
_SPELLED = re.compile(r"(?:P \.\. |agenda\()'([a-z-]+:?)'")


def _in_scripts() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(LUA.rglob("*.lua")))
    return set(_SPELLED.findall(text))


def _documented() -> set[str]:
    names = re.findall(r"`([a-z-]+:?)(?:<[a-z]+>|`|,)", DOC.read_text(encoding="utf-8"))
    return set(names)


def test_every_key_that_a_script_spells_is_a_key_that_python_knows() -> None:
    assert {name for name in _in_scripts() if name not in KINDS} == set()


def test_every_key_is_documented() -> None:
    documented = _documented()
    assert {name for name in KINDS if name not in documented} == set()


def test_no_other_python_file_spells_a_key() -> None:
    """A name behind the prefix of a shard stands in keys.py only."""
    package = ROOT / "src/fairlead/broker/redis"
    found = [
        str(path.relative_to(ROOT))
        for path in package.rglob("*.py")
        if path.name != "keys.py" and _spells_prefix(path)
    ]
    assert found == []


def _spells_prefix(path: Path) -> bool:
    return re.search(r"fl1:\{|prefix\}[a-z]", path.read_text(encoding="utf-8")) is not None
