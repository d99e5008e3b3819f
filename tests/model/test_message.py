from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.model.errors import InvalidInput
from fairlead.model.message import (
    VERSION,
    Body,
    BodyFrame,
    ErrorInfo,
    Leased,
    Message,
    Trace,
)

HEADER = 10  # fields of a stored message of version 1

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
integers = st.integers(-(2**63), 2**64 - 1)
plain = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False) | text | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
extras = st.lists(plain, max_size=4).map(tuple)
messages = st.builds(
    Message,
    version=st.integers(1, 2**64 - 1),
    id=text,
    queue=text,
    tenant=text,
    level=st.integers(0, 3),
    cost=st.floats(0, exclude_min=True, allow_infinity=False),
    limiters=st.lists(text, max_size=4).map(tuple),
    flags=integers,
    body=st.binary(max_size=300),
    trace=st.binary(max_size=100),
    extra=extras,
)
bodies = st.builds(
    Body,
    task=text,
    arguments=st.binary(max_size=300),
    task_version=integers,
    max_retries=st.none() | integers,
    timeout=st.none() | st.floats(allow_nan=False),
    retention=st.none() | st.floats(allow_nan=False),
)
traces = st.builds(Trace, correlation_id=text, headers=st.dictionaries(text, text, max_size=4))

ONE = Message(
    id="acme:x", queue="mail", tenant="acme", level=1, cost=2.5, limiters=("smtp",), body=b"b"
)


def stored(**changes: Any) -> bytes:
    """A stored message with some fields replaced, by anything."""
    names = Message.__struct_fields__[:HEADER]
    fields = {name: getattr(ONE, name) for name in names} | changes
    return msgspec.msgpack.encode(list(fields.values()))


