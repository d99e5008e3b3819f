"""Documents and notes as the scripts read and write them; ``lua/lib/documents`` says how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Literal

from fairlead.broker.documents import Document, DocumentChange, DocumentChanged, Note
from fairlead.broker.redis.stored import RS
from fairlead.broker.redis.wire import Value

__all__ = ("FORM", "changed", "document", "document_args", "documents", "note")

FORM = Struct("<ddd")  # revision, changed at, expires at (0: never); then the value
_CODES: dict[bytes, Literal["done", "stale", "full"]] = {b"d": "done", b"s": "stale", b"f": "full"}


def document_args(changes: Iterable[DocumentChange]) -> list[Value]:
    """Six for each change."""
    args: list[Value] = []
    for change in changes:
        args += (change.kind, change.name, "d" if change.value is None else "w")
        args.append(change.value or b"")
        args.append("" if change.ttl is None else repr(change.ttl))
        args.append("" if change.revision is None else change.revision)
    return args


def changed(reply: bytes) -> list[DocumentChanged]:
    """What became of each change."""
    return [
        DocumentChanged(code=_CODES[text[:1]], revision=int(text[1:]))
        for text in (reply.split(RS) if reply else [])
    ]


def documents(kind: str, told: Sequence[Any]) -> list[Document]:
    """Those that a script told of: names, and what is stored."""
    return [
        document(kind, name.decode(), stored)
        for name, stored in zip(told[::2], told[1::2], strict=True)
    ]


def document(kind: str, name: str, stored: bytes) -> Document:
    """A stored document."""
    revision, at, till = FORM.unpack_from(stored)
    return Document(
        kind=kind,
        name=name,
        value=stored[FORM.size :],
        revision=int(revision),
        changed_at=at,
        expires_at=till or None,
    )


def note(stored: bytes) -> Note:
    """A stored note; ValueError if it is none."""
    number, at, value = stored.split(b"\x1f", 2)
    return Note(number=int(number), at=float(at), value=value)
