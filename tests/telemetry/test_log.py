"""Log lines: one object or one line each, whatever others put into them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import Backoff, Context, Fairlead, InvalidOption
from fairlead.telemetry import configure

HOSTILE = 'one\ntwo\r\x1b[31mred\x1b[0m\x00\u2028\x85"quoted" \ud800'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Secretive:
    def __repr__(self) -> str:
        return "hunter2"

    __str__ = __repr__


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n") if line]


def test_a_json_line_has_its_head_first_and_then_the_fields() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    logging.getLogger("shop").warning("sold %d of %s", 3, "them", extra={"price": 1.5, "to": None})
    logging.getLogger("shop").debug("not shown")
    (line,) = lines(stream)
    assert list(line)[:4] == ["ts", "level", "logger", "event"]
    assert (line["level"], line["logger"], line["event"]) == ("warning", "shop", "sold 3 of them")
    assert (line["price"], line["to"]) == (1.5, None)
    assert len(line["ts"]) == 24
    assert line["ts"][10] == "T"
    assert line["ts"][-5] == "."
    assert line["ts"].endswith("Z")


@pytest.mark.parametrize("is_async", [True, False])
async def test_lines_made_in_an_attempt_say_which_one_it_is(is_async: bool) -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    app = Fairlead("memory://")

    def body() -> None:
        logging.getLogger("somebody.elses.library").info("hello")

    async def on_the_loop(secret: str) -> None:
        await asyncio.sleep(0)
        body()

    def in_a_thread(secret: str) -> None:
        body()

    work: Any = app.task(name="work")(on_the_loop if is_async else in_a_thread)
    handle = await work.using(tenant="acme", correlation_id="request").aenqueue("hunter2")
    logging.getLogger("shop").info("outside")
    await app.drain()
    outside, hello = lines(stream)
    assert "task_id" not in outside
    assert {name: hello[name] for name in list(hello)[4:]} == {
        "task_id": handle.id,
        "task": "work",
        "attempt": 1,
        "tenant": "acme",
        "queue": "default",
        "correlation_id": "request",
    }
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
async def test_no_argument_is_ever_in_a_line_of_ours(format: str) -> None:
    stream = io.StringIO()
    configure(format, "debug", stream)
    app = Fairlead("memory://")

    @app.around_run
    async def nothing(ctx: Context) -> Any:
        yield

    @app.task(max_retries=1, backoff=Backoff(initial=0))
    async def fails(ctx: Context, secret: str) -> None:
        ctx.on_cleanup(int, secret)
        raise ValueError(f"cannot use {secret}")

    @app.task
    def works(n: Any, secret: str) -> str:
        return f"{n + 1} {secret}"

    await fails.aenqueue("hunter2")
    await works.aenqueue(1, "hunter2")
    await works.using(max_retries=0).aenqueue("hunter2", "hunter2")
    async with app.worker(log_tasks=True):
        for _ in range(200):
            if (await app.asnapshot()).depth + (await app.asnapshot()).running == 0:
                break
            await asyncio.sleep(0.01)
    text = stream.getvalue()
    assert "task completed" in text
    assert "task dead" in text
    assert "cleanup failed" in text
    assert "hunter2" not in text


async def test_a_completed_task_is_logged_only_if_asked() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    app = Fairlead("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    await work.aenqueue()
    await app.drain()
    assert stream.getvalue() == ""
    async with app.worker(log_tasks=True):
        handle = await work.aenqueue()
        await handle.aresult(10)
    (line,) = lines(stream)
    assert line["event"] == f"task completed: work {handle.id}"
    assert line["task_id"] == handle.id
    assert 0 <= line["run_time"] < 10


def test_values_of_unknown_types_are_never_asked_to_show_themselves() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    values = {
        "one": Secretive(),
        "list": [Secretive(), {"a": Secretive(), Secretive(): 1}],
        "error": ValueError("hunter2"),
        "bytes": b"hunter2",
        "nan": float("nan"),
        "huge": 10**5000,
        "many": list(range(1000)),
        "text": "x" * 100_000,
    }
    loop: list[Any] = []
    loop.append(loop)
    logging.getLogger("shop").info("odd", extra={**values, "loop": loop})
    (line,) = lines(stream)
    assert "hunter2" not in stream.getvalue()
    assert (line["one"], line["error"], line["bytes"]) == ("<Secretive>", "ValueError", "<bytes>")
    assert line["nan"] == "nan"
    assert len(line["many"]) == 50
    assert len(line["text"]) < 10_000


@pytest.mark.parametrize("format", ["json", "console"])
def test_hostile_texts_stay_on_their_line_and_are_harmless(format: str) -> None:
    stream = io.StringIO()
    configure(format, "info", stream)
    logging.getLogger(HOSTILE).info(
        HOSTILE, extra={"field": HOSTILE, HOSTILE: [{HOSTILE: HOSTILE}]}
    )
    logging.getLogger("shop").info("broken %d %s", "x")  # noqa: PLE1206 - on purpose
    logging.getLogger("shop").info("next")
    text = stream.getvalue()
    assert text.count("\n") == 3
    assert text.splitlines()[-1] == text.split("\n")[-2]
    assert not any(char in text for char in "\x1b\x00\r\x85")
    assert text.encode()  # whatever was in it, it can be written
    if format == "json":
        assert [line["event"] for line in lines(stream)][1:] == ["broken %d %s", "next"]


@given(
    text=st.text(st.characters()),
    value=st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)
def test_any_text_and_any_value_make_one_line(text: str, value: Any) -> None:
    for format in ("json", "console"):
        stream = io.StringIO()
        configure(format, "info", stream)
        logging.getLogger("shop").info("%s", text, extra={"value": value, "own": text})
        line = stream.getvalue()
        assert line.endswith("\n")
        assert line[:-1].isprintable() or format == "json"
        assert "\n" not in line[:-1]
        line.encode()
        if format == "json":
            assert json.loads(line)["level"] == "info"


def test_a_traceback_is_one_field_and_shows_no_variables() -> None:
    def fails(password: str) -> None:
        raise KeyError("missing")

    stream = io.StringIO()
    configure("json", "info", stream)
    try:
        fails("hunter2")
    except KeyError:
        logging.getLogger("shop").exception("went wrong")
    (line,) = lines(stream)
    assert line["event"] == "went wrong"
    assert line["traceback"].startswith("Traceback (most recent call last)")
    assert line["traceback"].endswith("KeyError: 'missing'")
    assert (
        "password" not in line["traceback"].split("def ")[0] or "hunter2" not in line["traceback"]
    )


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_line_has_a_limit(format: str) -> None:
    stream = io.StringIO()
    configure(format, "info", stream)
    extra: dict[str, Any] = {f"field{n}": "\x01ü" * 5_000 for n in range(100)}
    logging.getLogger("shop").info("ü" * 1_000_000, extra={**extra, "small": 1})
    text = stream.getvalue()
    assert len(text.encode()) <= 64 * 1024
    assert text.count("\n") == 1
    if format == "json":
        (line,) = lines(stream)
        assert line["small"] == 1
        assert line["left_out"]


def test_fields_that_are_called_like_the_head_do_not_replace_it() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    logging.getLogger("shop").info("true", extra={"event": "false", "level": "none", "ts": 0})
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("true", "info")
    assert (line["event_"], line["level_"], line["ts_"]) == ("false", "none", 0)


def test_the_console_is_for_people_and_colored_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    def written(stream: io.StringIO, format: str) -> str:
        configure(format, "info", stream)
        logging.getLogger("shop").error("sold out", extra={"what": "red shoes", "left": 0})
        return stream.getvalue()

    plain = written(io.StringIO(), "console")
    assert "\x1b" not in plain
    assert plain.rstrip().endswith('what="red shoes" left=0')
    assert " error    sold out" in plain
    assert "\x1b[31merror" in written(Terminal(), "console")
    assert "\x1b[31merror" in written(Terminal(), "auto")
    assert written(io.StringIO(), "auto").startswith("{")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in written(Terminal(), "console")


def test_configured_twice_a_line_is_written_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("json", "info", first)
    configure("json", "info", second)
    logging.getLogger("shop").info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_a_pool_that_tries_again_and_again_is_silent_unless_asked() -> None:
    chatty = logging.getLogger("psycopg.pool")
    before = chatty.level
    try:
        stream = io.StringIO()
        configure("json", "info", stream)
        chatty.warning("error connecting")
        assert not stream.getvalue()
        configure("json", "debug", stream)
        chatty.warning("error connecting")
        assert lines(stream)[0]["event"] == "error connecting"
    finally:
        chatty.setLevel(before)


def test_bad_settings_are_named() -> None:
    with pytest.raises(InvalidOption, match="format='xml'"):
        configure("xml")
    with pytest.raises(InvalidOption, match="level='loud'"):
        configure("json", "loud")
    with pytest.raises(InvalidOption, match="level=5"):
        configure("json", 5)  # type: ignore[arg-type]


def test_the_console_says_nothing_twice_and_json_has_every_field() -> None:
    fields = {
        "task_id": "01a1", "queue": "mail", "attempt": 2, "state": "dead", "reason": "",
        "delay": 0.36495418471716967, "error": "ValueError", "task": "shop.mail",
    }  # fmt: skip
    console, machine = io.StringIO(), io.StringIO()
    for format, stream in (("console", console), ("json", machine)):
        configure(format, "info", stream)
        text = "task dead: shop.mail 01a1, ValueError: no 1"
        logging.getLogger("fairlead").error(text, extra=fields)
        logging.getLogger("shop").error("no task of mine", extra={"task": "mine.too", "by": "mine"})
    first, second = console.getvalue().splitlines()
    assert first.endswith("ValueError: no 1 queue=mail attempt=2 delay=0.365")
    assert second.endswith(" task=mine.too by=mine")
    assert {name: lines(machine)[0][name] for name in fields} == fields


def test_a_stack_is_lines_on_a_console_and_one_field_in_json() -> None:
    stack = 'File "shop.py", line 3\n  time.sleep(60)\n'
    console, machine = io.StringIO(), io.StringIO()
    configure("console", "info", console)
    logging.getLogger("shop").error("child stalled", extra={"stack": stack, "pid": 7})
    configure("json", "info", machine)
    logging.getLogger("shop").error("child stalled", extra={"stack": stack, "pid": 7})
    first, *rest = console.getvalue().splitlines()
    assert "pid=7" in first
    assert "stack" not in first
    assert rest == ['    File "shop.py", line 3', "      time.sleep(60)"]
    assert json.loads(machine.getvalue())["stack"] == stack