def encoded(*fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


@given(messages)
def test_a_message_survives_encoding_whatever_its_fields(message: Message) -> None:
    assert Message.decode(message.encode()) == message


def test_a_message_is_stored_as_an_array_in_a_fixed_order() -> None:
    assert msgspec.msgpack.decode(ONE.encode()) == [
        VERSION,
        "acme:x",
        "mail",
        "acme",
        1,
        2.5,
        ["smtp"],
        0,
        b"b",
        b"",
    ]


def test_the_defaults_are_a_normal_task_of_cost_one_in_this_version() -> None:
    message = Message(id="i", queue="q", tenant="t", body=b"")
    assert (message.version, message.level, message.cost) == (VERSION, 2, 1.0)
    assert (message.limiters, message.flags, message.trace, message.extra) == ((), 0, b"", ())


def test_a_stored_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ONE.body = b"other"  # type: ignore[misc]


@given(messages, extras)
def test_unknown_trailing_fields_are_kept_through_decode_and_encode(
    message: Message, later: tuple[Any, ...]
) -> None:
    fields = msgspec.msgpack.decode(message.encode()) + list(later)
    data = encoded(*fields)
    decoded = Message.decode(data)
    assert decoded.extra == (*message.extra, *later)
    assert decoded.encode() == data


@pytest.mark.parametrize(
    "field",
    [
        datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
        msgspec.msgpack.Ext(5, b"opaque"),
        {1: "a", (2, 3): "b"},
        math.inf,
    ],
    ids=["moment", "extension", "odd keys", "infinity"],
)
def test_trailing_fields_of_kinds_this_release_never_writes_are_kept(field: Any) -> None:
    data = stored(new=field)
    decoded = Message.decode(data)
    assert decoded.extra == (field,)
    assert decoded.encode() == data


@given(messages, st.integers(VERSION + 1, 2**63), st.binary(max_size=300), extras)
def test_a_newer_version_decodes_to_its_header_and_keeps_what_it_does_not_know(
    message: Message, version: int, body: bytes, extra: tuple[Any, ...]
) -> None:
    newer = msgspec.structs.replace(message, version=version, body=body, extra=extra)
    decoded = Message.decode(newer.encode())
    assert decoded.version > VERSION
    assert (decoded.id, decoded.queue, decoded.tenant) == (newer.id, newer.queue, newer.tenant)
    assert (decoded.body, decoded.extra) == (body, extra)
    assert decoded.encode() == newer.encode()


def test_a_body_of_a_newer_version_need_not_be_one_that_this_release_reads() -> None:
    data = stored(version=VERSION + 1, body=b"\xc1 no msgpack at all")
    assert Message.decode(data).body == b"\xc1 no msgpack at all"


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x90")
@example(b"\x80")
@example(b"\xc1")
@example(b"\xdd\xff\xff\xff\xff")  # an array that claims four billion fields
@example(b"\x91\xc7\x0c\xff" + b"\xff" * 12)  # a moment that cannot be
def test_garbage_is_invalid_input_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        message = Message.decode(data)
        assert Message.decode(message.encode()).encode() == message.encode()


@given(messages, st.data())
def test_a_truncated_message_is_invalid_input(message: Message, data: st.DataObject) -> None:
    whole = message.encode()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(InvalidInput):
        Message.decode(whole[:cut])


@given(messages, st.binary(min_size=1, max_size=20))
def test_bytes_after_the_end_are_invalid_input(message: Message, more: bytes) -> None:
    with pytest.raises(InvalidInput):
        Message.decode(message.encode() + more)


@given(messages, st.data())
def test_a_flipped_byte_gives_a_message_or_invalid_input_but_never_another_error(
    message: Message, data: st.DataObject
) -> None:
    changed = bytearray(message.encode())
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(InvalidInput):
        assert isinstance(Message.decode(bytes(changed)), Message)


@pytest.mark.parametrize("count", range(HEADER))
def test_a_message_with_fewer_fields_than_the_header_is_invalid(count: int) -> None:
    with pytest.raises(InvalidInput):
        Message.decode(encoded(*msgspec.msgpack.decode(ONE.encode())[:count]))


WRONG: dict[str, list[object]] = {
    "version": [None, "1", 1.0, True, [], 0, -1],
    "id": [None, 5, b"x", ["x"]],
    "queue": [None, 5, b"x"],
    "tenant": [None, 5, b"x"],
    "level": [None, "2", 2.0, True, -1, 8, 2**64 - 1],
    "cost": [None, "1", b"1", True, [], 0, 0.0, -0.0, -1, -0.5, math.nan, math.inf, -math.inf],
    "limiters": [None, 5, [5], [None], [b"x"], [["x"]]],
    "flags": [None, "0", 0.5, False],
    "body": [None, 5, [98], "!"],
    "trace": [None, 5, {}, "!"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_a_field_of_the_wrong_type_is_invalid_input(field: str, value: object) -> None:
    assert Message.decode(stored()) == ONE
    for more in ({}, {"new": 5}):  # with a field of a later release as well
        with pytest.raises(InvalidInput, match="not a stored message") as caught:
            Message.decode(stored(**{field: value}, **more))
        assert type(caught.value) is InvalidInput


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limiters", "abc"),
        ("limiters", ""),
        ("limiters", {"a": 1}),
        ("limiters", b""),
        ("body", "aGk="),
        ("trace", "aGk="),
    ],
)
def test_a_field_of_a_similar_type_is_invalid_too(field: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        Message.decode(stored(**{field: value}))


@pytest.mark.parametrize(
    "data",
    [b"\x91" * 100_000, b"\x9b" + stored()[1:] + b"\x91" * 100_000],
    ids=["all of it", "a trailing field"],
)
def test_bytes_nested_without_end_are_invalid_input(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        Message.decode(data)


@pytest.mark.parametrize("data", ["text", None, 5, []])
def test_what_is_not_bytes_is_invalid_input(data: Any) -> None:
    with pytest.raises(InvalidInput):
        Message.decode(data)


@given(messages)
def test_what_is_left_without_a_body_is_all_but_body_and_trace(message: Message) -> None:
    left = message.without_body()
    assert (left.body, left.trace) == (b"", b"")
    assert msgspec.structs.replace(left, body=message.body, trace=message.trace) == message


@given(messages, text, st.binary(max_size=50), extras)
def test_the_same_content_may_come_from_elsewhere_under_another_id(
    message: Message, id: str, trace: bytes, extra: tuple[Any, ...]
) -> None:
    other = msgspec.structs.replace(message, id=id, trace=trace, extra=extra)
    assert message.same_content(other)
    assert other.same_content(message)


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"c"},
        {"queue": "other"},
        {"tenant": "other"},
        {"level": 2},
        {"cost": 2.0},
        {"limiters": ()},
        {"limiters": ("smtp", "other")},
        {"version": 2},
    ],
    ids=str,
)
def test_another_body_or_other_terms_are_other_content(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(ONE, **change)
    assert not ONE.same_content(other)
    assert not other.same_content(ONE)


def carrying(trace: bytes) -> Message:
    return Message(id="i", queue="q", tenant="t", body=b"", trace=trace)


@given(bodies)
def test_a_body_survives_encoding(body: Body) -> None:
    assert Body.decode(body.encode()) == body


@given(traces)
def test_a_trace_survives_encoding(trace: Trace) -> None:
    assert Trace.of(carrying(trace.encode())) == trace


@given(bodies, traces, st.lists(plain, min_size=1, max_size=4))
def test_trailing_fields_of_a_later_release_are_tolerated_in_bodies_and_traces(
    body: Body, trace: Trace, later: list[Any]
) -> None:
    # Whoever writes a field behind the dependencies writes these as well.
    fields = [getattr(body, name) for name in Body.__struct_fields__]
    assert Body.decode(encoded(*fields, *later)) == body
    later_trace = encoded(*msgspec.msgpack.decode(trace.encode()), *later)
    assert Trace.of(carrying(later_trace)) == trace


GARBAGE = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "cut off": b"\x92\xa1",
    "more behind": b"\x92\xa1t\xc4\x00\x00",
    "another kind": b"\x80",
    "no fields": b"\x90",
    "bad text": b"\x92\xa1\xff\xc4\x00",
    "wrong types": b"\x92\x01\x02",
    "text for bytes": b"\x92\xa1t\xa4aGk=",
    "no end": b"\x91" * 100_000,
    "a later field without end": b"\x97\xa1t\xc4\x00\x01\xc0\xc0\xc0" + b"\x91" * 100_000,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_a_body_that_cannot_be_read_is_invalid_input(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^not a stored body: "):
        Body.decode(data)


@pytest.mark.parametrize("data", [data for data in GARBAGE.values() if data])
def test_a_trace_that_cannot_be_read_is_invalid_input(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^not a stored trace: "):
        Trace.of(carrying(data))


@given(st.binary(max_size=60))
def test_garbage_is_a_body_or_a_trace_or_invalid_input(data: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        assert isinstance(Body.decode(data), Body)
    with contextlib.suppress(InvalidInput):
        assert isinstance(Trace.of(carrying(data)), Trace)


def test_fields_that_an_earlier_release_did_not_write_get_their_defaults() -> None:
    assert Body.decode(encoded("t", b"a")) == Body(task="t", arguments=b"a")
    assert Trace.of(carrying(encoded("c"))) == Trace(correlation_id="c", headers={})


def test_a_message_without_a_trace_came_from_nowhere_but_itself() -> None:
    assert Trace.of(carrying(b"")) == Trace(correlation_id="i")


def test_two_traces_do_not_share_their_headers() -> None:
    assert Trace(correlation_id="a").headers is not Trace(correlation_id="b").headers


@given(text, text, text)
def test_an_error_as_text_survives_encoding(kind: str, message: str, traceback: str) -> None:
    info = ErrorInfo(kind, message, traceback)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=ErrorInfo) == info


def test_a_fresh_lease_has_neither_crashes_nor_hand_backs() -> None:
    lease = Leased(message=ONE, token=7, attempt=1)
    assert (lease.generation, lease.crashes, lease.unroutable) == (0, 0, 0)
    assert lease.started
    assert lease.deadline_at is None


@given(bodies, st.binary(max_size=300), st.lists(st.tuples(text, text), max_size=3).map(tuple))
@example(Body(task="t", arguments=b""), bytes(70_000), ())
def test_a_frame_makes_the_bytes_of_a_body(
    body: Body, arguments: bytes, depends_on: tuple[tuple[str, str], ...]
) -> None:
    whole = msgspec.structs.replace(body, arguments=arguments, depends_on=depends_on)
    assert BodyFrame(body, depends_on).around(arguments) == whole.encode()
