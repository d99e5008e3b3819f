"""Documents and trails: small things that processes share beside tasks. Brokers never read them.

A document is the latest state of something: a token, a catalog, the place of a reader. A trail is
a log of the latest notes, such as who changed what. Kinds and trails are named by programs, not by
users: there are few of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from fairlead.broker.requests import MAX_PAGE, MAX_STEP, Call
from fairlead.model.errors import InvalidOption, Refused, TooLarge
from fairlead.model.names import check_key

MAX_DOCUMENT = 64 * 1024  # bytes of one document, or of one note
MAX_DOCUMENTS = 10_000  # of one kind
MAX_NOTES = 10_000  # that a trail keeps
MAX_TRAIL_BYTES = 4 * 1024 * 1024  # and how much of them
MAX_TRAILS = 100


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document as it is stored. The revision grows with every change, and never comes again."""

    kind: str
    name: str
    value: bytes
    revision: int
    changed_at: float
    expires_at: float | None = None


class DocumentChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with one document."""

    kind: str
    name: str
    value: bytes | None  # None deletes it
    ttl: float | None = None  # seconds; None: it stays
    revision: int | None = None  # only if it has this one; 0: only if there is none; None: always


class DocumentChanged(msgspec.Struct, frozen=True, kw_only=True):
    """``done``; ``stale``: it has another revision; ``full``: there are too many of its kind."""

    code: Literal["done", "stale", "full"]
    revision: int = 0  # the one that is stored now, 0 if there is none


class DocumentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the documents of a kind, by name; ``cursor`` is None at the end."""

    now: float
    documents: list[Document] = []
    cursor: str | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a trail. Numbers grow, and never come again."""

    number: int
    at: float
    value: bytes


class DocumentVerbs(Protocol):
    """What a store of tasks does for documents and trails."""

    async def write_documents(
        self, call: Call, changes: Sequence[DocumentChange], *, now: float | None = None
    ) -> list[DocumentChanged]:
        """Write or delete up to 50 documents of at most 64 KiB each.

        A change that names a revision is ``stale`` if the document has another one, or is gone; 0
        stands for none. Each write gives it a new revision, and a TTL of its own or none. A kind
        holds 10,000 documents; one more is ``full``. What is past its TTL is gone for everybody at
        once, and makes room. To delete what is not there is ``done``.
        """
        ...

    async def documents(
        self,
        kind: str,
        names: Sequence[str] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> DocumentPage:
        """The documents of these names, or a page of all of a kind, by name.

        Unknown names are left out. A page may have less than ``limit``, even none, and not be the
        last: it ends when 4 MiB were read. A document that is there from the first page to the last
        is listed once.
        """
        ...

    async def note(
        self, call: Call, trail: str, values: Sequence[bytes], *, now: float | None = None
    ) -> None:
        """Append up to 50 notes of at most 64 KiB each to a trail.

        It keeps its last 10,000 notes and 4 MiB of them; the oldest go. There may be 100 trails,
        the first note of one more is refused.
        """
        ...

    async def notes(
        self,
        trail: str,
        *,
        before: int | None = None,
        limit: int = 100,
        now: float | None = None,
    ) -> list[Note]:
        """Notes of a trail, the latest first; with ``before`` those with lower numbers only."""
        ...


def check_document_changes(changes: Sequence[DocumentChange]) -> None:
    """Refuse what cannot be written."""
    if len(changes) > MAX_STEP:
        raise TooLarge("the batch", len(changes), MAX_STEP, "documents")
    for change in changes:
        check_key("kind", change.kind)
        check_key("document", change.name)
        if change.value is not None and len(change.value) > MAX_DOCUMENT:
            raise TooLarge(f"document {change.name!r}", len(change.value), MAX_DOCUMENT)
        if change.ttl is not None and not 0.0 < change.ttl < math.inf:  # false for NaN as well
            raise InvalidOption("ttl", change.ttl, "a number of seconds above 0")
        if change.revision is not None and change.revision < 0:
            raise InvalidOption("revision", change.revision, "zero or more")


def check_document_page(
    kind: str, names: Sequence[str] | None, cursor: str | None, limit: int
) -> None:
    """Refuse a read that is too long, or of what cannot be."""
    check_key("kind", kind)
    if names is not None and len(names) > MAX_PAGE:
        raise TooLarge("the read", len(names), MAX_PAGE, "documents")
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidOption("limit", limit, f"from 1 to {MAX_PAGE}")
    for name in (*(names or ()), *(() if cursor is None else (cursor,))):
        check_key("document", name)


def check_trail(trail: str, before: int | None = None, limit: int = 1) -> None:
    """Refuse a trail without a name, or a page of it that is too long."""
    check_key("trail", trail)
    if before is not None and before < 0:
        raise InvalidOption("before", before, "zero or more")
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidOption("limit", limit, f"from 1 to {MAX_PAGE}")


def check_notes(trail: str, values: Sequence[bytes]) -> None:
    """Refuse notes that no trail can keep."""
    check_trail(trail)
    if len(values) > MAX_STEP:
        raise TooLarge("the batch", len(values), MAX_STEP, "notes")
    for value in values:
        if len(value) > MAX_DOCUMENT:
            raise TooLarge("a note", len(value), MAX_DOCUMENT)


def too_many_trails() -> Refused:
    """The error for the first note of one more trail."""
    return Refused("trails", f"there are {MAX_TRAILS} trails already, and they stay")
