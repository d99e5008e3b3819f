from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fairlead.model.errors import InvalidInput, InvalidName
from fairlead.model.names import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    check_id,
    check_key,
    check_limiter,
    check_queue,
    check_task_name,
    check_tenant,
    full_id,
    scoped_id,
)

Check = Callable[[object], str]


def check_unique(value: object) -> str:
    return check_key("unique key", value)


STRICT: dict[str, Check] = {  # a fixed alphabet
    "queue": check_queue,
    "limiter": check_limiter,
    "task id": check_id,
    "task name": check_task_name,
}
TEXT: dict[str, Check] = {"tenant": check_tenant, "unique key": check_unique}  # any text
ALL = STRICT | TEXT
ALPHABET = "ABCXYZabcxyz0189_.-"

#: Refused by every kind.
HOSTILE = {
    "empty": "",
    "newline": "a\nb",
    "newline at the end": "a\n",
    "carriage return": "a\rb",
    "NUL": "a\x00b",
    "escape": "\x1b[31m",
    "delete": "a\x7f",
    "C1 control": "a\x85b",
    "tab": "a\tb",
    "10 kB": "a" * 10_240,
    "lone surrogate": "a\ud800",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "right-to-left override": "a\u202eb",
    "isolate": "a\u2066b",
    "a lone space": " ",
    "spaces only": " \u00a0 ",
}
#: Fine in a tenant or a key, refused where the alphabet is fixed.
ODD = {
    "braces": "{a}",
    "star": "a*",
    "space": "a b",
    "slash": "a/b",
    "question mark": "a?",
    "brackets": "[a]",
    "quote": "a'\"",
    "percent": "%s",
    "umlaut": "ä",
    "emoji": "😀",
    "fullwidth letter": "\uff41",
    "other digit": "٣",
    "no-break space": "a\u00a0b",
    "zero-width joiner": "👩\u200d🚀",
    "zero-width non-joiner": "\u0645\u06cc\u200c\u062e",
    "left-to-right mark": "a\u200e",
    "unassigned": "a\U0001faff\U000e0fff",  # an emoji of a later Unicode, perhaps
}
NOT_TEXT: list[Any] = [None, 5, 1.5, True, b"a", ["a"], ("a",), {"a": 1}, object(), str]

tenants = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x24F).filter(str.isprintable),
    min_size=1,
    max_size=40,
) | st.sampled_from(["a", "b", "a:b", "a:", ":", ":a", "a:b:c", "b:c", "default"])
made = st.uuids(version=4).map(lambda u: UUID(int=u.int & ~(0xF << 76) | (7 << 76)).hex)
chosen = st.text(ALPHABET, min_size=1, max_size=128)


def refused(check: Check, kind: str, value: object) -> InvalidName:
    with pytest.raises(InvalidName) as caught:
        check(value)
    assert caught.value.kind == kind
    assert caught.value.value is value
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    return caught.value


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_by_every_kind(value: str) -> None:
    for kind, check in ALL.items():
        refused(check, kind, value)


@pytest.mark.parametrize("value", NOT_TEXT, ids=lambda value: type(value).__name__)
def test_what_is_not_text_is_refused_by_every_kind(value: object) -> None:
    for kind, check in ALL.items():
        refused(check, kind, value)


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_odd_text_is_refused_where_the_alphabet_is_fixed(value: str) -> None:
    for kind, check in STRICT.items():
        refused(check, kind, value)


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_odd_text_is_fine_for_tenants_and_keys(value: str) -> None:
    for kind, check in TEXT.items():
        assert check(value) == value, kind


@pytest.mark.parametrize("kind", ["queue", "limiter", "task id"])
def test_a_colon_is_refused_in_queues_limiters_and_ids(kind: str) -> None:
    refused(ALL[kind], kind, "a:b")


@pytest.mark.parametrize(
    ("kind", "longest"), [("queue", 64), ("limiter", 64), ("task id", 128), ("task name", 200)]
)
def test_the_longest_name_is_fine_and_one_more_character_is_not(kind: str, longest: int) -> None:
    assert ALL[kind]("x" * longest) == "x" * longest
    refused(ALL[kind], kind, "x" * (longest + 1))


@pytest.mark.parametrize(("kind", "longest"), [("tenant", 128), ("unique key", 256)])
@pytest.mark.parametrize(("letter", "size"), [("x", 1), ("é", 2), ("€", 3), ("😀", 4)])
def test_tenants_and_keys_are_measured_in_bytes(
    kind: str, longest: int, letter: str, size: int
) -> None:
    most = longest // size
    assert ALL[kind](letter * most) == letter * most
    refused(ALL[kind], kind, letter * (most + 1))


@pytest.mark.parametrize("kind", ["queue", "limiter", "task id"])
@given(value=st.text(ALPHABET, min_size=1, max_size=64))
def test_any_text_of_the_alphabet_is_a_name(kind: str, value: str) -> None:
    assert ALL[kind](value) == value


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("queue", r"[A-Za-z0-9_.-]{1,64}"),
        ("limiter", r"[A-Za-z0-9_.-]{1,64}"),
        ("task id", r"[A-Za-z0-9_.-]{1,128}"),
        ("task name", r"[A-Za-z_][A-Za-z0-9_.:<>-]{0,199}"),
    ],
)
@given(value=st.text(max_size=80) | st.text(ALPHABET + ":<>\n", max_size=220))
def test_nothing_else_is_a_name(kind: str, pattern: str, value: str) -> None:
    if re.fullmatch(pattern, value, re.ASCII):
        assert ALL[kind](value) == value
    else:
        refused(ALL[kind], kind, value)


