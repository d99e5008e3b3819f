"""Lua files say what they are for, and a name is defined where one looks for it."""

import re
from pathlib import Path

from fairlead.broker.redis.linker import Part, parse
from tests.architecture.source import ROOT, at, files, plant

LUA = "src/fairlead/broker/redis/lua"
CONTRACT = ("ARGV", "Returns")

_DEFINED = re.compile(r"(?:local )?(?:function )?([\w.]+)(?:\(| = )")


def verbs_without_contract(root: Path) -> list[str]:
    """Each verb opens with comment lines that name its ARGV and what it Returns."""
    found = []
    for path in files(root, LUA, ".lua"):
        if path.parent == root / LUA:
            opening = re.match(r"(?:--.*(?:\n|$))*", path.read_text(encoding="utf-8"))
            header = opening.group() if opening else ""
            missing = [word for word in CONTRACT if not re.search(rf"\b{word}\b", header)]
            if missing:
                found.append(at(root, path, 1, f"the header does not name {', '.join(missing)}"))
    return found


def libraries_without_header(root: Path) -> list[str]:
    """What is shared opens with what it is; a list of what it reads and returns says nothing."""
    return [
        at(root, path, 1, "no line says what it is")
        for path in files(root, f"{LUA}/lib", ".lua")
        if not re.match(r"-- [A-Z]", path.read_text(encoding="utf-8"))
    ]


def misleading_names(root: Path) -> list[str]:
    """A part named x defines x, or something with x in its name; no other file defines an x()."""
    found = []
    homes: dict[str, Path] = {}  # by name of a file or a part
    functions: dict[str, Path] = {}  # by name of a function that others may use
    for path in files(root, f"{LUA}/lib", ".lua"):
        parts = parse(path.name, path.read_text(encoding="utf-8"))
        homes[path.stem] = path
        for name, part in parts.items():
            defined = _defined(part)
            functions |= {word: path for word in defined if f"function {word}(" in _code(part)}
            own = name or path.stem
            homes[own] = path
            if part.lines and not any(own.rstrip("s") in word for word in defined):
                found.append(at(root, path, 1, f"part {own} defines nothing of that name"))
    for name, home in homes.items():
        if name in functions and functions[name] != home:
            found.append(at(root, functions[name], 1, f"defines {name}(), the name of {home.stem}"))
    return found


def _defined(part: Part) -> set[str]:
    """What a part defines at its outermost level, or lets others use."""
    lines = (match[1] for line in part.lines if (match := _DEFINED.match(line)))
    return {*lines, *part.words("share")}


def _code(part: Part) -> str:
    return "\n".join(line for line in part.lines if line.startswith("function "))


def test_each_verb_opens_with_its_contract() -> None:
    assert verbs_without_contract(ROOT) == []


def test_each_library_says_what_it_is() -> None:
    assert libraries_without_header(ROOT) == []


def test_a_part_defines_what_it_is_named_for() -> None:
    assert misleading_names(ROOT) == []


def test_the_rule_of_verbs_wants_the_contract_at_the_top(tmp_path: Path) -> None:
    contract = "-- ARGV[1] the incarnation\n-- Returns how many are kept\n"
    plant(tmp_path, f"{LUA}/beat.lua", f"{contract}return 0\n")
    plant(tmp_path, f"{LUA}/lib/a.lua", "-- What is shared has another rule.\n")
    assert verbs_without_contract(tmp_path) == []

    plant(tmp_path, f"{LUA}/beat.lua", f"return 0\n{contract}")
    assert verbs_without_contract(tmp_path) == [
        f"{LUA}/beat.lua:1: the header does not name ARGV, Returns"
    ]


def test_a_function_that_is_not_where_its_name_says_is_found(tmp_path: Path) -> None:
    plant(tmp_path, f"{LUA}/lib/ends.lua", "-- @part finish\nfunction finish_all() end\n")
    assert misleading_names(tmp_path) == []

    plant(tmp_path, f"{LUA}/lib/kept.lua", "-- @part keep\nfunction finish() end\n")
    assert misleading_names(tmp_path) == [
        f"{LUA}/lib/kept.lua:1: part keep defines nothing of that name",
        f"{LUA}/lib/kept.lua:1: defines finish(), the name of ends",
    ]
