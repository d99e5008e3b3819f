"""Documents are small, have revisions and an end; trails keep the latest notes."""

from __future__ import annotations

import math

import pytest

from fairlead.broker import Store
from fairlead.broker.documents import (
    MAX_DOCUMENT,
    MAX_DOCUMENTS,
    MAX_NOTES,
    MAX_TRAIL_BYTES,
    MAX_TRAILS,
    Document,
    DocumentChange,
    DocumentChanged,
    DocumentPage,
    Note,
)
from fairlead.broker.requests import MAX_PAGE, MAX_STEP, Call
from fairlead.model.errors import InvalidInput, OutOfOrder, Refused
from tests.support.store import NOW, Client


def put(
    name: str,
    value: bytes | None = b"v",
    kind: str = "token",
    *,
    ttl: float | None = None,
    revision: int | None = None,
) -> DocumentChange:
    return DocumentChange(kind=kind, name=name, value=value, ttl=ttl, revision=revision)


async def write(c: Client, *changes: DocumentChange, now: float = NOW) -> list[DocumentChanged]:
    return await c.broker.write_documents(c.call(), changes, now=now)


async def write_many(c: Client, count: int, *, ttl: float | None = None, first: int = 0) -> None:
    for start in range(first, first + count, MAX_STEP):
        many = min(MAX_STEP, first + count - start)
        answers = await write(c, *(put(f"d{start + n:05}", ttl=ttl) for n in range(many)))
        assert {answer.code for answer in answers} == {"done"}


async def read(broker: Store, name: str, kind: str = "token", now: float = NOW) -> Document | None:
    found = (await broker.documents(kind, [name], now=now)).documents
    return found[0] if found else None


def names(page: DocumentPage) -> list[str]:
    return [document.name for document in page.documents]


async def listed(broker: Store, kind: str, limit: int) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await broker.documents(kind, cursor=cursor, limit=limit, now=NOW)
        assert len(page.documents) <= limit
        found += names(page)
        cursor = page.cursor
        if cursor is None:
            return found


async def noted(broker: Store, trail: str = "audit") -> list[bytes]:
    return [each.value for each in await broker.notes(trail, limit=MAX_PAGE, now=NOW)]


# -- documents -----------------------------------------------------------------------------------


async def test_a_document_is_what_was_written(c: Client) -> None:
    (answer,) = await write(c, put("a", b"\x00\x1e\x1f\xff"), now=NOW + 1)
    assert answer == DocumentChanged(code="done", revision=answer.revision)
    assert answer.revision >= (NOW + 1) * 1e6

    page = await c.broker.documents("token", ["a"], now=NOW + 2)
    assert page == DocumentPage(
        now=NOW + 2,
        documents=[
            Document(
                kind="token",
                name="a",
                value=b"\x00\x1e\x1f\xff",
                revision=answer.revision,
                changed_at=NOW + 1,
            )
        ],
    )


async def test_an_empty_document_is_one(c: Client) -> None:
    await write(c, put("a", b""))
    found = await read(c.broker, "a")
    assert found is not None
    assert found.value == b""


async def test_kinds_do_not_know_each_other(c: Client) -> None:
    await write(c, put("a", b"1"), put("a", b"2", "catalog"), put("a", b"3", "token:use"))
    values = []
    for kind in ("token", "catalog", "token:use", "nothing"):
        found = await read(c.broker, "a", kind)
        values.append(None if found is None else found.value)
    assert values == [b"1", b"2", b"3", None]


async def test_each_write_gives_a_new_revision(c: Client) -> None:
    answers = [*await write(c, put("a"), put("b"), put("a")), *await write(c, put("a"))]
    revisions = [answer.revision for answer in answers]
    assert revisions == sorted(set(revisions))
    found = await read(c.broker, "a")
    assert found is not None
    assert found.revision == revisions[-1]


async def test_a_change_of_another_revision_is_stale(c: Client) -> None:
    (first,) = await write(c, put("a", b"1"))
    (second,) = await write(c, put("a", b"2", revision=first.revision))
    assert second.code == "done"
    for change in (put("a", b"3", revision=first.revision), put("a", None, revision=5)):
        assert await write(c, change) == [DocumentChanged(code="stale", revision=second.revision)]
    found = await read(c.broker, "a")
    assert found is not None
    assert found.value == b"2"


