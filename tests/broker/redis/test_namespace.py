"""Installations that share a server do not meet, and the usual keys are what they were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from fairlead import Fairlead
from fairlead.broker import address_of, connect, destination_of, with_namespace, with_routes
from fairlead.broker.redis.keys import Keys
from fairlead.broker.topology import topology_of
from fairlead.model.errors import InvalidInput, InvalidName, InvalidOption
from tests.cli.running import answered
from tests.support.servers import Running, cluster, shared


@pytest.fixture
def valkey() -> Iterator[Running]:
    with shared() as running:
        yield running


def app_of(url: str, namespace: str | None = None) -> Fairlead:
    app = Fairlead(url, namespace=namespace)

    @app.task(name="where", unique="one")
    async def where() -> str:
        return str(namespace)

    return app


def keys_of(valkey: Running) -> set[bytes]:
    return {key.partition(b"}")[0] for key in valkey.admin("KEYS", "fl1:*")}


async def test_two_on_one_server_have_their_own_tasks_workers_tokens_and_limits(
    valkey: Running,
) -> None:
    async with app_of(valkey.url, "a") as a, app_of(valkey.url, "b") as b, app_of(valkey.url) as c:
        first, second, third = [
            await app.registered("where").using(id="same").aenqueue() for app in (a, b, c)
        ]
        assert not second.duplicate
        assert not third.duplicate
        await a.aconfigure_tenant("acme", weight=3)
        async with a.worker():
            assert await first.aresult(timeout=30) == "a"
            assert len(await a.aworkers()) == 1
            assert await b.aworkers() == []
        assert (await second.ainfo()).state == "queued"
        assert await b.drain() == 1
        assert await second.aresult(timeout=30) == "b"
        assert (await third.ainfo()).state == "queued"
        for app in (a, b, c):
            assert await app._clients.store.audit() == []
    assert keys_of(valkey) == {b"fl1:{a/0", b"fl1:{b/0", b"fl1:{0"}


async def test_a_worker_that_waits_is_woken_by_its_own_namespace(valkey: Running) -> None:
    async with app_of(valkey.url, "a") as a, app_of(valkey.url, "b") as b, a.worker():
        await asyncio.sleep(0.2)  # it has nothing to do, and blocks
        await b.registered("where").aenqueue()
        handle = await a.registered("where").aenqueue()
        assert await handle.aresult(timeout=5) == "a"


async def test_it_stands_in_the_url_or_in_the_settings_and_the_url_goes_first(
    valkey: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairlead.toml").write_text('namespace = "file"\n')
    async with app_of(valkey.url) as app:
        await app.registered("where").aenqueue()
    monkeypatch.setenv("FAIRLEAD_NAMESPACE", "variable")
    async with app_of(valkey.url) as app:
        await app.registered("where").aenqueue()
    async with app_of(f"{valkey.url}?namespace=url", "argument") as app:
        await app.registered("where").aenqueue()
    assert keys_of(valkey) == {b"fl1:{file/0", b"fl1:{variable/0", b"fl1:{url/0"}


def test_commands_look_into_the_namespace_of_the_settings(valkey: Running) -> None:
    with app_of(valkey.url, "a") as app:
        app.registered("where").enqueue()
    inside = answered("task", "list", "--url", valkey.url, FAIRLEAD_NAMESPACE="a")
    assert "where" in inside.stdout
    assert "where" not in answered("task", "list", "--url", valkey.url).stdout
    shown = answered("config", "namespace", FAIRLEAD_NAMESPACE="a")
    assert shown.stdout.split() == ["namespace", "a", "FAIRLEAD_NAMESPACE"]


def test_shards_and_routes_belong_to_it_too() -> None:
    url = with_routes("redis://one?namespace=a&shards=mail=1", {"queue:bulk": "redis://two"})
    found = topology_of(url)
    assert {server.namespace for server in found.servers.values()} == {"a"}
    other = with_routes("redis://one?namespace=a", {"queue:bulk": "redis://two?namespace=b"})
    assert {each.namespace for each in topology_of(other).servers.values()} == {"a", "b"}


def test_where_a_spool_belongs_names_it() -> None:
    plain, named = connect("redis://one"), connect("redis://one?namespace=a")
    assert destination_of(plain) == "redis://one:6379"
    assert destination_of(named) == "redis://one:6379?namespace=a"
    assert address_of("redis://user:secret@one?namespace=a") == "redis://one:6379?namespace=a"
    assert address_of("embedded:///data?namespace=a") == "embedded:///data?namespace=a"


def test_the_usual_keys_are_what_they_were() -> None:
    assert Keys("0").prefix == "fl1:{0}:"
    assert Keys("0", "shop").prefix == "fl1:{shop/0}:"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "{0}", "x" * 33, "ü"])
def test_a_name_is_short_and_plain(name: str) -> None:
    with pytest.raises((InvalidName, InvalidOption)):
        connect(f"redis://one?namespace={quote(name)}")
    if name:
        with pytest.raises(InvalidInput):
            Fairlead("redis://one", namespace=name)


def test_memory_has_none_and_needs_none() -> None:
    assert with_namespace("memory://", "a") == "memory://"


@pytest.mark.slow
async def test_installations_on_a_cluster_are_spread_over_its_nodes() -> None:
    with cluster(3) as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        for name in ("a", "b", "c", "d", "e", "f"):
            async with app_of(url, name) as app:
                handle = await app.registered("where").aenqueue()
                assert await app.drain() == 1
                assert await handle.aresult(timeout=30) == name
        held = [bool(node.admin("KEYS", "fl1:*")) for node in nodes]
        assert sum(held) > 1
