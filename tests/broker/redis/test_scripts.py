"""Scripts are put together from files."""

import re
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from fairlead.broker.redis.address import parse
from fairlead.broker.redis.connection import Server
from fairlead.broker.redis.scripts import Script, evaluated, load, located
from fairlead.broker.requests import MAX_STEP
from fairlead.model.errors import Refused
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


def test_remarks_do_not_make_another_function_and_parts_do(tmp_path: Path) -> None:
    texts = ("return 1\n", "-- a remark\n\nreturn 1\n", "return 2\n")
    found = []
    for number, text in enumerate(texts):
        (folder := tmp_path / str(number)).mkdir()
        found.append(load("beat", write(folder, beat="-- @include a\nreturn 0\n", lib_a=text)))

    assert found[0].function == found[1].function
    assert found[0].source == found[1].source
    assert found[0].function != found[2].function


def test_each_part_comes_once_where_it_is_first_named(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        fetch="-- @include move\n-- @include clock\nreturn 1\n",
        lib_move="-- @include clock\nfunction move() end\n",
        lib_clock="function clock() end\n",
    )

    wanted = ["function clock() end", "function move() end", "return 1"]
    assert [line for line in lines_of("fetch", root) if line in wanted] == wanted


def test_a_library_has_the_parts_that_it_includes_and_no_others(tmp_path: Path) -> None:
    parts = "-- @part one\n-- @include a.two\nlocal one = 1\n-- @part two\nlocal two = 2\n"
    found = []
    for number, more in enumerate(("-- @part three\nlocal three = 3\n", "")):
        (folder := tmp_path / str(number)).mkdir()
        root = write(folder, fetch="-- @include a.one\nreturn 1\n", lib_a=f"{more}{parts}")
        code = [line for line in lines_of("fetch", root) if re.match(r"local \w+ = \d", line)]
        assert code == ["local two = 2", "local one = 1"]
        found.append(load("fetch", root).library)

    assert found[0] == found[1], "what a library does not include is no part of its digest"


def test_an_error_of_the_server_names_file_and_line(tmp_path: Path, valkey: Running) -> None:
    root = write(
        tmp_path,
        fetch="-- fetch: a verb\n\n-- @include a.two\nlocal n = 1\nreturn two(n)\n",
        lib_a="-- @part one\nfunction one(n) return n end\n\n"
        "-- @part two\n-- @include a.one\n-- Fails.\nfunction two(n)\n  return one(n).x.y\nend\n",
    )
    script = load("fetch", root)
    for call in (("FCALL", script.function), ("EVAL", evaluated(script).source)):
        valkey.admin("FUNCTION", "LOAD", "REPLACE", script.source)
        with pytest.raises(ResponseError) as caught:
            valkey.admin(*call, 1, "key")
        assert located(script, str(caught.value)).startswith("lib/a.lua:8: attempt to index")

    broken = script.source.replace(b"local n = 1", b"local n = = 1")
    with pytest.raises(ResponseError) as caught:
        valkey.admin("FUNCTION", "LOAD", "REPLACE", broken)
    assert "fetch.lua:4: unexpected symbol" in located(script, str(caught.value))


async def test_a_caller_is_told_file_and_line(tmp_path: Path, valkey: Running) -> None:
    root = write(
        tmp_path, fetch="-- @include a\nreturn fail()\n", lib_a="function fail() no() end\n"
    )
    server = Server(parse(valkey.url))
    try:
        with pytest.raises(Refused, match=r"lib/a\.lua:1: .* 'no'"):
            await server.run(load("fetch", root), "key", [])
    finally:
        await server.close()


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
        lib_a="-- @share seen\nbegins[#begins + 1] = function()\n"
        "seen = {}\nif ARGV[1] == 'no' then return 'refused' end\nend\n",
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


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no script fetch.lua"),
        ({"fetch": "-- @include gone\n"}, "fetch.lua includes gone, which does not exist"),
        ({"fetch": "-- @include ../x\n"}, "fetch.lua includes '../x', which is no name of a part"),
        (
            {"fetch": "-- @include a\n", "lib_a": "-- @include b\n", "lib_b": "-- @include a\n"},
            "includes form a cycle: fetch.lua -> a -> b -> a",
        ),
        (
            {"fetch": "-- @include a\n", "lib_a": "-- @flags allow-oom\n"},
            "a sets @flags; only the verb's own file may do so",
        ),
        (
            {"fetch": "-- @include a.y\n", "lib_a": "-- @part x\n"},
            "fetch.lua includes a.y, which does not exist",
        ),
        ({"fetch": "\n-- @each\n"}, "fetch.lua:2: there is no directive @each"),
    ],
)
def test_what_cannot_be_put_together_names_the_file(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    with pytest.raises(LookupError) as caught:
        _ = load("fetch", write(tmp_path, **files)).source

    assert str(caught.value) == message


def test_a_script_is_read_once(tmp_path: Path) -> None:
    root = write(tmp_path, beat="return 1\n")

    assert load("beat", root) is load("beat", root)
