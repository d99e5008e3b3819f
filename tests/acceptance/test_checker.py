"""The checker of histories is itself checked: each defect that a history can have is reported."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from fairlead.model.events import Event, EventId, EventKind
from tests.support.checker import History

_entries = count(1)


def event(kind: EventKind, task: str = "t", token: int = 0, at: float = 0.0) -> Event:
    number = next(_entries)
    return Event(
        id=EventId("g", "0", number, 0), at=at or float(number), kind=kind, task=task, token=token
    )


def enqueued(*ids: str) -> History:
    history = History()
    for id in ids or ("t",):
        history.attempted(id)
        history.acknowledged(id)
    return history


def defects(history: History) -> set[str]:
    return set(history.verdict().defects)


def test_a_task_that_ran_once_is_fine() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.finished("t", 1, 2.0)
    history.ended("t", 1, 2.1)
    history.terminal("t", "completed", 1, 2.1)
    history.result("t", 1)

    assert history.verdict().clean
    assert not history.verdict().duplicated


def test_an_acknowledged_task_without_an_end_is_lost() -> None:
    history = enqueued("t", "u", "v")
    history.terminal("t", "dead")
    history.known("u")

    assert history.verdict().lost == ["v"]


def test_a_task_that_nobody_was_told_about_may_be_missing() -> None:
    history = History()
    history.attempted("t")

    assert history.verdict().clean


def test_a_task_that_ended_without_ever_being_enqueued_is_unexpected() -> None:
    history = History()
    history.terminal("t", "cancelled")

    assert history.verdict().unexpected == ["t"]


def test_a_handler_that_ran_for_a_task_nobody_enqueued_is_unexpected() -> None:
    history = History()
    history.finished("t", 1, 1.0)

    assert history.verdict().unexpected == ["t"]


def test_a_second_lease_after_the_first_ended_is_counted_and_allowed() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.ended("t", 1, 2.0)
    history.started("t", 2, "b", 3.0)
    history.ended("t", 2, 4.0)
    history.terminal("t", "completed", 2)

    verdict = history.verdict()
    assert verdict.clean
    assert verdict.duplicated == {"t": 2}


def test_a_second_lease_while_the_first_is_in_force_is_an_overlap() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.started("t", 2, "b", 3.0)
    history.ended("t", 1, 4.0)
    history.ended("t", 2, 4.0)
    history.terminal("t", "completed", 2)

    assert history.verdict().overlapped == [
        "t was lent to b at 3.000, while a since 1.000 had it",
    ]


def test_two_ends_of_one_generation_are_one_too_many() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.ended("t", 1, 2.0)
    history.terminal("t", "completed", 1)
    history.terminal("t", "dead")

    assert history.verdict().twice == ["t ended 2 times: completed, dead"]


def test_a_task_that_was_put_back_may_end_again() -> None:
    history = enqueued()
    history.terminal("t", "dead")
    history.requeued("t")
    history.terminal("t", "completed")

    assert history.verdict().clean


def test_a_lease_that_ends_again_without_having_begun_again_is_wrong() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.ended("t", 1, 2.0)
    history.ended("t", 1, 3.0)
    history.terminal("t", "completed", 1)

    assert defects(history) == {"wrong"}


def test_an_outcome_under_a_lease_that_nobody_saw_begin_is_reported() -> None:
    history = enqueued()
    history.terminal("t", "completed", 7)

    assert defects(history) == {"unannounced"}


def test_a_late_outcome_that_was_refused_is_fine() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.ended("t", 1, 2.0)
    history.started("t", 2, "b", 3.0)
    history.fenced("t", 1)
    history.ended("t", 2, 4.0)
    history.terminal("t", "completed", 2)

    assert history.verdict().clean


def test_the_refusal_of_the_lease_that_the_task_ended_under_is_wrong() -> None:
    history = enqueued()
    history.started("t", 2, "b", 3.0)
    history.ended("t", 2, 4.0)
    history.terminal("t", "completed", 2)
    history.fenced("t", 2)

    assert defects(history) == {"wrong"}


def test_an_end_before_its_handler_came_to_an_end_is_wrong() -> None:
    history = enqueued()
    history.started("t", 1, "a", 1.0)
    history.ended("t", 1, 2.0)
    history.terminal("t", "completed", 1, 2.0)
    history.finished("t", 1, 3.0)

    assert history.verdict().wrong == [
        "t is completed under 1, whose handler came to its end 1.000 s later",
    ]


def test_an_end_whose_handler_never_came_to_an_end_is_wrong() -> None:
    history = enqueued("t", "u")
    history.finished("u", 5, 1.0)
    history.started("t", 1, "a", 1.0)
    history.ended("t", 1, 2.0)
    history.terminal("t", "completed", 1, 2.0)

    assert history.verdict().wrong == [
        "t is completed under 1, whose handler never came to its end",
    ]


def test_the_result_of_another_lease_is_wrong() -> None:
    history = enqueued()
    history.started("t", 2, "a", 1.0)
    history.ended("t", 2, 2.0)
    history.terminal("t", "completed", 2)
    history.result("t", 1)

    assert history.verdict().wrong == ["t is completed under 2, with the result of 1"]


def stream() -> Iterator[Event]:
    """A task that crashed, was released, failed, died, was put back and completed."""
    yield event("enqueued")
    for token, end in enumerate(("recovered", "released", "retrying", "snoozed", "dead"), 1):
        yield event("started", token=token)
        yield event(end, token=token)  # type: ignore[arg-type]
    yield event("requeued")
    yield event("started", token=6)
    yield event("fenced", token=1)
    yield event("progress", token=6)
    yield event("completed", token=6)
    yield event("warned", task="")


def test_the_stream_of_a_broker_is_read_as_it_stands() -> None:
    history = enqueued()
    history.read(stream())

    verdict = history.verdict()
    assert verdict.clean, verdict
    assert verdict.duplicated == {"t": 6}


def test_every_way_of_ending_a_lease_missing_from_the_stream_is_an_overlap() -> None:
    for missing in ("recovered", "released", "retrying", "snoozed", "dead"):
        history = enqueued()
        history.read(one for one in stream() if one.kind != missing)
        assert "overlapped" in defects(history), missing


def test_a_second_end_in_the_stream_is_reported() -> None:
    for extra in ("completed", "dead", "cancelled"):
        history = enqueued()
        history.read([*stream(), event(extra)])
        assert "twice" in defects(history), extra


def test_an_outcome_of_a_lost_lease_that_a_broker_takes_for_another_is_reported() -> None:
    """What a broker writes down that compares neither token nor incarnation."""
    history = enqueued()
    history.read(
        [
            event("started", token=1, at=1.0),
            event("recovered", token=1, at=5.0),
            event("started", token=2, at=6.0),
            event("completed", token=2, at=7.0),  # it was the handler of lease 1
            event("fenced", token=2, at=9.0),
        ]
    )
    history.finished("t", 1, 6.9)
    history.finished("t", 2, 8.9)
    history.result("t", 1)

    assert defects(history) == {"wrong"}
    assert len(history.verdict().wrong) == 3