async def test_revision_0_stands_for_none(c: Client) -> None:
    (first, second) = await write(c, put("a", b"1", revision=0), put("a", b"2", revision=0))
    assert (first.code, second) == (
        "done",
        DocumentChanged(code="stale", revision=first.revision),
    )
    assert await write(c, put("b", None, revision=0)) == [DocumentChanged(code="done")]


async def test_a_change_of_what_is_gone_is_stale(c: Client) -> None:
    (first,) = await write(c, put("a"))
    assert await write(c, put("a", None)) == [DocumentChanged(code="done")]
    changes = [put("a", revision=first.revision), put("a", None, revision=first.revision)]
    assert await write(c, *changes) == [DocumentChanged(code="stale")] * 2


async def test_what_is_deleted_is_gone(c: Client) -> None:
    await write(c, put("a"), put("b"))
    assert await write(c, put("a", None)) == [DocumentChanged(code="done")]
    assert await read(c.broker, "a") is None
    assert await listed(c.broker, "token", 10) == ["b"]


async def test_to_delete_what_is_not_there_is_done(c: Client) -> None:
    assert await write(c, put("a", None)) == [DocumentChanged(code="done")]


async def test_changes_of_a_batch_are_carried_out_in_order(c: Client) -> None:
    answers = await write(c, put("a", b"1"), put("a", None), put("a", b"2", revision=0))
    assert [answer.code for answer in answers] == ["done"] * 3
    found = await read(c.broker, "a")
    assert found is not None
    assert found.value == b"2"


async def test_what_is_past_its_ttl_is_gone_for_everybody_at_once(c: Client) -> None:
    (answer,) = await write(c, put("a", ttl=10.0))
    found = await read(c.broker, "a", now=NOW + 9.9)
    assert found is not None
    assert found.expires_at == NOW + 10.0
    assert await read(c.broker, "a", now=NOW + 10.0) is None
    assert names(await c.broker.documents("token", now=NOW + 10.0)) == []
    stale = await write(c, put("a", None, revision=answer.revision), now=NOW + 10.0)
    assert stale == [DocumentChanged(code="stale")]
    (anew,) = await write(c, put("a", revision=0), now=NOW + 10.0)
    assert anew.code == "done"


async def test_each_write_has_a_ttl_of_its_own_or_none(c: Client) -> None:
    await write(c, put("a", ttl=10.0), put("b", ttl=10.0), put("c"))
    await write(c, put("a"), put("b", ttl=60.0), put("c", ttl=10.0), now=NOW + 5)
    page = await c.broker.documents("token", now=NOW + 20)
    assert [(each.name, each.expires_at) for each in page.documents] == [
        ("a", None),
        ("b", NOW + 65),
    ]
    assert (await c.broker.tidy(now=NOW + 20)).count == 1
    assert names(await c.broker.documents("token", now=NOW + 20)) == ["a", "b"]


async def test_tidy_removes_what_is_over_in_steps(c: Client) -> None:
    await write_many(c, 2 * MAX_STEP + 10, ttl=10.0)
    await write(c, put("other", kind="catalog", ttl=20.0), put("stays"))
    steps = []
    while True:
        moved = await c.broker.tidy(now=NOW + 11)
        steps.append(moved.count)
        if not moved.more:
            break
    assert steps == [MAX_STEP, MAX_STEP, 10]
    assert await read(c.broker, "other", "catalog", NOW + 11) is not None
    assert (await c.broker.tidy(now=NOW + 21)).count == 1
    assert names(await c.broker.documents("token", now=NOW + 21)) == ["stays"]


async def test_a_kind_holds_so_many_and_what_is_over_makes_room(c: Client) -> None:
    await write_many(c, MAX_DOCUMENTS - 2)
    await write(c, put("brief", ttl=10.0))
    last, over, again = await write(c, put("last"), put("over"), put("last"))
    assert (last.code, over, again.code) == ("done", DocumentChanged(code="full"), "done")
    assert (await write(c, put("over", kind="other")))[0].code == "done"
    answers = await write(c, put("last", None), put("over"), put("beyond"))
    assert [answer.code for answer in answers] == ["done", "done", "full"]
    answers = await write(c, put("beyond"), put("too many"), now=NOW + 10)
    assert [answer.code for answer in answers] == ["done", "full"]


async def test_unknown_names_are_left_out(c: Client) -> None:
    await write(c, put("b"), put("a"), put("c"))
    assert names(await c.broker.documents("token", ["c", "x", "a", "c"], now=NOW)) == ["a", "c"]
    assert names(await c.broker.documents("token", [], now=NOW)) == []


