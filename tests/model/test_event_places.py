"""Places in the streams of several shards: one id for all of them, and who has read what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.event_places import advance, is_joined, joined, places_of, reached
from fairlead.model.events import EventId

NAMES = st.text("abc012_", min_size=1, max_size=8)
PLACES = st.dictionaries(
    NAMES,
    st.tuples(NAMES, st.integers(0, 10**17), st.integers(-1, 10**6)),
    min_size=1,
    max_size=5,
)


@given(PLACES)
def test_joined_places_can_be_taken_apart_again(
    found: dict[str, tuple[str, int, int]],
) -> None:
    places = {shard: EventId(generation, shard, *at) for shard, (generation, *at) in found.items()}
    whole = joined(places)
    assert is_joined(whole)
    assert places_of(whole) == places
    assert places_of(EventId.parse(str(whole))) == places


def test_an_id_of_one_shard_is_its_own_place() -> None:
    id = EventId("g", "0", 7, 2)
    assert not is_joined(id)
    assert places_of(id) == {"0": id}
    assert places_of(EventId("nonsense", "*", 0, 0)) == {}


def test_a_place_moves_forward_only_unless_the_generation_is_another() -> None:
    places = {"0": EventId("g", "0", 7, 2)}
    assert reached(places, EventId("g", "0", 7, 2))
    assert reached(places, EventId("g", "0", 6, 9))
    assert not reached(places, EventId("g", "0", 7, 3))
    assert not reached(places, EventId("g", "1", 1, 0))
    assert not advance(places, EventId("g", "0", 7, 1))
    assert advance(places, EventId("g", "0", 8, 0))
    assert advance(places, EventId("h", "0", 1, 0))  # the server was emptied
    assert places == {"0": EventId("h", "0", 1, 0)}
