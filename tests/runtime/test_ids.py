"""Ids: well-formed, ordered by time, never the same twice."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.model.names import full_id
from fairlead.runtime import ids
from fairlead.runtime.ids import new_id
from tests.runtime.programs import run


def test_an_id_is_a_uuid_of_version_7() -> None:
    for _ in range(1_000):
        id = new_id()
        parsed = uuid.UUID(id)
        assert parsed.hex == id
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)


def test_the_model_recognizes_an_id_as_made_here() -> None:
    assert all(full_id("acme", id) == id for id in (new_id() for _ in range(1_000)))


def test_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(10**18, 10**18 + 10**9, 10**6))
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(moments))  # type: ignore[attr-defined]
    made = [new_id() for _ in range(1_000)]
    assert made == sorted(made)


def test_ids_of_one_millisecond_sort_in_the_order_they_were_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter(range(10**18, 10**18 + 10**6, 500))
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(moments))  # type: ignore[attr-defined]
    made = [new_id() for _ in range(2_000)]
    assert made == sorted(made)
    assert len({id[:12] for id in made}) == 1


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = int(new_id()[:12], 16)
    assert before <= made <= time.time_ns() // 1_000_000


def test_ids_of_many_threads_differ() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [
            id
            for part in pool.map(lambda _: [new_id() for _ in range(2_000)], range(8))
            for id in part
        ]
    assert len(set(made)) == 16_000


def test_a_forked_child_makes_other_ids_with_randomness_of_its_own() -> None:
    assert run(FORK).split() == ["200", "200"]


FORK = """
import os
from fairlead.runtime.ids import new_id

new_id()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, "".join(new_id() for _ in range(100)).encode())
    os._exit(0)
os.close(writing)
own = {new_id() for _ in range(100)}
with os.fdopen(reading) as pipe:
    text = pipe.read()
assert os.waitpid(child, 0)[1] == 0
both = {text[i : i + 32] for i in range(0, len(text), 32)} | own
print(len(both), len({id[16:] for id in both}))
"""


def test_an_id_begins_with_its_moment_whatever_moments_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = 1_763_500_000_123_456_789
    later = [0, 300, 543_210, 543_211, 1_000_000, 10**9]
    steps = [*later, -(10**9), -(10**12), 7 * 10**17]
    given = iter([at + step for step in steps])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(given))  # type: ignore[attr-defined]
    for step in steps:
        milliseconds, rest = divmod(at + step, 1_000_000)
        part = rest * 4_096 // 1_000_000
        assert new_id()[:16] == f"{milliseconds:012x}7{part:03x}", step


@pytest.mark.parametrize("step", [0, 1, 100, -1, -500])
def test_ids_sort_in_the_order_they_were_made_where_the_clock_hardly_moves_or_goes_back(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    began = 2 * 10**12 + 100 * step  # of each case in milliseconds, far from the others
    moments = iter([began * 10**6 + place * step for place in range(10_000)])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(moments))  # type: ignore[attr-defined]
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert all(uuid.UUID(id).version == 7 for id in made)
    assert {int(id[:12], 16) - began for id in made} <= {0, 1, 2}


def test_each_bit_of_chance_is_as_often_set_as_not() -> None:
    made = [int(new_id()[16:], 16) for _ in range(4_096)]
    often = [sum(each >> bit & 1 for each in made) for bit in range(64)]
    assert often[62:] == [0, len(made)]
    assert all(1_700 < count < 2_400 for count in often[:62])
