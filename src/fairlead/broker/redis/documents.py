"""Documents and notes: the verbs, and how the scripts read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from fairlead.broker.documents import (
    Document,
    DocumentChange,
    DocumentChanged,
    DocumentPage,
    Note,
    check_document_changes,
    check_document_page,
    check_notes,
    check_trail,
)
from fairlead.broker.redis.layout import DOCUMENT, RS, US
from fairlead.broker.redis.session import Session
from fairlead.broker.redis.wire import Value
from fairlead.broker.requests import Call

_CODES: dict[bytes, Literal["done", "stale", "full"]] = {b"d": "done", b"s": "stale", b"f": "full"}


async def write_documents(
    session: Session, call: Call, changes: Sequence[DocumentChange], *, now: float | None = None
) -> list[DocumentChanged]:
    check_document_changes(changes)
    only_deletes = all(change.value is None for change in changes)
    verb = "delete_documents" if only_deletes else "write_documents"
    reply = await session.numbered(verb, call, now, _args(changes))
    return _changed(reply)


async def documents(
    session: Session,
    kind: str,
    names: Sequence[str] | None = None,
    *,
    cursor: str | None = None,
    limit: int = 100,
    now: float | None = None,
) -> DocumentPage:
    check_document_page(kind, names, cursor, limit)
    clock = session.clock(now)
    if names is None:
        reply = await session.run("documents", [clock, kind, limit, cursor or ""])
        time, _, more, last, *told = reply
        found = _documents(kind, told)
        after = last.decode() if more else None
        return DocumentPage(now=float(time), documents=found, cursor=after)
    found, wanted = [], sorted(set(names))
    while True:  # a call ends when it has told enough
        time, looked, _, _, *told = await session.run("documents", [clock, kind, 0, "", *wanted])
        found += _documents(kind, told)
        wanted = wanted[looked:]
        if not wanted:
            return DocumentPage(now=float(time), documents=found)


async def note(
    session: Session, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
) -> None:
    check_notes(trail, values)
    await session.numbered("note", call, now, [trail, *values])


async def notes(
    session: Session,
    trail: str,
    *,
    before: int | None = None,
    limit: int = 100,
    now: float | None = None,
) -> list[Note]:
    check_trail(trail, before, limit)
    below: Value = "" if before is None else before
    told = await session.run("notes", [session.clock(now), trail, below, limit])
    return [read_note(each) for each in told]


def _args(changes: Iterable[DocumentChange]) -> list[Value]:
    """Six for each change."""
    args: list[Value] = []
    for change in changes:
        args += (change.kind, change.name, "d" if change.value is None else "w")
        args.append(change.value or b"")
        args.append("" if change.ttl is None else repr(change.ttl))
        args.append("" if change.revision is None else change.revision)
    return args


def _changed(reply: bytes) -> list[DocumentChanged]:
    """What became of each change."""
    return [
        DocumentChanged(code=_CODES[text[:1]], revision=int(text[1:]))
        for text in (reply.split(RS) if reply else [])
    ]


def _documents(kind: str, told: Sequence[Any]) -> list[Document]:
    """Those that a script told of: names, and what is stored."""
    return [
        _document(kind, name.decode(), stored)
        for name, stored in zip(told[::2], told[1::2], strict=True)
    ]


def _document(kind: str, name: str, stored: bytes) -> Document:
    """A stored document."""
    revision, at, till = DOCUMENT.unpack_from(stored)
    return Document(
        kind=kind,
        name=name,
        value=stored[DOCUMENT.size :],
        revision=int(revision),
        changed_at=at,
        expires_at=till or None,
    )


def read_note(stored: bytes) -> Note:
    """A stored note; ValueError if it is none."""
    number, at, value = stored.split(US, 2)
    return Note(number=int(number), at=float(at), value=value)
