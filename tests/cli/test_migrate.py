"""``fairlead migrate``: another layout is shown, converted, or thrown away when confirmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.broker.redis import migrations
from fairlead.broker.redis.broker import RedisBroker
from fairlead.broker.redis.keys import Keys
from fairlead.broker.requests import LAYOUT, MOVING, Call
from fairlead.cli.main import cli, run
from fairlead.model.errors import Refused
from tests.support.servers import Running, server
from tests.support.store import submit

META = "fl1:{0}:meta"


@pytest.fixture(scope="module")
def made() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture
def running(made: Running) -> Running:
    made.admin("FLUSHALL")
    return made


def migrate(
    running: Running, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    code = run(cli, ["migrate", "--url", running.url, "--json", *options])
    return code, json.loads(capsys.readouterr().out)


def fill(running: Running, *, layout: int, tasks: int = 3) -> None:
    """Tasks as another release would have left them, as far as anybody can tell."""

    async def enqueue() -> None:
        broker = RedisBroker(running.url)
        await broker.enqueue(Call("c", 1), [submit(f"t{n}") for n in range(tasks)])
        await broker.close()

    asyncio.run(enqueue())
    running.admin("HSET", META, "layout", layout, "least", layout)


def test_what_this_release_wrote_needs_nothing(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert migrate(running, capsys) == (
        0,
        {
            "layout": LAYOUT,
            "shards": [{"shard": "0", "layout": LAYOUT, "tasks": 0, "way": "nothing"}],
            "usable": True,
        },
    )
    fill(running, layout=LAYOUT)
    assert run(cli, ["migrate", "--yes", "--discard", "--url", running.url]) == 0
    assert capsys.readouterr().out == f"shard 0: layout {LAYOUT}, 3 tasks: nothing to do\n"
    assert running.admin("HLEN", "fl1:{0}:tasks") == 3


def test_a_layout_without_a_way_is_shown_and_left_alone(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(running, layout=1)
    for options in ([], ["--yes"], ["--discard"]):
        code, said = migrate(running, capsys, *options)
        assert (code, said["usable"]) == (1, False)
        assert said["shards"] == [{"shard": "0", "layout": 1, "tasks": 3, "way": "discard"}]
    run(cli, ["migrate", "--url", running.url])
    out, err = capsys.readouterr()
    assert "layout 1, 3 tasks: there is no way to convert it" in out
    assert f"reads layout {LAYOUT}" in err
    assert running.admin("HLEN", "fl1:{0}:tasks") == 3


def test_what_cannot_be_converted_is_thrown_away_when_that_is_confirmed(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(running, layout=1)
    running.admin("SET", "fl1:{other}:meta", "another shard")
    running.admin("SET", "mine", "another program")

    assert run(cli, ["migrate", "--discard", "--yes", "--url", running.url]) == 0

    assert capsys.readouterr().out == "shard 0: was layout 1: threw 3 tasks away\n"
    assert sorted(running.admin("KEYS", "*")) == [b"fl1:{other}:meta", b"mine"]
    with Fairlead(running.url) as app:
        assert app.snapshot().ready == 0


def test_what_a_later_release_wrote_is_never_thrown_away(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(running, layout=LAYOUT + 1)
    code, said = migrate(running, capsys, "--discard", "--yes")
    assert (code, said["shards"][0]["way"]) == (1, "upgrade")
    assert running.admin("HLEN", "fl1:{0}:tasks") == 3


def test_what_a_later_release_wrote_for_both_is_used(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(running, layout=LAYOUT + 1)
    running.admin("HSET", META, "least", LAYOUT)
    assert migrate(running, capsys)[0] == 0


def test_a_task_of_the_layout_before_goes_on_in_this_one(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    with Fairlead(running.url) as app:
        app.task(name="work")(print).enqueue()
    running.admin("HSET", META, "layout", 2, "least", 2)
    assert migrate(running, capsys)[1]["shards"][0]["way"] == "convert"
    assert migrate(running, capsys, "--yes")[0] == 0
    with Fairlead(running.url) as app:
        assert app.snapshot().ready == 1
    assert running.admin("HGET", META, "least") == str(LAYOUT).encode()


def test_numbers_that_the_layout_before_kept_as_texts_go_on_in_this_one(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the conversion is done twice, because it was interrupted behind its last write."""
    with Fairlead(running.url) as app:
        app.task(name="work")(print).enqueue()
    before = running.numbers()
    texts = [each for name, number in before.items() for each in (name, f"{number:.17g}")]
    running.admin("HSET", META, *texts)
    running.admin("HDEL", META, "numbers")
    for _ in range(2):
        running.admin("HSET", META, "layout", 3, "least", 3)
        with Fairlead(running.url) as app, pytest.raises(Refused, match="layout 3"):
            app.snapshot()
        assert migrate(running, capsys, "--yes")[0] == 0
        assert running.numbers() == before
        assert not set(before) & {name.decode() for name in running.admin("HKEYS", META)}
    with Fairlead(running.url) as app:
        app.task(name="work")(print).enqueue()
        assert app.snapshot().ready == 2
    assert run(cli, ["doctor", "--audit", "--url", running.url]) < 2
    later = running.numbers()
    assert all(later[name] > before[name] for name in ("now", "entry", "entries", "bytes"))


