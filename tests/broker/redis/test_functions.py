"""Functions get onto the server, and verbs work where it takes none in."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead.broker.records import Library
from fairlead.broker.redis import RedisBroker, functions, scripts
from fairlead.broker.redis.address import parse
from fairlead.broker.redis.connection import Server
from fairlead.broker.redis.discovery import Ask
from fairlead.broker.redis.scripts import evaluated, libraries, load
from fairlead.broker.redis.wire import ReplyError, pack
from fairlead.broker.requests import QueueChange
from fairlead.model.errors import Refused
from tests.architecture.source import ROOT
from tests.broker.redis.sample import PREFIX
from tests.broker.redis.test_faults_inside import PROBES, TWOFOLD, Full, Shard, numbered, opened
from tests.broker.redis.test_scripts import write
from tests.support.servers import Running, server
from tests.support.store import completed

VERBS = sorted(path.stem for path in (ROOT / "src/fairlead/broker/redis/lua").glob("*.lua"))


@pytest.fixture(autouse=True, scope="module")
def linked() -> None:
    """Link what calls may have to send, so that their short time limits are the server's alone."""
    for script in libraries():
        assert script.source


@pytest.fixture
async def full(valkey: Running) -> AsyncIterator[Full]:
    """A full server that knows none of our functions and scripts."""
    async with opened(valkey, patience=10.0) as broker:
        made = Full(valkey, broker)
        await made.fill()
        forget(valkey)
        yield made


def forget(running: Running) -> None:
    running.admin("FUNCTION", "FLUSH")
    running.admin("SCRIPT", "FLUSH")