async def test_pages_list_each_document_once_by_name(c: Client) -> None:
    await write_many(c, 120)
    await write(c, put("Z"), put("é"), put("with space"), put("z:z"))
    expected = sorted([*(f"d{n:05}" for n in range(120)), "Z", "é", "with space", "z:z"])
    assert await listed(c.broker, "token", 50) == expected
    assert await listed(c.broker, "token", 124) == expected
    assert await listed(c.broker, "token", 1) == expected
    assert await listed(c.broker, "nothing", 10) == []


async def test_what_stays_is_listed_once_while_others_come_and_go(c: Client) -> None:
    await write_many(c, 60)
    found: list[str] = []
    cursor, place = None, 0
    while True:
        page = await c.broker.documents("token", cursor=cursor, limit=10, now=NOW)
        found += names(page)
        cursor = page.cursor
        if cursor is None:
            break
        place += 10
        gone = [put(f"d{n:05}", None) for n in (place - 1, place)]
        await write(c, *gone, put(cursor + "-new"), put("d00000", b"again"))
    stays = {f"d{n:05}" for n in range(60) if n % 10 not in (0, 9)} | {"d00000"}
    assert [name for name in found if name in stays] == sorted(stays)
    assert len(found) == len(set(found))


async def test_a_page_ends_when_it_has_read_much(c: Client) -> None:
    large = bytes(MAX_DOCUMENT)
    for start in (0, 40):
        await write(c, *(put(f"d{start + n:02}", large) for n in range(40)))
    page = await c.broker.documents("token", limit=1_000, now=NOW)
    assert page.cursor is not None
    assert 60 <= len(page.documents) <= 65
    assert await listed(c.broker, "token", 1_000) == [f"d{n:02}" for n in range(80)]
    named = [f"d{n:02}" for n in range(80)]
    assert names(await c.broker.documents("token", named, now=NOW)) == named


@pytest.mark.parametrize(
    "change",
    [
        put(""),
        put("a", kind=""),
        put("a\x1fb"),
        put("a", kind="line\nbreak"),
        put("a", bytes(MAX_DOCUMENT + 1)),
        put("a", ttl=0.0),
        put("a", ttl=math.nan),
        put("a", ttl=math.inf),
        put("a", revision=-1),
    ],
    ids=lambda change: f"{change.kind[:5]!r} {change.name!r} {change.ttl} {change.revision}",
)
async def test_what_cannot_be_written_is_refused_with_all_of_its_batch(
    c: Client, change: DocumentChange
) -> None:
    with pytest.raises(InvalidInput):
        await write(c, put("ok"), change)
    assert await read(c.broker, "ok") is None


async def test_a_batch_over_its_limit_is_refused(c: Client) -> None:
    with pytest.raises(InvalidInput):
        await write(c, *(put(f"d{n}") for n in range(MAX_STEP + 1)))
    for limit in (0, MAX_PAGE + 1):
        with pytest.raises(InvalidInput):
            await c.broker.documents("token", limit=limit, now=NOW)
    with pytest.raises(InvalidInput):
        await c.broker.documents("token", ["d"] * (MAX_PAGE + 1), now=NOW)
    assert await write(c) == []


async def test_the_last_number_again_writes_nothing_and_gets_the_same_answers(c: Client) -> None:
    answers = await write(c, put("a", b"1", revision=0), put("a", b"2", revision=0))
    again = Call(c.incarnation, c.number)
    changes = [put("a", b"1", revision=0), put("a", b"2", revision=0)]
    assert await c.broker.write_documents(again, changes, now=NOW) == answers
    found = await read(c.broker, "a")
    assert found is not None
    assert found.revision == answers[0].revision
    await write(c, put("a", None))
    with pytest.raises(OutOfOrder):
        await c.broker.write_documents(again, changes, now=NOW)
    last = Call(c.incarnation, c.number)
    assert await c.broker.write_documents(last, [put("a", None)], now=NOW) == [
        DocumentChanged(code="done")
    ]
    with pytest.raises(InvalidInput):
        await c.broker.note(last, "audit", [b"n"], now=NOW)


# -- trails --------------------------------------------------------------------------------------


