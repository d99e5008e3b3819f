"""Who may be handed a task, and when one that came back is handed on again."""

from __future__ import annotations

import pytest

from fairlead.model.referral import Candidate, Pressure, Returns, candidates


def worker(name: str, *, running: int = 0, **versions: int) -> Candidate:
    return Candidate(name, frozenset({"default"}), versions, concurrency=10, running=running)


def test_those_who_know_the_version_and_serve_the_queue_are_able_the_idlest_first() -> None:
    busy, idle = worker("a", running=9, f=2), worker("b", running=1, f=3)
    known = [busy, idle, worker("c", f=1), worker("d", g=2)]
    assert candidates("f", 2, "default", known) == [idle, busy]
    assert len(candidates("f", 1, "default", [worker(str(n), f=1) for n in range(20)])) == 8
    assert candidates("f", 2, "mail", known) == []
    assert candidates("f", 4, "default", known) == []


def test_a_worker_may_hold_as_much_again_as_it_runs() -> None:
    assert worker("a").room == 20
    assert worker("a")._replace(concurrency=1_000).room == 1_128


def test_a_task_that_comes_back_rests_before_it_goes_again_ever_longer() -> None:
    returns, pauses, now = Returns(), [], 0.0
    for _ in range(14):
        pauses.append(returns.pause("t", now))
        now += pauses[-1]
    assert pauses[::2] == [0.0] * 7
    assert pauses[1::2] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert returns.pause("other", now) == 0.0
    assert returns.pause("t", now + 61.0) == 0.0
    assert returns.pause("t", now + 61.0) == 0.5


def test_a_task_that_nobody_had_room_for_did_not_come_back() -> None:
    returns = Returns()
    assert returns.pause("t", 0.0) == 0.0
    returns.refused("t")
    assert returns.pause("t", 1.0) == 0.0
    assert returns.pause("t", 2.0) == 0.5


def test_what_nobody_has_room_for_rests_for_as_long_as_there_has_been_none() -> None:
    pressure, pauses, now = Pressure(), [], 100.0
    for _ in range(7):
        pressure.felt(now, refused=True)
        pauses.append(pressure.pause)
        now += pressure.pause
    assert pauses == pytest.approx([0.2, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    pressure.felt(now, refused=False)
    assert pressure.pause == 0.2
    pressure.felt(now, refused=True)
    assert pressure.pause == 0.2


def test_many_batches_within_a_moment_make_no_task_rest_for_longer() -> None:
    pressure = Pressure()
    for n in range(10):  # as bursts come while the one that knows them is busy
        pressure.felt(100.0 + 0.05 * n, refused=True)
    assert pressure.pause == pytest.approx(0.45)
    pressure.felt(102.0, refused=True)  # long after those have come back, and found room elsewhere
    assert pressure.pause == 0.2


def test_only_so_many_are_remembered() -> None:
    returns = Returns()
    for n in range(1_001):
        returns.pause(str(n), 0.0)
    assert returns.pause("1000", 0.0) > 0.0
    assert returns.pause("0", 0.0) == 0.0
