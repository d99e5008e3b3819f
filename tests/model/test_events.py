from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.errors import InvalidInput
from fairlead.model.events import EVENT_KINDS, Event, EventId

counts = st.integers(0, 2**64)
event_ids = st.builds(
    EventId,
    generation=st.text(max_size=30),
    shard=st.text(max_size=10).filter(lambda shard: "-" not in shard),
    entry=counts,
    index=counts,
)


@given(event_ids)
def test_an_event_id_survives_being_written_as_text(id: EventId) -> None:
    assert EventId.parse(str(id)) == id


def test_an_event_id_reads_from_the_general_to_the_particular() -> None:
    id = EventId("01f3", "0", 17, 2)
    assert str(id) == "01f3-0-17-2"
    assert (id.generation, id.shard, id.entry, id.index) == ("01f3", "0", 17, 2)


def test_a_generation_may_hold_dashes() -> None:
    assert EventId.parse("0190-a5b0-0-17-2") == EventId("0190-a5b0", "0", 17, 2)


@given(event_ids, event_ids)
def test_event_ids_are_ordered_by_number_within_a_shard_of_a_generation(
    one: EventId, other: EventId
) -> None:
    other = EventId(one.generation, one.shard, other.entry, other.index)
    assert (one < other) == ((one.entry, one.index) < (other.entry, other.index))
    assert (one == other) == (str(one) == str(other))


def test_the_order_is_that_of_numbers_not_of_text() -> None:
    ids = [EventId("g", "0", 10, 0), EventId("g", "0", 9, 10), EventId("g", "0", 9, 9)]
    assert sorted(ids) == ids[::-1]


@given(event_ids)
def test_an_event_id_can_be_a_key_of_a_mapping(id: EventId) -> None:
    assert {id: 1}[EventId.parse(str(id))] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1-2",
        "g-0-1",
        "g-0-x-1",
        "g-0-1-x",
        "g-0-1-",
        "g-0--",
        "g-0-1.5-1",
        "g-0-1-1\x00",
        "g-0-1-" + "9" * 5_000,
        "x" * 10_000,
        "a\nb",
    ],
)
def test_text_that_is_no_event_id_is_refused_on_one_short_line(text: str) -> None:
    with pytest.raises(InvalidInput, match="GENERATION-SHARD-ENTRY-INDEX") as caught:
        EventId.parse(text)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_an_event_id_or_invalid_input(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert str(EventId.parse(text)).count("-") >= 3


@pytest.mark.parametrize(
    "text", ["g-0- 1-1", "g-0-1-1\n", "g-0-1_0-1", "g-0-+1-1", "g-0-1-٣", "g-0-01-1", "g-0-1--1"]
)
def test_a_number_that_str_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        EventId.parse(text)


def test_every_kind_of_event_is_named_once() -> None:
    assert len(set(EVENT_KINDS)) == len(EVENT_KINDS)
    assert {"enqueued", "started", "completed", "dead", "fenced"} <= set(EVENT_KINDS)


def test_kinds_are_single_lower_case_words_and_those_of_flows_and_workers_say_so() -> None:
    for kind in EVENT_KINDS:
        word = kind.removeprefix("flow_").removeprefix("worker_")
        assert word.isalpha(), kind
        assert word.islower(), kind


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_an_event_of_each_kind_survives_encoding(kind: str) -> None:
    id = EventId("g", "0", 1, 2)
    event = msgspec.convert({"id": id, "at": 1.5, "kind": kind, "task": "acme:x"}, Event)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event)
    assert again == event
    assert again.kind == kind


def test_an_event_of_an_unknown_kind_is_refused() -> None:
    data = msgspec.msgpack.encode({"id": EventId("g", "0", 1, 2), "at": 1.5, "kind": "exploded"})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=Event)