async def test_a_library_that_the_server_knows_is_not_put_together(
    valkey: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(valkey) as broker:
        await broker.snapshot()
    monkeypatch.setattr(scripts, "_known", {})
    monkeypatch.setattr(scripts, "link", None)
    async with opened(valkey) as broker:
        await broker.snapshot()
        forget(valkey)
        with pytest.raises(TypeError):
            await broker.snapshot()


async def test_every_library_loads_and_every_call_goes_through_one(
    valkey: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """A part that needs more than a library may use while it loads goes by EVALSHA, unnoticed."""
    made = Shard(valkey)
    with caplog.at_level(logging.WARNING, functions.__name__):
        async with opened(valkey, test_clock=True, event_bytes=4096) as broker:
            await made.make(broker)
            forget(valkey)
            called = {}
            for name, probe in PROBES.items():
                if name not in TWOFOLD:
                    made.restore()  # by a script
                    valkey.admin("CONFIG", "RESETSTAT")
                    await probe(numbered(broker), made.tokens)
                    called[name] = set(valkey.admin("INFO", "commandstats"))
    made.client.close()
    assert [record for record in caplog.records if record.name == functions.__name__] == []
    scripts = {"cmdstat_eval", "cmdstat_eval_ro", "cmdstat_evalsha", "cmdstat_evalsha_ro"}
    assert [name for name, commands in called.items() if commands & scripts] == []
    assert [name for name, commands in called.items() if "cmdstat_fcall" not in commands] == []
    server = Server(parse(valkey.url))
    try:  # those that no probe calls
        rest = await functions.load_all(server.command)
        assert 0 < len(rest) < len(libraries()) / 2
    finally:
        await server.close()


async def test_a_library_that_does_not_load_is_told_once_with_file_and_line(
    tmp_path: Path,
    valkey: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(functions, "_AGAIN", 0.0)  # each call offers the library again
    at_load = "-- @share {0}\n{0} = string.len('abc')\n"  # a script may, a library may not
    root = write(
        tmp_path,
        beat="-- @include a\nreturn width\n",
        wake="-- @include b\nreturn height\n",
        lib_a=at_load.format("width"),
        lib_b="\n" + at_load.format("height"),
    )
    replies: list[int] = []

    async def on_connect(ask: Ask) -> None:
        replies.append(await functions.run_on(ask, load("beat", root), "key", []))

    with caplog.at_level(logging.WARNING, functions.__name__):
        server = Server(parse(valkey.url))
        for script in [load("beat", root), load("wake", root)] * 2:
            replies += [await server.run(script, "key", [])]
        await server.close()
        for _ in range(2):
            server = Server(parse(valkey.url), on_connect=on_connect)
            await server.command("PING")
            await server.close()
    assert replies == [3] * 6
    beat, wake, connected = caplog.messages
    assert "lib/a.lua:2: Script attempted to access nonexistent global variable 'string'" in beat
    assert "lib/b.lua:3: Script" in wake
    assert "lib/a.lua:2: Script" in connected


async def test_a_full_server_that_never_saw_this_release_is_drained_and_steered_by_it(
    full: Full,
) -> None:
    with pytest.raises(Refused) as caught:
        await full.enqueue("one-more")
    assert caught.value.cause == "oom"

    for call in (*full.upkeep().values(), *full.reads().values()):
        await call()
    await full.broker.configure(full.call(), [QueueChange(queue="default", paused=False)])
    ends = 0
    while leases := await full.fetch(100):
        reply = await full.broker.exchange(full.call(), [completed(lease) for lease in leases])
        ends += reply.settled.count("applied")
    assert ends == 3 + len(full.accepted)
    assert full.running.admin("FUNCTION", "LIST") == []


async def test_a_full_server_that_forgot_our_functions_can_be_connected_to(full: Full) -> None:
    async with opened(full.running, patience=1.0) as another:
        assert (await another.give_back("nobody")).count == 0


async def test_once_there_is_room_the_functions_are_loaded_again(
    full: Full, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fairlead"):
        await full.broker.promote()
        await full.broker.promote()
    assert caplog.text.count("takes no function library in") == 1

    full.running.admin("CONFIG", "SET", "maxmemory", 0)
    monkeypatch.setattr(functions, "_AGAIN", 0.0)
    async with opened(full.running) as another:
        await another.promote()
    names = [library.name for library in await _listed(full.running) if library.functions]
    assert load("promote").library in names


async def _listed(running: Running) -> list[Library]:
    server = Server(parse(running.url))
    try:
        return await functions.installed(server.command)
    finally:
        await server.close()


def kept(made: Shard) -> dict[bytes, bytes]:
    """What every key holds, but for answers to calls: a session has a name of its own."""
    named = {f"{PREFIX}{key}".encode() for key in ("answers", "idle")}
    return {key: digest for key, digest in made.digests().items() if key not in named}


@pytest.mark.slow
async def test_a_user_who_may_not_load_functions_gets_the_same_from_every_verb() -> None:
    """Each verb is run as a function and as a script; what it leaves behind is the same."""
    with server() as running:
        made = Shard(running)
        async with opened(running, test_clock=True, event_bytes=4096) as broker:
            await made.make(broker)
            left = {}
            for name, probe in PROBES.items():
                if name in TWOFOLD:
                    continue
                made.restore()
                await probe(numbered(broker), made.tokens)
                left[name] = kept(made)
        forget(running)
        running.admin("ACL", "SETUSER", "careful", "on", ">secret", "~*", "+@all", "-function")
        url = f"unix://careful:secret@{running.path}"
        broker = RedisBroker(url, test_clock=True, event_bytes=4096)
        try:
            wrong = []
            for name in left:
                made.restore()
                await PROBES[name](numbered(broker), made.tokens)
                if kept(made) != left[name]:
                    wrong.append(name)
            assert wrong == []
            assert running.admin("FUNCTION", "LIST") == []
        finally:
            await broker.close()
            made.client.close()


@pytest.mark.parametrize("known", [True, False], ids=["known", "forgotten"])
async def test_a_server_that_refuses_writes_can_be_looked_into(
    valkey: Running, *, known: bool
) -> None:
    async with opened(valkey, patience=1.0) as broker:
        made = Full(valkey, broker)
        await made.enqueue("first")
        for read in made.reads().values():
            await read()
        if not known:
            forget(valkey)
        valkey.admin("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(Refused) as caught:
            await made.enqueue("second")
        assert caught.value.cause == "noreplicas"
        for read in made.reads().values():
            await read()
        async with opened(valkey, patience=1.0) as another:
            [record] = await another.find(["first"])
            assert record is not None


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_script_as_well(verb: str, shared_valkey: Running) -> None:
    for reads in (False, True):
        form = evaluated(load(verb, reads=reads))
        assert shared_valkey.admin("SCRIPT", "LOAD", form.source).decode() == form.sha


@pytest.fixture(scope="module")
def shared_valkey() -> Iterator[Running]:
    with server() as running:
        yield running


def test_other_flags_are_another_library(tmp_path: Path) -> None:
    forms = {}
    for name, text in {"a": "-- @flags allow-oom\nreturn 1\n", "b": "return 1\n"}.items():
        (tmp_path / name).mkdir()
        forms[name] = load("beat", write(tmp_path / name, beat=text)).library
    assert forms["a"] != forms["b"]


def test_a_read_is_a_function_that_the_server_knows_to_be_one(valkey: Running) -> None:
    for script in libraries():
        valkey.admin("FUNCTION", "LOAD", "REPLACE", script.source)
    flags = {}
    for library in valkey.admin("FUNCTION", "LIST"):
        for each in dict(zip(library[::2], library[1::2], strict=True))[b"functions"]:
            fields = dict(zip(each[::2], each[1::2], strict=True))
            flags[fields[b"name"].decode()] = {flag.decode() for flag in fields[b"flags"]}
    reads = {verb for verb in VERBS if load(verb, reads=True).reads}
    assert reads >= {
        "find",
        "scan",
        "snapshot",
        "stats",
        "explain_facts",
        "workers",
        "get_xcom",
        "events",
    }
    for verb in reads:
        assert flags[load(verb, reads=True).function] == {"no-writes"}
        assert flags[load(verb).function] == {"allow-oom"}


async def test_libraries_of_other_releases_are_listed_and_can_be_deleted(valkey: Running) -> None:
    old = "#!lua name=fairlead_find_0123456789abcdef\nredis.register_function('fairlead_x', print)"
    valkey.admin("FUNCTION", "LOAD", old.replace("print", "function() return 1 end"))
    valkey.admin(
        "FUNCTION", "LOAD", "#!lua name=other\nredis.register_function('y', function() end)"
    )
    server = Server(parse(valkey.url))
    try:
        loaded = await functions.load_all(server.command)
        assert sorted(loaded) == sorted(script.library for script in libraries())
        assert await functions.load_all(server.command) == []
        found = {each.name: each.current for each in await functions.installed(server.command)}
        assert found == {**dict.fromkeys(loaded, True), "fairlead_find_0123456789abcdef": False}
        assert all(each.functions for each in await functions.installed(server.command))
        await functions.delete(server.command, "fairlead_find_0123456789abcdef")
        await functions.delete(server.command, "fairlead_find_0123456789abcdef")
        assert all(each.current for each in await functions.installed(server.command))
    finally:
        await server.close()


async def test_a_replica_is_not_taken_for_a_server_that_takes_no_functions_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[bytes] = []

    async def send(packed: bytes) -> ReplyError:
        sent.append(packed)
        return ReplyError("READONLY You can't write against a read only replica.")

    script = load("promote")
    call = pack(("FCALL", script.function, 1, PREFIX))
    known = functions.Functions()
    reply = await known.call_unknown(send, call, script, 0.0)
    assert str(reply).startswith("READONLY")  # so that the primary is looked for
    assert len(sent) == 1, "no script was sent instead"
    assert caplog.messages == []
    await known.call_unknown(send, call, script, 0.1)
    assert b"FUNCTION" in sent[1], "the next server is offered the library at once"