def test_a_conversion_that_was_interrupted_is_done_again_and_keeps_everybody_out(
    running: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]
    seen: list[int] = []

    async def convert(
        command: migrations.Command, keys: Keys, progress: migrations.Progress
    ) -> None:
        layout = await command("HGET", keys.meta, "layout")
        seen.append(int(str(layout, "ascii")) if isinstance(layout, bytes) else -1)
        if fails.pop():
            raise ConnectionError("interrupted")
        progress(1)

    monkeypatch.setattr(migrations, "STEPS", {**migrations.STEPS, 1: convert})
    fill(running, layout=1)
    assert migrate(running, capsys)[1]["shards"][0]["way"] == "convert"

    assert run(cli, ["migrate", "--yes", "--url", running.url]) != 0
    with Fairlead(running.url) as app, pytest.raises(Refused, match="being migrated"):
        app.snapshot()
    capsys.readouterr()
    fails.append(False)
    assert run(cli, ["migrate", "--yes", "--url", running.url]) == 0

    assert capsys.readouterr().out == "shard 0: was layout 1: converted\n"
    assert seen == [MOVING, MOVING]
    assert running.admin("HGET", META, "layout") == str(LAYOUT).encode()
    assert running.admin("HEXISTS", META, "from") == 0
    with Fairlead(running.url) as app:
        assert app.snapshot().ready == 3


def test_a_migration_that_was_interrupted_at_its_very_end_is_finished(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(running, layout=LAYOUT)
    running.admin("HSET", META, "layout", MOVING, "least", MOVING, "from", LAYOUT)
    assert migrate(running, capsys, "--yes")[0] == 0
    assert running.admin("HMGET", META, "layout", "from") == [str(LAYOUT).encode(), None]


def test_a_shard_that_was_emptied_by_another_is_not_emptied_again(running: Running) -> None:
    fill(running, layout=1)
    met = False

    async def empty() -> None:
        slow = RedisBroker(running.url)
        slow.any_layout = True
        command = (await slow.here()).server.command

        async def meanwhile(*args: Any) -> Any:
            nonlocal met
            reply = await command(*args)
            if args[0] == "SCAN" and not met:  # another one is faster, and workers begin anew
                met = True
                running.admin("UNLINK", *running.admin("KEYS", "fl1:{0}:*"))
                await asyncio.to_thread(fill, running, layout=LAYOUT)
            return reply

        told = [0]
        await migrations.migrate(meanwhile, slow.keys, "0", discard=True, progress=told.append)
        await slow.close()

    asyncio.run(empty())
    assert met
    assert running.admin("HLEN", "fl1:{0}:tasks") == 3
    assert running.admin("HGET", META, "layout") == str(LAYOUT).encode()
