"""Which server a queue or a priority has, as tables and URLs say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead, InvalidInput, InvalidOption
from fairlead.broker import address_of, connect, with_routes
from fairlead.broker.routes import split_routes
from fairlead.broker.sharded.places import Places
from fairlead.broker.topology import Topology, topology_of
from fairlead.cli.common.broker_option import broker_url
from fairlead.settings import configured

LOW = {"queue:reports": "redis://:hunter2@bulk", "priority:low": "redis://:hunter2@bulk"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FAIRLEAD_URL", "FAIRLEAD_ROUTES", "FAIRLEAD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def routed(url: str = "redis://main", **routes: str) -> Topology:
    """The topology of routes given as ``queue_reports="redis://bulk"``."""
    table = {key.replace("_", ":", 1): value for key, value in routes.items()}
    return topology_of(with_routes(url, table))


def test_a_url_holds_the_routes_and_shows_no_password() -> None:
    url = with_routes("redis://main?timeout=2s", LOW)
    assert split_routes(url) == ("redis://main?timeout=2s", LOW)
    shown = address_of(url)
    assert shown == (
        "redis://main:6379 (routes: priority:low=redis://bulk:6379, "
        "queue:reports=redis://bulk:6379)"
    )
    assert with_routes("redis://main", {}) == "redis://main"
    assert address_of("redis://main?shards=a=b") == "redis://main:6379 (shards: a=b)"


def test_tasks_of_a_priority_have_a_shard_of_their_own() -> None:
    found = topology_of(with_routes("redis://main", LOW))
    assert list(found.servers) == ["0", "bulk_levels", "bulk"]
    assert (found.queues, found.levels) == ({"reports": "bulk"}, {3: "bulk_levels"})
    assert {each.url for each in found.servers.values()} == {
        "redis://main",
        "redis://:hunter2@bulk",
    }


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://bulk", "bulk"),
        ("redis://user:other@bulk:6379/0", "bulk"),
        ("valkey://bulk", "bulk"),
        ("rediss://bulk?verify=0", "bulk"),
        ("redis://bulk:6380/2", "bulk_6380_2"),
        ("redis://10.0.0.7", "10_0_0_7"),
        ("unix:///run/valkey.sock?db=3", "run_valkey_sock_3"),
        ("redis+sentinel://a,b/bulk", "bulk"),
        ("redis+sentinel://b,c,d/bulk", "bulk"),
        ("embedded://data", "data"),
        ("redis://a-long-name.of-a-server.example.com", "a_long_name_of__a33dc845"),
        ("redis+cluster://a,b?shard=low", "low"),
        ("redis://elsewhere?shard=bulk&timeout=3", "bulk"),
    ],
)
def test_a_shard_is_named_after_its_server_and_neither_order_nor_password_matter(
    url: str, name: str
) -> None:
    found = routed(queue_a=url, queue_b="redis://another")
    assert found.queues == {"a": name, "b": "another"}
    assert routed(queue_b="redis://another", queue_a=url).queues == found.queues


def test_a_route_to_the_server_of_the_url_itself() -> None:
    assert routed(queue_a="redis://main").queues == {"a": "0"}
    found = routed(queue_a="redis://bulk", priority_low="redis://main/0")
    assert found.levels == {3: "0_levels"}
    assert found.servers["0_levels"].url == "redis://main"


@pytest.mark.parametrize(
    ("url", "routes", "words"),
    [
        ("redis://main", {"priority:urgent": "redis://b"}, "'priority:urgent'.*critical, high"),
        ("redis://main", {"reports": "redis://b"}, "'reports'.*queue:NAME"),
        ("redis://main", {"queue:a b": "redis://b"}, "'queue:a b'"),
        ("redis://main", {"queue:": "redis://b"}, "'queue:'"),
        ("redis://main", {5: "redis://b"}, "route=5"),
        ("redis://main", {"queue:a": 5}, "route queue:a.*the URL of a broker"),
        ("redis://main", {"queue:a": "hunter2"}, "route queue:a.*the URL of a broker"),
        ("redis://main", {"queue:a": "memory://"}, "route queue:a='memory://…'.*one of embedded"),
        ("redis://main", {"queue:a": "http://u:hunter2@b"}, "route queue:a='http://…'"),
        ("redis://main", {"queue:a": "redis://b?shards=a=b"}, "queue:a.*without shards"),
        ("redis://main", {"queue:a": "redis://b?routes=x"}, "queue:a.*without routes"),
        ("redis://main", {"queue:a": "redis+cluster://b"}, r"a cluster with \?shard=NAME"),
        ("memory://", {"queue:a": "redis://b"}, "queue:a.*unless the tasks live on a server"),
        ("redis://main?shards=a=s", {"queue:a": "redis://b"}, "'queue:a'.*left out of the shards"),
        (
            "redis://main",
            {"queue:a": "redis://b", "queue:c": "redis://:hunter2@b"},
            "queue:c='redis://b:6379'.*the same user, password",
        ),
        ("redis://:hunter2@main", {"queue:a": "redis://main"}, "the same user, password"),
        (
            "redis://main",
            {"queue:a": "redis://x-y", "queue:b": "redis://x_y"},
            r"queue:b.*not named x_y as that of redis://x-y:6379: name it by \?shard",
        ),
        ("redis://main", {"queue:a": "redis://b?shard=0"}, "not named 0 as that of redis://main"),
        ("redis://main?shards=q=b", {"queue:a": "redis://b"}, "not named b as another one"),
    ],
)
def test_what_is_wrong_is_named_without_a_password(url: str, routes: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words) as caught:
        connect(url, routes=routes)
    assert "hunter2" not in str(caught.value)


def test_routes_are_said_by_argument_environment_or_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fairlead.toml").write_text(
        'url = "redis://main"\n[routes]\n"priority:low" = "redis://file"\n'
    )
    assert configured().routes == {"priority:low": "redis://file"}
    expected = with_routes("redis://main", {"priority:low": "redis://file"})
    assert Fairlead()._url == expected
    assert broker_url(None)[0] == expected
    monkeypatch.setenv("FAIRLEAD_ROUTES", "queue:a=redis://one?shard=x\n  priority:low=redis://two")
    expected = with_routes(
        "redis://main", {"queue:a": "redis://one?shard=x", "priority:low": "redis://two"}
    )
    assert Fairlead()._url == expected == broker_url(None)[0]
    mine = {"priority:high": "redis://mine"}
    assert Fairlead(routes=mine)._url == with_routes("redis://main", mine)
    assert Fairlead("redis://other", routes=mine)._url == with_routes("redis://other", mine)
    assert Fairlead("redis://other")._url == "redis://other"  # the program says all of it
    monkeypatch.setenv("FAIRLEAD_URL", "memory://")
    assert Fairlead()._url == "memory://"
    with pytest.raises(InvalidOption, match="routes"):
        Fairlead(routes=mine, store=connect("memory://"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("priority:low=redis://a priority:low=redis://b", "'priority:low' twice"),
        ("redis://:hunter2@a", "a part without ="),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv("FAIRLEAD_ROUTES", text)
    with pytest.raises(InvalidInput, match=f"FAIRLEAD_ROUTES .*{words}") as caught:
        configured()
    assert "hunter2" not in str(caught.value)


def test_levels_above_are_asked_first_and_every_eighth_turn_begins_elsewhere() -> None:
    shards = ("0", "q", "high", "low", "old")
    places = Places(shards, {"b": "q"}, levels={0: "high", 1: "high", 3: "low"}, drained=["old"])
    orders = [list(places.split(["b", "a"], turn)) for turn in range(8 * 4)]
    assert orders[0] == ["high", "q", "0", "low", "old"]
    assert [order for order in orders if order != orders[0]] == [
        ["q", "0", "high", "low", "old"],
        ["low", "high", "q", "0", "old"],
        ["old", "high", "q", "0", "low"],
        ["q", "0", "high", "low", "old"],
    ]
    assert places.split(["b", "a"])["low"] == ["b", "a"]
    assert places.split(["b", "a"])["q"] == ["b"]
    assert places.shards_of("a") == ["high", "0", "low", "old"]
    assert places.placed("a", 2) == "0"
    plain = Places(shards, {"b": "q"})
    assert all(list(plain.split(["b", "a"], turn)) == ["q", "0"] for turn in range(16))


def test_all_levels_may_be_routed() -> None:
    places = Places(("0", "x"), {}, levels=dict.fromkeys(range(4), "x"))
    assert list(places.split(["a"])) == ["x", "0"]  # what waits there from before is served
