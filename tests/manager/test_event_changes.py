"""Folding: what a row becomes does not depend on pages, on repeats, or on the other shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.ledger.task_log import LogEntry, is_full, pack_log, unpack_log
from fairlead.manager.event_changes import TaskChange, cut, fold
from fairlead.model.events import Event, EventId

#: Kinds with the state that they leave a task in.
_KINDS = (
    ("enqueued", "queued"), ("queued", "queued"), ("started", "running"), ("progress", "running"),
    ("retrying", "retrying"), ("completed", "completed"), ("dead", "dead"), ("requeued", "queued"),
    ("fenced", "dead"), ("cancelling", "running"), ("prioritized", "queued"), ("deleted", "dead"),
    ("cancelled", "cancelled"), ("snoozed", "scheduled"), ("recovered", "queued"),
)  # fmt: skip


def event(
    entry: int, kind: Any, state: str = "", *, task: str = "a", shard: str = "0", **fields: Any
) -> Event:
    """One event at the second that its entry says."""
    fields = {"queue": "default", "tenant": "acme", **fields}
    id = EventId("g", shard, entry, 0)
    return Event(id=id, at=float(entry), kind=kind, task=task, state=state, **fields)


def folded(*events: Event) -> TaskChange:
    (change,) = fold(events, {}).tasks.values()
    return change


def test_a_task_that_ran_is_one_change() -> None:
    change = folded(
        event(1, "enqueued", "queued"),
        event(2, "started", "running", token=7, attempt=1, reason="worker"),
        event(5, "completed", "completed", token=7, attempt=1),
    )
    assert (change.state, change.attempts, change.worker) == ("completed", 1, "worker")
    assert (change.at, change.started_at, change.finished_at, change.changed_at) == (1, 2, 5, 5)
    assert (change.entry, change.index, change.reason) == (5, 0, "")
    assert change.log == [
        [1.0, "enqueued", "queued"],
        [2.0, "started", "running", 1, "worker"],
        [5.0, "completed", "completed", 1],
    ]


def test_what_changes_no_state_moves_no_moment() -> None:
    change = folded(
        event(1, "dead", "dead", token=7, attempt=3, reason="exhausted"),
        event(2, "fenced", "dead"),
        event(3, "deleted", "dead"),
        event(4, "progress", "dead"),
    )
    assert (change.state, change.finished_at, change.changed_at) == ("dead", 1, 1)
    assert (change.reason, change.entry) == ("exhausted", 3)
    assert [line[1] for line in change.log] == ["dead", "fenced", "deleted"]
    only = folded(event(3, "deleted", "completed"))
    assert (only.reason, only.changed_at, only.finished_at) == (None, None, None)


def test_a_requeued_task_counts_its_attempts_anew() -> None:
    change = folded(
        event(1, "started", "running", token=7, attempt=4, reason="w"),
        event(2, "dead", "dead", token=7, attempt=4),
        event(3, "requeued", "queued"),
        event(4, "started", "running", token=9, attempt=1, reason="w"),
    )
    assert (change.attempts, change.begins, change.finished_at) == (1, True, None)
    assert (change.failed, change.failed_attempt) == (1, 4)


def test_flows_and_workers_are_no_tasks() -> None:
    found = fold(
        [
            event(1, "flow_committed", task="flow"),
            event(2, "worker_joined", task="w1", queue="", tenant=""),
            event(3, "started", "running", attempt=1, reason="w2"),
            event(4, "configured", task=""),
            event(5, "flow_dead", "dead", task="flow"),
        ],
        {},
    )
    assert list(found.tasks) == ["a"]
    assert found.workers == {"w1", "w2"}
    assert (found.flows["flow"].state, found.flows["flow"].at) == ("dead", 5.0)


def test_a_level_comes_from_the_event_that_names_it() -> None:
    assert folded(event(1, "prioritized", "queued", reason="critical")).level == 0
    assert folded(event(1, "queued", "queued")).level is None


# -- any pages, any repeats ------------------------------------------------------------------------


class Rows:
    """Rows as the statements of the recorder keep them, as far as folding decides."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def record(self, page: Sequence[Event]) -> None:
        known = {id: row["last"] for id, row in self.rows.items()}
        for id, change in fold(page, known).tasks.items():
            row = self.rows.setdefault(id, {"attempts": 0, "worker": "", "log": []})
            row |= {"state": change.state, "last": (change.entry, change.index)}
            row["attempts"] = (
                change.attempts if change.begins else max(row["attempts"], change.attempts)
            )
            row["worker"] = change.worker or row["worker"]
            if change.reason is not None:
                row["reason"] = change.reason
            row["log"] = [*row["log"], *change.log]


@st.composite
def streams(draw: st.DrawFn) -> list[list[Event]]:
    """Events of two shards, each in its order; a task lives in one of them."""
    shards: list[list[Event]] = []
    for shard in ("0", "s1"):
        picked = draw(st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 2)), max_size=12))
        shards.append(
            [
                event(10 + n, kind, state, task=f"{shard}-{task}", shard=shard, token=1, attempt=n)
                for n, ((kind, state), task) in enumerate(picked)
            ]
        )
    return shards


@given(streams(), st.data())
def test_pages_and_repeats_make_no_difference(
    shards: list[list[Event]], data: st.DataObject
) -> None:
    whole = Rows()
    whole.record([each for events in shards for each in events])
    paged = Rows()
    left = {place: 0 for place, events in enumerate(shards) if events}
    while left:
        place = data.draw(st.sampled_from(sorted(left)))
        # A page may begin with what was read before: so it is after a gap.
        begin = data.draw(st.integers(0, left[place]))
        end = data.draw(st.integers(left[place] + 1, len(shards[place])))
        paged.record(shards[place][begin:end])
        left[place] = end
        if end == len(shards[place]):
            del left[place]
    for events in shards:
        paged.record(events)  # once more, all of it
    assert paged.rows == whole.rows


# -- the log ---------------------------------------------------------------------------------------


def test_a_log_is_read_as_it_was_written() -> None:
    data = pack_log([[1.5, "enqueued", "queued"], [2.0, "started", "running", 1, "w"]])
    data += pack_log([[3.0, "dead", "dead", 1, "", "exhausted", "ValueError", "no"]])
    assert unpack_log(data) == [
        LogEntry(1.5, "enqueued", "queued"),
        LogEntry(2.0, "started", "running", 1, "w"),
        LogEntry(3.0, "dead", "dead", 1, "", "exhausted", "ValueError", "no"),
    ]
    assert unpack_log(b"") == []
    assert len(unpack_log(pack_log([[1.0]]) + data)) == 3  # a chunk that makes no sense
    assert len(unpack_log(data[:-1])) == 2
    assert not is_full(data)
    later = pack_log([[1.0, "dead", "dead", 1, "", "", "", "", "a field of a later release"]])
    assert unpack_log(later)[0].kind == "dead"


def test_texts_are_cut_to_what_a_row_can_hold() -> None:
    assert cut("a\x00b", 10) == "a\ufffdb"
    assert cut("ä" * 10, 5) == "ää"
    assert cut("\ud800x", 10) == "?x"
    assert cut("short", 10) == "short"
