"""The options of an embedded server, in a call and in a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.embedded.options import parse_embedded
from fairlead.embedded.valkey import EmbeddedValkey
from fairlead.model.errors import InvalidOption


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("embedded://", ".fairlead"),
        ("embedded://.fairlead", ".fairlead"),
        ("embedded://./x", "x"),
        ("embedded://../x/Y", "../x/Y"),
        ("embedded:///var/lib/fairlead", "/var/lib/fairlead"),
        ("EMBEDDED://data", "data"),
        ("embedded://with%20space%3F", "with space?"),
        ("embedded://a@b:c", "a@b:c"),
    ],
)
def test_a_url_names_a_path(url: str, path: str) -> None:
    assert parse_embedded(url) == (Path(path), {})


def test_a_url_may_carry_options_that_the_server_takes() -> None:
    path, options = parse_embedded("embedded://x?fsync=always&dies_with_owner=true&start_timeout=3")
    assert options == {"fsync": "always", "dies_with_owner": True, "start_timeout": 3.0}
    EmbeddedValkey(path, **options)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://x", "it must be embedded://PATH"),
        ("embedded:x", "it must be embedded://PATH"),
        ("embedded://x?fsync", "option=value"),
        ("embedded://x?fsync=never", "fsync='never' is not valid: it must be everysec or always"),
        ("embedded://x?fsync=", "everysec or always"),
        ("embedded://x?fsync=always&fsync=always", "given once"),
        ("embedded://x?dies_with_owner=maybe", "true or false"),
        ("embedded://x?start_timeout=soon", "a number of seconds above 0"),
        ("embedded://x?start_timeout=nan", "a number of seconds above 0"),
        ("embedded://x?port=1", "one of the options dies_with_owner, fsync, start_timeout"),
    ],
)
def test_a_url_that_is_not_understood_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_embedded(url)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"path": ""},
        {"path": "a\0b"},
        {"fsync": "no"},
        {"fsync": None},
        {"start_timeout": 0},
        {"start_timeout": -1.0},
        {"start_timeout": True},
        {"start_timeout": float("inf")},
        {"start_timeout": "10"},
    ],
)
def test_bad_options_are_refused_before_anything_is_made(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption):
        EmbeddedValkey(**options)
    assert list(tmp_path.iterdir()) == []
