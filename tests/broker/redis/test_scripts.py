"""Scripts are put together from files."""

import re
from pathlib import Path
from typing import Any

import pytest

from fairlead.broker.redis.scripts import Script, load
from fairlead.broker.verbs import MAX_STEP
from tests.architecture.source import ROOT
from tests.support.servers import Running

LUA = ROOT / "src/fairlead/broker/redis/lua"


def write(root: Path, **files: str) -> Path:
    (root / "lib").mkdir()
    for name, text in files.items():
        path = root / f"{name.replace('lib_', 'lib/')}.lua"
        path.write_text(text, encoding="utf-8")
    return root


def lines_of(name: str, root: Path) -> list[str]:
    return load(name, root).source.decode().splitlines()


def run(running: Running, script: Script, *args: str) -> Any:
    running.admin("FUNCTION", "LOAD", "REPLACE", script.source)
    return running.admin("FCALL", script.function, 1, "key", *args)


def test_a_script_is_a_library_with_one_function_named_for_its_digest(tmp_path: Path) -> None:
    root = write(tmp_path, beat="-- beat: KEYS, ARGV, Returns\n\nlocal a = 1 -- one\n\nreturn a\n")

    script = load("beat", root)

    assert script.name == "beat"
    assert re.fullmatch(r"fairlead_beat_[0-9a-f]{16}", script.function)
    assert lines_of("beat", root)[0] == f"#!lua name={script.function}"
    assert "-- beat: KEYS, ARGV, Returns" not in lines_of("beat", root)


def test_another_text_is_another_function(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = load("beat", write(tmp_path / "a", beat="return 1\n"))
    two = load("beat", write(tmp_path / "b", beat="return 2\n"))

    assert one.function != two.function


def test_each_part_comes_once_where_it_is_first_named(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        fetch="-- @include move\n-- @include clock\nreturn 1\n",
        lib_move="-- @include clock\nfunction move() end\n",
        lib_clock="function clock() end\n",
    )

    wanted = ["function clock() end", "function move() end", "return 1"]
    assert [line for line in lines_of("fetch", root) if line in wanted] == wanted


def test_parts_share_functions_and_what_they_say_and_hide_the_rest(
    tmp_path: Path, valkey: Running
) -> None:
    root = write(
        tmp_path,
        fetch="-- @include a\n-- @include b\nreturn { up(2), limit, own_b() }\n",
        lib_a="-- @share limit\nlimit = 7\nlocal own = 1\nfunction up(n) return n + own end\n",
        lib_b="local own = 5\nfunction own_b() return own end\n",
    )

    assert run(valkey, load("fetch", root)) == [3, 7, 5]


def test_what_is_for_each_call_is_done_in_each_call(tmp_path: Path, valkey: Running) -> None:
    root = write(
        tmp_path,
        fetch="-- @include a\nseen[#seen + 1] = ARGV[1]\nreturn #seen\n",
        lib_a="-- @share seen\n-- @each\nseen = {}\nif ARGV[1] == 'no' then return 'refused' end\n"
        "-- @end\n",
    )
    script = load("fetch", root)

    assert [run(valkey, script, "x"), run(valkey, script, "y")] == [1, 1]
    assert run(valkey, script, "no") == b"refused"


def test_constants_are_put_in_except_in_texts(tmp_path: Path, valkey: Running) -> None:
    root = write(
        tmp_path,
        fetch="-- @include a\nreturn { COUNT + 1, 'COUNT' }\n",
        lib_a="-- @const COUNT=4 OTHER=5\n",
    )

    assert run(valkey, load("fetch", root)) == [5, b"COUNT"]


def test_scripts_go_in_the_steps_that_python_knows() -> None:
    assert f"started or nil, {MAX_STEP}, blocked)" in load("give_back").source.decode()


def test_flags_are_told_to_the_server(tmp_path: Path) -> None:
    root = write(tmp_path, settle="-- settle\n-- @flags allow-oom no-cluster\nreturn 1\n")

    assert lines_of("settle", root)[-1].endswith("flags = { 'allow-oom', 'no-cluster' } }")


def test_every_verb_of_ours_loads(valkey: Running) -> None:
    names = [path.stem for path in sorted(LUA.glob("*.lua"))]
    assert len(names) > 20
    for name in names:
        valkey.admin("FUNCTION", "LOAD", "REPLACE", load(name).source)


def _code(source: str) -> str:
    """A source without its texts and comments, which may say anything."""
    return re.sub(r"'(?:[^'\\\n]|\\.)*'|--[^\n]*", "''", source)


def test_what_is_a_field_of_the_table_is_named_as_one_everywhere() -> None:
    fields: set[str] = set()
    for path in sorted(LUA.glob("*.lua")):
        code = _code(load(path.stem).source.decode())
        far = set(re.findall(r"\bfunction far\.(\w+)", code))
        bare = {name for name in re.findall(r"(?<![\w.:])[A-Za-z_]\w*", code) if name in far}
        # "..name" looks like a field of something, and would be left as it is.
        joined = {name for name in re.findall(r"\.\.([A-Za-z_]\w*)", code) if name in far}
        assert bare | joined == set(), path.name
        fields |= far
    assert fields  # else nothing was looked at


def test_no_name_follows_two_dots_without_a_space() -> None:
    for path in sorted(LUA.rglob("*.lua")):
        joined = re.findall(r"\.\.[A-Za-z_]\w*", _code(path.read_text(encoding="utf-8")))
        assert joined == [], f"{path.name}: a space behind '..': it is taken for a field"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no script fetch.lua"),
        ({"fetch": "-- @include gone\n"}, "fetch.lua includes lib/gone.lua, which does not exist"),
        ({"fetch": "-- @include ../x\n"}, "fetch.lua includes '../x', which is no name of a part"),
        (
            {"fetch": "-- @include a\n", "lib_a": "-- @include b\n", "lib_b": "-- @include a\n"},
            "the includes of fetch.lua form a cycle: "
            "fetch.lua -> lib/a.lua -> lib/b.lua -> lib/a.lua",
        ),
        (
            {"fetch": "-- @include a\n", "lib_a": "-- @flags allow-oom\n"},
            "lib/a.lua sets @flags; only the verb's own file may do so",
        ),
    ],
)
def test_what_cannot_be_put_together_names_the_file(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    with pytest.raises(LookupError) as caught:
        load("fetch", write(tmp_path, **files))

    assert str(caught.value) == message


def test_a_script_is_read_once(tmp_path: Path) -> None:
    root = write(tmp_path, beat="return 1\n")

    assert load("beat", root) is load("beat", root)
