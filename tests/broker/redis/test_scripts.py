"""Scripts are put together from files."""

import hashlib
from pathlib import Path

import pytest

from fairlead.broker.redis.scripts import load


def write(root: Path, **files: str) -> Path:
    (root / "lib").mkdir()
    for name, text in files.items():
        path = root / f"{name.replace('lib_', 'lib/')}.lua"
        path.write_text(text, encoding="utf-8")
    return root


def test_a_script_is_sent_without_its_comments(tmp_path: Path) -> None:
    root = write(tmp_path, beat="-- beat: KEYS, ARGV, Returns\n\nlocal a = 1 -- one\n\nreturn a\n")

    script = load("beat", root)

    assert script.name == "beat"
    assert script.source == b"local a = 1 -- one\nreturn a\n"
    assert script.sha == hashlib.sha1(script.source).hexdigest()


def test_each_part_comes_once_where_it_is_first_named(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        fetch="-- @include move\n-- @include clock\nreturn 1\n",
        lib_move="-- @include clock\nfunction move() end\n",
        lib_clock="function clock() end\n",
    )

    lines = load("fetch", root).source.decode().splitlines()
    wanted = ["function clock() end", "function move() end", "return 1"]
    assert [line for line in lines if line in wanted] == wanted


def test_flags_become_the_first_line(tmp_path: Path) -> None:
    root = write(tmp_path, settle="-- settle\n-- @flags allow-oom no-cluster\nreturn 1\n")

    assert load("settle", root).source == b"#!lua flags=allow-oom,no-cluster\nreturn 1\n"


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
