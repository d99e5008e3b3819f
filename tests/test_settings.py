"""Where the broker is, if the program does not say: the environment, then ``fairlead.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, InvalidInput, InvalidOption
from fairlead.settings import Configured, configured


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.delenv("FAIRLEAD_TIMEOUT", raising=False)
    monkeypatch.chdir(tmp_path)


def write(text: str | bytes) -> None:
    Path("fairlead.toml").write_bytes(text if isinstance(text, bytes) else text.encode())


def test_nothing_says_so() -> None:
    assert configured() == Configured()
    write("# only a comment\n")
    assert configured() == Configured()


def test_the_file_says_so() -> None:
    write('url = "redis://host/2"\n')
    assert configured().url == "redis://host/2"


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://file"\n')
    monkeypatch.setenv("FAIRLEAD_URL", "redis://environment")
    assert configured().url == "redis://environment"
    monkeypatch.setenv("FAIRLEAD_URL", "  ")
    assert configured().url == "redis://file"


def test_it_is_known_who_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://file"\n[shards]\nmail = "m"\n')
    file = str(Path("fairlead.toml").absolute())
    assert configured() == Configured("redis://file", file, {"mail": "m"})
    monkeypatch.setenv("FAIRLEAD_URL", "redis://environment")
    assert configured() == Configured("redis://environment", "FAIRLEAD_URL", {"mail": "m"})


def test_only_the_working_directory_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://host"\n')
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert configured() == Configured()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ulr = "redis://host"', r"the key 'ulr'.*did you mean url\?"),
        ('url = "redis://host"\nshards = 3', r"no table of texts as shards; write \[shards\]"),
        ("[shards]\nmail = 3", "no table of texts as shards"),
        ("[broker]\nurl = 5", "the key 'broker'.*it may have ledger, routes, shards, timeout, url"),
        ("url = 5", "has int as url; write a URL"),
        ('url = ""', "has an empty text as url"),
        ("url = redis://host", r"is not TOML .*a line of it looks like"),
        (b'url = "\xff"', "cannot be read .*readable text"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_to_do(text: str | bytes, words: str) -> None:
    write(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        configured()
    assert str(Path("fairlead.toml").absolute()) in str(caught.value)


def test_what_cannot_be_read_is_not_taken_for_missing() -> None:
    Path("fairlead.toml").mkdir()
    with pytest.raises(InvalidInput, match="cannot be read"):
        configured()


def test_the_time_of_a_call_is_said_by_argument_url_environment_or_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limit(url: str = "memory://", **options: Any) -> float:
        return Fairlead(url, **options)._clients.limit

    assert limit() == 10.0
    write('timeout = "4s"')
    assert limit() == 4.0
    monkeypatch.setenv("FAIRLEAD_TIMEOUT", "3")
    assert limit() == 3.0
    assert limit("memory://?timeout=250ms") == 0.25
    assert limit("memory://?timeout=250ms", timeout="1m") == 60.0
    for wrong in ("soon", "0", "-1", "nan"):
        with pytest.raises(InvalidOption, match="timeout"):
            limit(f"memory://?timeout={wrong}")
    write("timeout = true")
    monkeypatch.delenv("FAIRLEAD_TIMEOUT")
    with pytest.raises(InvalidInput, match="as timeout; write a duration"):
        limit()


@pytest.mark.parametrize("text", ["soon", "0", "0.0001s"])
def test_a_wrong_time_limit_is_named_by_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    write(f'timeout = "{text}"')
    with pytest.raises(InvalidInput, match=rf"fairlead\.toml' has '{text}' as timeout"):
        Fairlead("memory://")
    monkeypatch.setenv("FAIRLEAD_TIMEOUT", text)
    with pytest.raises(InvalidInput, match=rf"FAIRLEAD_TIMEOUT is '{text}'; make it from 0\.001"):
        Fairlead("memory://")


def test_a_program_that_names_its_broker_does_not_depend_on_the_rest_of_the_file() -> None:
    write('timeout = "4s"\nurl = 5\nlater = "a key of a later release"\n')
    assert Fairlead("memory://")._clients.limit == 4.0
    with pytest.raises(InvalidInput, match="has int as url"):
        Fairlead()
    write('later = "a key of a later release"\n')
    with pytest.raises(InvalidInput, match="the key 'later', which Fairlead does not know"):
        Fairlead()


def test_shards_of_the_file_count_also_if_nobody_names_a_broker() -> None:
    write('[shards]\nmail = "m"\n')
    assert configured() == Configured(shards={"mail": "m"})
    assert Fairlead()._url == "embedded://?shards=mail=m"
