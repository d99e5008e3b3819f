"""Documents and trails in memory: what is kept of them, and the steps of their verbs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from fairlead.broker.documents import (
    MAX_DOCUMENTS,
    MAX_NOTES,
    MAX_TRAIL_BYTES,
    MAX_TRAILS,
    Document,
    DocumentChange,
    DocumentChanged,
    DocumentPage,
    Note,
    too_many_trails,
)
from fairlead.broker.memory.time_index import TimeIndex
from fairlead.broker.requests import MAX_BYTES
from fairlead.model.clock import next_number


class Documents:
    """By kind and name. Those whose time is over are there until tidy comes, and seen by nobody."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, Document]] = {}
        self.ends: dict[str, TimeIndex[str]] = {}  # by kind

    def change(self, change: DocumentChange, token: int, now: float) -> DocumentChanged:
        """Carry out one change; ``token`` is the revision that it gets if it writes."""
        stored = self._live(change.kind, change.name, now)
        revision = 0 if stored is None else stored.revision
        if change.revision not in (None, revision):
            return DocumentChanged(code="stale", revision=revision)
        if change.value is None:
            if stored is not None:
                self._remove(change.kind, change.name)
            return DocumentChanged(code="done")
        if stored is None and self._is_full(change.kind, now):
            return DocumentChanged(code="full")
        till = None if change.ttl is None else now + change.ttl
        self._remove(change.kind, change.name)
        self.kinds.setdefault(change.kind, {})[change.name] = Document(
            kind=change.kind,
            name=change.name,
            value=change.value,
            revision=token,
            changed_at=now,
            expires_at=till,
        )
        if till is not None:
            self.ends.setdefault(change.kind, TimeIndex()).set(change.name, till)
        return DocumentChanged(code="done", revision=token)

    def page(
        self,
        kind: str,
        names: Sequence[str] | None,
        cursor: str | None,
        limit: int,
        now: float,
    ) -> DocumentPage:
        """The documents of these names, or the next of all."""
        known = self.kinds.get(kind, {})
        if names is not None:
            found = [self._live(kind, name, now) for name in sorted(set(names))]
            return DocumentPage(now=now, documents=[each for each in found if each is not None])
        live = [known[n] for n in sorted(known) if _is_live(known[n], now)]
        behind = [each for each in live if cursor is None or each.name > cursor]
        page: list[Document] = []
        size = 0
        for document in islice(behind, limit):
            if size >= MAX_BYTES:
                break
            page.append(document)
            size += len(document.value)
        more = len(page) < len(behind)
        return DocumentPage(now=now, documents=page, cursor=page[-1].name if more else None)

    def expire(self, most: int, now: float) -> int:
        """Forget up to so many whose time is over; how many."""
        done = 0
        for kind in list(self.ends):
            while done < most and (name := self.ends[kind].pop_due(now)) is not None:
                self._remove(kind, name)
                done += 1
                if kind not in self.ends:
                    break
        return done

    def _live(self, kind: str, name: str, now: float) -> Document | None:
        found = self.kinds.get(kind, {}).get(name)
        return found if found is not None and _is_live(found, now) else None

    def _is_full(self, kind: str, now: float) -> bool:
        known = self.kinds.get(kind, {})
        if len(known) < MAX_DOCUMENTS:
            return False
        return sum(_is_live(each, now) for each in known.values()) >= MAX_DOCUMENTS

    def _remove(self, kind: str, name: str) -> None:
        known, ends = self.kinds.get(kind), self.ends.get(kind)
        if known is not None:
            known.pop(name, None)
            if not known:
                del self.kinds[kind]
        if ends is not None:
            ends.discard(name)
            if not len(ends):
                del self.ends[kind]


def _is_live(document: Document, now: float) -> bool:
    return document.expires_at is None or document.expires_at > now


class Trail:
    """The last notes, and what their values come to."""

    def __init__(self) -> None:
        self.notes: deque[Note] = deque()
        self.bytes = 0

    def append(self, note: Note) -> None:
        """Add one; the oldest go."""
        self.notes.append(note)
        self.bytes += len(note.value)
        while len(self.notes) > MAX_NOTES or self.bytes > MAX_TRAIL_BYTES:
            self.bytes -= len(self.notes.popleft().value)


class Trails:
    """By name."""

    def __init__(self) -> None:
        self.named: dict[str, Trail] = {}

    def append(self, trail: str, values: Sequence[bytes], token: int, now: float) -> int:
        """Add notes behind the number ``token``; the number of the last."""
        if not values:
            return token
        if trail not in self.named and len(self.named) >= MAX_TRAILS:
            raise too_many_trails()
        kept = self.named.setdefault(trail, Trail())
        for value in values:
            token = next_number(token, now)
            kept.append(Note(number=token, at=now, value=value))
        return token

    def read(self, trail: str, before: int | None, limit: int) -> list[Note]:
        """The latest first."""
        return list(islice(self._back(trail, before), limit))

    def _back(self, trail: str, before: int | None) -> Iterator[Note]:
        notes = self.named[trail].notes if trail in self.named else ()
        return (note for note in reversed(notes) if before is None or note.number < before)
