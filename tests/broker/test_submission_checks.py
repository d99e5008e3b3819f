from __future__ import annotations

import contextlib
import enum
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.broker.requests import MAX_TENANTS, Submission
from fairlead.broker.submission_checks import (
    MAX_ENVELOPE,
    MAX_TRACE,
    check_submissions,
)
from fairlead.model.argument_packing import MAX_BODY, pack_arguments
from fairlead.model.errors import InvalidInput, InvalidName, InvalidOption, TooLarge
from fairlead.model.message import Body, Message
from fairlead.model.options import Options, resolved
from fairlead.model.priorities import Priorities

MADE = "0190a5b0c0de7000800000000000abcd"


class Customer(str, enum.Enum):  # noqa: UP042 - the older form is what many programs have
    ACME = "acme"


class Level(enum.IntEnum):
    HIGH = 1


class Text(str):
    pass


def message(**changes: Any) -> Message:
    fields: dict[str, Any] = {"id": MADE, "queue": "mail", "tenant": "acme", "body": b"b"}
    return Message(**fields | changes)


def check(made: Message, like: Message | None = None) -> None:
    """Check a message, alone or behind one that passed."""
    check_submissions([Submission(message=each) for each in (like, made) if each is not None])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"id": "x"},
        {"id": "A.b_c-9" + "x" * 121},
        {"id": "acme:x"},
        {"id": "acme:" + "x" * 128},
        {"id": "a:b:x", "tenant": "a:b"},
        {"id": "Ärzte & Co 👩\u200d🚀:x", "tenant": "Ärzte & Co 👩\u200d🚀"},
        {"queue": "x" * 64},
        {"tenant": "é" * 64},
        {"level": 0},
        {"level": 7},
        {"cost": 0.001},
        {"cost": 1_000},
        {"cost": 1_000.0},
        {"cost": 1},
        {"limiters": ("a", "b", "c", "d")},
        {"flags": 2**63 - 1},
        {"version": 2},
        {"body": b""},
        {"body": bytes(MAX_BODY + MAX_ENVELOPE)},
        {"trace": bytes(MAX_TRACE)},
        {"extra": (1, 2)},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_message_within_bounds_passes_and_can_be_read_again(changes: dict[str, Any]) -> None:
    given_message = message(**changes)
    check(given_message)
    check(given_message)  # from memory, this time
    assert Message.decode(given_message.encode()) == given_message


WRONG: dict[str, tuple[type[InvalidInput], list[Any]]] = {
    "id": (
        InvalidName,
        [
            "",
            "a b",
            "x" * 129,
            "acme:",
            "acme:a b",
            "acme:" + "x" * 129,
            "other:x",
            ":x",
            "acme:x:y",
            "acme:x\n",
            "x\n",
            "ä",
            "acm:x",
            "acme::x",
            None,
            5,
            b"x",
            [],
            Text("x"),
            Customer.ACME,
        ],
    ),
    "queue": (
        InvalidName,
        ["", "a b", "x" * 65, "a:b", "a\n", None, 5, b"a", [], {}, Text("a"), Customer.ACME],
    ),
    "tenant": (
        InvalidName,
        ["", "a\nb", "x" * 129, "\ud800", None, 5, b"a", [], {}, Text("acme"), Customer.ACME],
    ),
    "level": (InvalidOption, [-1, 8, 10**5_000, 2.0, True, "2", None, [], Level.HIGH]),
    "cost": (
        InvalidOption,
        [
            0,
            0.0009,
            1_000.1,
            1_001,
            -1,
            math.nan,
            math.inf,
            10**400,
            True,
            "1",
            None,
            [],
            Level.HIGH,
        ],
    ),
    "flags": (InvalidOption, [-1, 2**63, 10**5_000, 0.0, False, "0", None, []]),
    "version": (InvalidOption, [0, -1, 2**63, 1.0, True, "1", None]),
    "body": (InvalidOption, ["b", None, 5, [], bytearray(b"b"), memoryview(b"b")]),
    "trace": (InvalidOption, ["b", None, 5, [], bytearray(b"b"), memoryview(b"b")]),
}


