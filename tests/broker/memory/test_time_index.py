"""The order in which the memory broker comes to what is due, however it was told of it."""

from __future__ import annotations

from random import Random

import pytest

from fairlead.broker.memory.time_index import TimeIndex

KEYS = [f"key-{n}" for n in range(12)]


@pytest.mark.parametrize("seed", range(20))
def test_keys_come_in_the_order_of_time_however_they_were_set(seed: int) -> None:
    random = Random(seed)
    index: TimeIndex[str] = TimeIndex()
    known: dict[str, float] = {}
    at = 0.0
    for _ in range(600):
        key = random.choice(KEYS)
        at += random.choice((0.0, 1.0))
        choice = random.random()
        if choice < 0.5:  # mostly in order, as in a broker
            known[key] = at if choice < 0.35 else random.uniform(0.0, at)
            index.set(key, known[key])
        elif choice < 0.65:
            known.pop(key, None)
            index.discard(key)
        elif choice < 0.75:
            due = sorted((time, key) for key, time in known.items() if time <= at - 3.0)
            assert index.firsts(3, at - 3.0) == [key for _, key in due[:3]]
        else:
            first = min(((time, key) for key, time in known.items()), default=None)
            assert index.first() == first
            assert index.pop() == (None if first is None else first[1])
            if first is not None:
                del known[first[1]]
        assert len(index) == len(known)


@pytest.mark.parametrize("step", [1.0, -1.0])
def test_entries_do_not_pile_up_of_keys_that_are_set_anew(step: float) -> None:
    index: TimeIndex[str] = TimeIndex()
    for n in range(10_000):
        index.set(KEYS[n % len(KEYS)], n * step)

    assert len(index._heap) + len(index._line or ()) <= 2 * len(KEYS) + 64