@pytest.mark.parametrize("kind", TEXT)
@given(value=st.text(st.characters(), max_size=70))
def test_an_accepted_tenant_or_key_can_be_stored_and_logged_on_one_line(
    kind: str, value: str
) -> None:
    try:
        accepted = TEXT[kind](value)
    except InvalidName:
        return
    assert accepted == value
    assert 1 <= len(value.encode()) <= (128 if kind == "tenant" else 256)
    assert len(value.splitlines()) == 1
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in value)


@pytest.mark.parametrize(
    "name", ["send", "_private", "app.mail.send", "a:b", "f.<locals>.g", "Mail.send-all", "x9"]
)
def test_functions_and_methods_have_fitting_task_names(name: str) -> None:
    assert check_task_name(name) == name


@pytest.mark.parametrize("name", ["9lives", ".hidden", "-x", ":x", "<lambda>"])
def test_a_task_name_starts_with_a_letter_or_an_underscore(name: str) -> None:
    assert "starting with a letter or _" in refused(check_task_name, "task name", name).rule


def test_the_error_says_kind_value_and_rule() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_queue("no way")
    assert str(caught.value) == (
        "queue 'no way' is not valid: it must be 1 to 64 characters out of A-Z a-z 0-9 _ . -"
    )
    with pytest.raises(InvalidName, match=r"^XCom key '' is not valid: it must be 1 to 256 bytes"):
        check_key("XCom key", "")


def test_the_defaults_obey_the_rules() -> None:
    assert check_queue(DEFAULT_QUEUE) == check_tenant(DEFAULT_TENANT) == "default"


@given(tenants, chosen)
@example("a:b", "x")
def test_scoping_names_the_tenant_and_twice_is_the_same_as_once(tenant: str, id: str) -> None:
    assume(not re.fullmatch(r"[0-9a-f]{32}", id))
    scoped = scoped_id(tenant, id)
    assert scoped == f"{tenant}:{id}"
    assert scoped_id(tenant, scoped) == scoped
    assert full_id(tenant, id) == full_id(tenant, scoped) == scoped


texts = st.text("ab:.", min_size=1, max_size=6)


@given(texts, texts, texts, texts)
@example("a", "b:x", "a:b", "x")
@example("a", "a:x", "a:a", "x")
def test_two_tenants_never_share_an_id(one: str, first: str, other: str, second: str) -> None:
    assume(one != other)
    ids = []
    for tenant, id in ((one, first), (other, second)):
        try:
            ids.append(scoped_id(tenant, id))
        except InvalidName:
            return
    assert ids[0] != ids[1]


@given(tenants, tenants, chosen)
def test_the_scoped_id_of_another_tenant_is_refused_or_means_the_same(
    mine: str, theirs: str, id: str
) -> None:
    assume(mine != theirs and not re.fullmatch(r"[0-9a-f]{32}", id))
    with pytest.raises(InvalidName):
        full_id(mine, scoped_id(theirs, id))


@given(tenants, made)
def test_a_made_id_stands_for_itself_whoever_asks_but_cannot_be_chosen(
    tenant: str, id: str
) -> None:
    assert full_id(tenant, id) == id
    for choice in (id, f"{tenant}:{id}"):
        with pytest.raises(InvalidName, match="unlike the ids that Fairlead makes"):
            scoped_id(tenant, choice)


@given(tenants, st.text("0123456789abcdef", min_size=32, max_size=32))
def test_hex_that_is_no_uuid_of_version_seven_is_a_chosen_id(tenant: str, id: str) -> None:
    assume(not (id[12] == "7" and id[16] in "89ab"))
    assert full_id(tenant, id) == scoped_id(tenant, id) == f"{tenant}:{id}"


@pytest.mark.parametrize(
    "id",
    [
        "0190A5B0C0DE7000800000000000ABCD",  # capitals
        "0190a5b0-c0de-7000-8000-00000000abcd",
        "0190a5b0c0de7000800000000000abcd0",
        "0190a5b0c0de7000800000000000abc",
    ],
)
def test_what_only_resembles_a_made_id_is_a_chosen_one(id: str) -> None:
    assert full_id("acme", id) == f"acme:{id}"


@pytest.mark.parametrize(
    "id", [*HOSTILE.values(), *ODD.values(), "a:b", "other:x", "acme:", "acme:acme:x", *NOT_TEXT]
)
def test_a_hostile_id_is_refused_by_both(id: object) -> None:
    for scope in (scoped_id, full_id):
        with pytest.raises(InvalidName):
            scope("acme", id)


TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Customer(str, enum.Enum):  # noqa: UP042 - the older form is what many programs have
    ACME = "acme"


def test_controls_line_separators_changes_of_direction_and_lone_spaces_are_refused() -> None:
    refused_ones = {
        chr(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp", "Zs")
        or unicodedata.bidirectional(chr(code)) in TURNS
    }
    for code in range(0x110000):
        if chr(code) in refused_ones:
            with pytest.raises(InvalidName):
                check_tenant(chr(code))
        else:
            check_tenant(chr(code))


@pytest.mark.parametrize("kind", ALL)
def test_a_name_comes_back_as_plain_text(kind: str) -> None:
    found = ALL[kind](Customer.ACME)
    assert (type(found), found) == (str, "acme")


def test_an_id_comes_back_as_plain_text() -> None:
    class Id(str):
        def __str__(self) -> str:
            return "another"

    for id in (Id("0190a5b0c0de7000800000000000abcd"), Id("x"), Id("acme:x")):
        found = full_id("acme", id)
        assert type(found) is str
        assert found.endswith(id[-1])


def test_a_tenant_that_is_a_member_of_an_enum_scopes_ids_by_its_value() -> None:
    assert scoped_id(check_tenant(Customer.ACME), "x") == "acme:x"