@pytest.mark.parametrize("like", [None, message()], ids=["alone", "behind one that passed"])
@pytest.mark.parametrize("field", WRONG)
def test_what_is_wrong_is_refused_by_name(field: str, like: Message | None) -> None:
    error, values = WRONG[field]
    for value in values:
        with pytest.raises(InvalidInput) as caught:
            check(message(**{field: value}), like)
        assert type(caught.value) is error
        assert str(caught.value).startswith("task id" if field == "id" else field)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("limiters", "error"),
    [
        (("a", "a"), InvalidOption),
        (["a"], InvalidOption),
        ([], InvalidOption),
        ("a", InvalidOption),
        ("", InvalidOption),
        (None, InvalidOption),
        (5, InvalidOption),
        (("a", "b", "c", "d", "e"), TooLarge),
        (("a b",), InvalidName),
        (("a", None), InvalidName),
        (([],), InvalidName),
        ((Customer.ACME,), InvalidName),
    ],
    ids=repr,
)
def test_limiters_are_a_tuple_of_different_names(limiters: Any, error: type[InvalidInput]) -> None:
    for like in (None, message()):
        with pytest.raises(InvalidInput, match="limiter") as caught:
            check(message(limiters=limiters), like)
        assert type(caught.value) is error


@pytest.mark.parametrize(
    ("field", "limit"), [("body", MAX_BODY + MAX_ENVELOPE), ("trace", MAX_TRACE)]
)
def test_bodies_and_traces_are_bounded(field: str, limit: int) -> None:
    with pytest.raises(TooLarge, match=f"the {field} is {limit + 1} bytes") as caught:
        check(message(**{field: bytes(limit + 1)}), message())
    assert (caught.value.size, caught.value.limit) == (limit + 1, limit)


def test_the_largest_arguments_fit_with_their_envelope() -> None:
    overhead = len(pack_arguments([bytes(70_000)], {})) - 70_000
    arguments = pack_arguments([bytes(MAX_BODY - overhead)], {})
    assert len(arguments) == MAX_BODY
    body = Body(task="x" * 200, arguments=arguments, timeout=1.5, retention=1.5, max_retries=1_000)
    check(message(body=body.encode()))


@pytest.mark.parametrize(
    "changes", [{"queue": "a b"}, {"tenant": ""}, {"level": 9}, {"cost": 0}, {"flags": -1}]
)
def test_a_batch_with_one_that_is_wrong_is_refused(changes: dict[str, Any]) -> None:
    good, bad = Submission(message=message()), Submission(message=message(**changes))
    check_submissions([good])
    for batch in ([bad], [good, bad]):
        with pytest.raises(InvalidInput):
            check_submissions(batch)


def test_a_call_has_tasks_of_so_many_tenants() -> None:
    batch = [Submission(message=message(tenant=f"t{n}")) for n in range(MAX_TENANTS + 1)]
    check_submissions(batch[1:])
    with pytest.raises(TooLarge, match="tenants"):
        check_submissions(batch)


@given(
    tenant=st.text(
        st.characters(
            exclude_categories=["Cc", "Cs", "Zl", "Zp"],
            exclude_characters="\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
        ),
        min_size=1,
    ).filter(lambda tenant: len(tenant.encode()) <= 128 and not tenant.isspace()),
    id=st.from_regex(r"[A-Za-z0-9_.-]{1,31}", fullmatch=True),
    cost=st.floats(0.001, 1_000) | st.integers(1, 1_000),
    limiters=st.lists(st.sampled_from("abcd")),
)
def test_whatever_options_allow_passes(tenant: str, id: str, cost: float, limiters: Any) -> None:
    options = Options(tenant=tenant, id=id, cost=cost, limiters=limiters)
    found = resolved(options, Priorities())
    assert found.id is not None
    check(
        Message(
            id=found.id,
            queue=found.queue,
            tenant=found.tenant,
            level=found.level,
            cost=found.cost,
            limiters=found.limiters,
            body=b"",
        )
    )


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
fields = st.sampled_from(Message.__struct_fields__[:10])


@given(st.dictionaries(fields, anything | st.lists(st.text()) | st.lists(st.text()).map(tuple)))
def test_a_message_passes_or_is_refused_by_a_typed_error(changes: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidName, InvalidOption, TooLarge):
        check(message(**changes))
