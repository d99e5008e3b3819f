"""Where the broker is, if the program does not say: the environment, then ``fairlead.toml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import InvalidInput
from fairlead.settings import configured_url


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def write(text: str | bytes) -> None:
    Path("fairlead.toml").write_bytes(text if isinstance(text, bytes) else text.encode())


def test_nothing_says_so() -> None:
    assert configured_url() is None
    write("# only a comment\n")
    assert configured_url() is None


def test_the_file_says_so() -> None:
    write('url = "redis://host/2"\n')
    assert configured_url() == "redis://host/2"


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://file"\n')
    monkeypatch.setenv("FAIRLEAD_URL", "redis://environment")
    assert configured_url() == "redis://environment"
    monkeypatch.setenv("FAIRLEAD_URL", "  ")
    assert configured_url() == "redis://file"


def test_only_the_working_directory_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    write('url = "redis://host"\n')
    Path("below").mkdir()
    monkeypatch.chdir("below")
    assert configured_url() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ulr = "redis://host"', r"the key 'ulr'.*did you mean url\?"),
        ('url = "redis://host"\nshards = 3', r"the key 'shards'.*it may have url"),
        ("[broker]\nurl = 5", "the key 'broker'"),
        ("url = 5", "has int as url; write a URL"),
        ('url = ""', "has an empty text as url"),
        ("url = redis://host", r"is not TOML .*a line of it looks like"),
        (b'url = "\xff"', "cannot be read .*readable text"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_to_do(text: str | bytes, words: str) -> None:
    write(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        configured_url()
    assert str(Path("fairlead.toml").absolute()) in str(caught.value)


def test_what_cannot_be_read_is_not_taken_for_missing() -> None:
    Path("fairlead.toml").mkdir()
    with pytest.raises(InvalidInput, match="cannot be read"):
        configured_url()
