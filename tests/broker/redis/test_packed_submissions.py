"""Submissions that are packed at once are what the client library makes of their arguments."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.broker.redis import answers
from fairlead.broker.redis.encode import submission_args
from fairlead.broker.redis.packed_submissions import PackedSubmissions, beginning
from fairlead.broker.redis.wire import pack
from fairlead.broker.requests import LeaseRef, Submission
from fairlead.broker.submissions import Submissions
from fairlead.model.lifecycle import Settlement, State
from fairlead.model.message import Message, shares_head
from fairlead.model.options import Dependency, Unique

HEAD = ("t1.5", "ärger", 12_345)


def one(id: str, body: bytes = b"b", *, special: Any = None, **fields: Any) -> Submission:
    message = Message(id=id, body=body, **{"queue": "mail", "tenant": "acme"} | fields)
    return Submission(message=message, **special or {})


def alike(count: int, **fields: Any) -> list[Submission]:
    return [one(f"{n:032x}", b"b" * n, **fields) for n in range(count)]


@pytest.mark.parametrize(
    "batch",
    [
        [],
        alike(1),
        alike(1, queue="other"),
        alike(300),
        [one("a" * 128, b"\0\r\n" * 5_000, trace=b"trace" * 100)],
        [*alike(3), *alike(12, level=1), *alike(1, tenant="umlaut-ä"), *alike(2)],
        [each for n in range(30) for each in alike(1, cost=1.0 + n % 3)],
        [*alike(2), one("x", extra=(1, b"2")), *alike(2)],
        [*alike(2), one("x", special={"delay": 1.0}), *alike(2)],
        [one("x", special={"at": 1.0})],
        [one("x", special={"deadline": 1.0})],
        [one("x", special={"depends_on": (Dependency("y"),)})],
        [one("x", special={"unique": Unique(key="k")})],
        [one("x", special={"fence": LeaseRef("p", "i", 1)})],
        [one("x", special={"ended": Settlement(id="x", token=0, to=State.COMPLETED)})],
    ],
)
def test_the_command_is_the_same(batch: list[Submission]) -> None:
    args = submission_args(batch)
    for _ in range(2):  # the second time the head is remembered
        packed = PackedSubmissions(batch)
        assert (list(packed), packed.args) == (batch, args)
        command = beginning(packed.length, "f", "key", HEAD) + packed.tail
        assert command == pack(("FCALL", "f", 1, "key", *HEAD, *args))


def test_a_head_that_another_thread_remembers_meanwhile_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a task would be stored as one of another tenant."""
    interruptions = ["others"]

    def pattern_of(tenant: str) -> Submissions:
        return Submissions([one("", tenant=tenant)], ["x"], [b"b"])

    def interrupted(message: Message, other: Message) -> bool:
        is_shared = shares_head(message, other)
        while interruptions:
            PackedSubmissions(pattern_of(interruptions.pop()))
        return is_shared

    module = PackedSubmissions.__module__
    monkeypatch.setattr(f"{module}._last", (None, b""))  # what it remembers is forgotten after this
    PackedSubmissions(pattern_of("mine"))
    monkeypatch.setattr(f"{module}.shares_head", interrupted)
    packed = PackedSubmissions(pattern_of("mine"))
    assert not interruptions
    assert beginning(packed.length, "f", "key", HEAD) + packed.tail == pack(
        ("FCALL", "f", 1, "key", *HEAD, *packed.args)
    )


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        PackedSubmissions([one("x", special={"unique": Unique(key="\ud800")})])
    with pytest.raises(UnicodeEncodeError):
        beginning(1, "f", "key", ("", "\ud800", 1))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_answer_among_many_that_is_another_is_read(place: int) -> None:
    said, ids = [b"a3"] * 3, ["x", "y", "z"]
    assert [r.code for r in answers.receipts(b"\x1e".join(said), ids)] == ["accepted"] * 3
    said[place] = b"c3"
    found = answers.receipts(b"\x1e".join(said), ids)
    assert [r.code for r in found].index("conflict") == place
    assert [r.id for r in found] == ids
    again = answers.receipts(b"\x1e".join([b"a3"] * 2) + b"\x1dv\x1fw", ids)
    assert [r.id for r in again] == ["v", "w"]  # those that the number was used for first
