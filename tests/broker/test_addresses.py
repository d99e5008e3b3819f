"""What a URL says beside its server: the shards of queues, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.broker import address_of, connect
from fairlead.broker.shards import split_shards, with_shards
from fairlead.model.errors import InvalidName, InvalidOption


@pytest.mark.parametrize(
    ("url", "rest", "routes"),
    [
        ("redis://host", "redis://host", {}),
        ("redis://host?shards=a=b", "redis://host", {"a": "b"}),
        (
            "rediss://host/2?verify=0&shards=a.b-c=b,c=0&ca=x",
            "rediss://host/2?verify=0&ca=x",
            {"a.b-c": "b", "c": "0"},
        ),
        ("embedded://data?shards=a=b", "embedded://data", {"a": "b"}),
    ],
)
def test_shards_are_taken_out_of_a_url_and_put_in(
    url: str, rest: str, routes: dict[str, str]
) -> None:
    assert split_shards(url) == (rest, routes)
    assert split_shards(with_shards(rest, routes)) == (rest, routes)


@pytest.mark.parametrize("said", ["", "a", "a=", "=b", "a=b,", "a=b,a=c", "a=b&shards=c=d", "ä=b"])
def test_shards_that_are_not_understood_are_refused(said: str) -> None:
    with pytest.raises((InvalidOption, InvalidName)):
        connect(f"redis://host?shards={said}")


def test_shards_are_said_once() -> None:
    with pytest.raises(InvalidOption, match="left out of the URL"):
        connect("redis://host?shards=a=b", shards={"a": "b"})


def test_an_address_is_shown_without_what_is_secret() -> None:
    shown = address_of("rediss://me:hunter2@host/3?verify=0&shards=far=other")
    assert shown == "rediss://host:6379/3 (shards: far=other)"
    assert address_of("embedded://data?fsync=always") == f"embedded://{Path('data').absolute()}"
    assert address_of("memory://") == "memory://"


@pytest.mark.parametrize("url", ["redis://host:6379", "rediss://host:6379/2", "memory://"])
def test_an_address_is_shown_without_its_time_limit(url: str) -> None:
    assert address_of(f"{url}?timeout=5") == url


def test_an_address_is_shown_with_its_shards_and_without_its_time_limit() -> None:
    shown = address_of("redis://host/3?timeout=5&shards=far=other")
    assert shown == "redis://host:6379/3 (shards: far=other)"
