"""What the ledger keeps of a submission: nothing is lost on the way there and back."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import Fairlead, InvalidInput, TooLarge
from fairlead.broker.requests import LeaseRef, Submission
from fairlead.broker.submission_checks import MAX_ENVELOPE
from fairlead.client.flow_submit import Draft, drafted
from fairlead.client.stored_submissions import (
    batches,
    content_of,
    decode_draft,
    decode_submission,
    encode_draft,
    encode_submission,
    tasks_text,
)
from fairlead.model.argument_packing import MAX_BODY
from fairlead.model.message import Body, Message
from fairlead.model.options import Dependency, Unique

names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
ids = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
times = st.floats(0, 1e9, allow_nan=False)
messages = st.builds(
    Message,
    id=ids,
    queue=ids,
    tenant=names,
    level=st.integers(0, 3),
    cost=st.floats(0.001, 1000) | st.integers(1, 1000),
    limiters=st.lists(ids, max_size=4, unique=True).map(tuple),
    flags=st.integers(0, 2**40),
    body=st.binary(max_size=200),
    trace=st.binary(max_size=50),
)
submissions = st.builds(
    Submission,
    message=messages,
    delay=times,
    deadline=st.none() | times,
    depends_on=st.lists(st.builds(Dependency, names, st.booleans()), max_size=5).map(tuple),
    on_dependency_failure=st.sampled_from(("dead", "cancel", "wait", "run")),
    uses_results=st.booleans(),
    unique=st.none()
    | st.builds(
        Unique, key=names, until=st.sampled_from(("started", "done", "window")), window=times
    ),
)


def plain(id: str = "a", **fields: Any) -> Message:
    said: dict[str, Any] = {
        "id": id,
        "queue": "q",
        "tenant": "t",
        "body": Body(task="n", arguments=b"").encode(),
    }
    return Message(**{**said, **fields})


@given(submissions)
def test_a_submission_comes_back_as_it_was(submission: Submission) -> None:
    found = decode_submission(
        encode_submission(submission), delay=submission.delay, deadline=submission.deadline
    )
    assert found == submission


@given(st.lists(submissions, max_size=5), names, st.floats(0, 1e9))
def test_a_flow_comes_back_with_what_is_left_of_its_times(
    members: list[Submission], name: str, age: float
) -> None:
    draft = Draft(id="f", tenant="t", name=name, calls=[], submissions=members, last=[])
    data = encode_draft_unchecked(draft)
    assert decode_draft(data) == draft
    aged = decode_draft(data, age=age)
    for now, then in zip(aged.submissions, members, strict=True):
        assert now.delay == max(then.delay - age, 0.0)
        if then.deadline is not None:
            assert now.deadline == max(then.deadline - age, 0.0)


def encode_draft_unchecked(draft: Draft) -> bytes:
    """Members that hypothesis made are no tasks that a broker would take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairlead.client.stored_submissions.check_submission", lambda _: None)
        return encode_draft(draft, draft.submissions)


@given(messages, messages)
def test_digests_are_equal_where_the_contents_are(one: Message, other: Message) -> None:
    again = msgspec.structs.replace(one, id="other", trace=b"elsewhere", flags=7)
    assert content_of(one) == content_of(again)
    assert one.same_content(other) == (content_of(one) == content_of(other))


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "p"},
        {"tenant": "p"},
        {"level": 1},
        {"cost": 2.0},
        {"limiters": ("x",)},
        {"body": b"other"},
        {"version": 2},
    ],
)
def test_every_part_of_the_content_counts(change: dict[str, Any]) -> None:
    assert content_of(plain()) != content_of(plain(**change))


def test_a_cost_of_one_is_the_same_as_a_whole_number_or_not() -> None:
    assert content_of(plain(cost=1)) == content_of(plain(cost=1.0))


def test_a_fence_is_refused() -> None:
    lease = LeaseRef("parent", "incarnation", 3)
    with pytest.raises(InvalidInput, match="lease of task 'parent'") as caught:
        tasks_text([Submission(message=plain(), fence=lease)])
    assert "using(tx=...)" in str(caught.value)


def test_a_body_over_the_limit_of_brokers_is_refused() -> None:
    just = plain(body=b"x" * (MAX_BODY + MAX_ENVELOPE))
    assert tasks_text([Submission(message=just)])
    with pytest.raises(TooLarge, match="the body"):
        tasks_text([Submission(message=plain(body=just.body + b"x"))])


@pytest.mark.parametrize("delay", [-1.0, math.nan, math.inf])
def test_what_a_broker_would_refuse_is_refused(delay: float) -> None:
    with pytest.raises(InvalidInput, match="delay"):
        tasks_text([Submission(message=plain(), delay=delay)])


def test_bytes_of_a_later_version_and_of_no_version_are_refused() -> None:
    data = msgspec.msgpack.decode(encode_submission(Submission(message=plain())))
    later = msgspec.msgpack.encode([2, *data[1:]])
    with pytest.raises(InvalidInput, match="version 2"):
        decode_submission(later)
    for bad in (b"", b"\x00", b"\x91\xa1x", later[:-1]):
        with pytest.raises(InvalidInput):
            decode_submission(bad)
    more = msgspec.msgpack.encode([*data, "added later, and harmless"])
    assert decode_submission(more) == Submission(message=plain())


def test_the_text_has_what_the_columns_need() -> None:
    given = Submission(
        message=plain(level=1), delay=5.0, deadline=60.0, depends_on=(Dependency("p"),)
    )
    (row,) = json.loads(tasks_text([given]))
    assert (row["id"], row["queue"], row["tenant"], row["name"]) == ("a", "q", "t", "n")
    assert (row["level"], row["delay"], row["deadline"]) == (1, 5.0, 60.0)
    assert row["depends_on"] == ["p"]
    assert b64decode(row["content"]) == content_of(given.message)
    back = decode_submission(b64decode(row["submission"]), delay=5.0, deadline=60.0)
    assert back == given


def test_batches_have_at_most_500_tasks_and_8_mib() -> None:
    many = [Submission(message=plain(str(n))) for n in range(1_001)]
    assert [len(batch) for batch in batches(many)] == [500, 500, 1]
    large = [Submission(message=plain(str(n), body=b"x" * 3 * 1024 * 1024)) for n in range(5)]
    assert [len(batch) for batch in batches(large)] == [2, 2, 1]
    assert list(batches([])) == []


def test_a_flow_over_64_mib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Fairlead("memory://")

    @app.task
    def work(text: str) -> None: ...

    monkeypatch.setattr("fairlead.client.stored_submissions.MAX_DRAFT", 3_000)
    one, two = work.call("x" * 1_000), work.call("x" * 2_000)
    small = drafted(one, app._registry, id=None, tenant=None, name="")
    assert encode_draft(small, small.submissions)
    large = drafted(one >> two, app._registry, id=None, tenant=None, name="")
    with pytest.raises(TooLarge, match="the limit is 3000 bytes") as caught:
        encode_draft(large, large.submissions)
    assert "without tx=" in caught.value.__notes__[0]