async def test_notes_are_read_the_latest_first(c: Client) -> None:
    await c.broker.note(c.call(), "audit", [b"1", b"2\x1f\x00"], now=NOW + 1)
    await c.broker.note(c.call(), "audit", [b""], now=NOW + 2)
    found = await c.broker.notes("audit", now=NOW + 3)
    assert [(note.value, note.at) for note in found] == [
        (b"", NOW + 2),
        (b"2\x1f\x00", NOW + 1),
        (b"1", NOW + 1),
    ]
    numbers = [note.number for note in found]
    assert numbers == sorted(set(numbers), reverse=True)
    assert numbers[-1] >= (NOW + 1) * 1e6


async def test_notes_are_read_in_parts(c: Client) -> None:
    for start in range(0, 100, MAX_STEP):
        values = [b"%d" % (start + n) for n in range(MAX_STEP)]
        await c.broker.note(c.call(), "audit", values, now=NOW)
    found: list[Note] = []
    before = None
    while page := await c.broker.notes("audit", before=before, limit=30, now=NOW):
        assert len(page) <= 30
        found += page
        before = page[-1].number
    assert [note.value for note in found] == [b"%d" % n for n in reversed(range(100))]
    assert await c.broker.notes("audit", before=found[-1].number, now=NOW) == []


async def test_trails_do_not_know_each_other(c: Client) -> None:
    await c.broker.note(c.call(), "audit", [b"1"], now=NOW)
    await c.broker.note(c.call(), "audit:2", [b"2"], now=NOW)
    assert [await noted(c.broker, each) for each in ("audit", "audit:2", "x")] == [
        [b"1"],
        [b"2"],
        [],
    ]


async def test_a_trail_keeps_its_last_notes(c: Client) -> None:
    for start in range(0, MAX_NOTES, MAX_STEP):
        values = [b"%d" % (start + n) for n in range(MAX_STEP)]
        await c.broker.note(c.call(), "audit", values, now=NOW)
    await c.broker.note(c.call(), "audit", [b"last", b"of all"], now=NOW)
    last = await c.broker.notes("audit", limit=3, now=NOW)
    assert [note.value for note in last] == [b"of all", b"last", b"%d" % (MAX_NOTES - 1)]
    count, before, oldest = 0, None, b""
    while page := await c.broker.notes("audit", before=before, limit=MAX_PAGE, now=NOW):
        count, before, oldest = count + len(page), page[-1].number, page[-1].value
    assert (count, oldest) == (MAX_NOTES, b"2")


async def test_a_trail_keeps_so_many_bytes(c: Client) -> None:
    await c.broker.note(c.call(), "audit", [b"%02d" % n for n in range(MAX_STEP)], now=NOW)
    large = bytes(MAX_DOCUMENT)
    fit = MAX_TRAIL_BYTES // MAX_DOCUMENT
    for _ in range(fit // 32):
        await c.broker.note(c.call(), "audit", [large] * 32, now=NOW)
    assert await noted(c.broker) == [large] * fit
    await c.broker.note(c.call(), "audit", [b"one", b"more"], now=NOW)
    assert await noted(c.broker) == [b"more", b"one", *[large] * (fit - 1)]


async def test_the_first_note_of_one_more_trail_is_refused(c: Client) -> None:
    for n in range(MAX_TRAILS):
        await c.broker.note(c.call(), f"trail-{n}", [b"x"], now=NOW)
    await c.broker.note(c.call(), "empty", [], now=NOW)
    with pytest.raises(Refused) as caught:
        await c.broker.note(c.call(), "one-more", [b"x"], now=NOW)
    assert caught.value.cause == "trails"
    assert await noted(c.broker, "one-more") == []
    await c.broker.note(c.call(), "trail-0", [b"y"], now=NOW)
    assert await noted(c.broker, "trail-0") == [b"y", b"x"]


async def test_notes_that_no_trail_can_keep_are_refused(c: Client) -> None:
    for trail, values in [
        ("", [b"x"]),
        ("audit", [b"x"] * (MAX_STEP + 1)),
        ("audit", [b"x", bytes(MAX_DOCUMENT + 1)]),
    ]:
        with pytest.raises(InvalidInput):
            await c.broker.note(c.call(), trail, values, now=NOW)
    for before, limit in ((None, 0), (None, MAX_PAGE + 1), (-1, 1)):
        with pytest.raises(InvalidInput):
            await c.broker.notes("audit", before=before, limit=limit, now=NOW)
    assert await noted(c.broker) == []


async def test_the_last_number_again_notes_nothing(c: Client) -> None:
    await c.broker.note(c.call(), "audit", [b"once"], now=NOW)
    await c.broker.note(Call(c.incarnation, c.number), "audit", [b"once"], now=NOW)
    assert await noted(c.broker) == [b"once"]
