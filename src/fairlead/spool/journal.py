"""One stream of records in the folder of a process: appended in groups, taken off in any order.

Three locks: ``_writing`` around the file that is appended to, held while the disk works;
``_confirming`` around the checkpoints and the removal of files; ``_lock`` around what is known in
memory, held for moments only. A thread waits for them in this order only.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from fairlead.runtime import native_threads
from fairlead.spool import files
from fairlead.spool.clock import Clock
from fairlead.spool.frames import Reference, scan
from fairlead.spool.process_folder import ProcessFolder, failure
from fairlead.spool.record_reader import Stored, Where, read_records
from fairlead.spool.records import Kind
from fairlead.spool.recovery import Link, Quarantine, rewrite, state_of
from fairlead.spool.segment import AWAITED, Segment, segment_name
from fairlead.spool.writer import Draft, Writer, size_of

_log = logging.getLogger(__name__)

_SEGMENT = 16 * 1024 * 1024  # bytes, from which a new file is begun
_LEAST = 4096  # the same, however small the spool is
_WORTHLESS = 1024 * 1024  # bytes of the file that is appended to, from which an empty one goes

_Dropped = dict[Segment, list[int]]  # the places of records


class Journal:
    """The segments of one stream. Every thread may call it."""

    def __init__(
        self,
        stream: str,
        home: ProcessFolder,
        quarantine: Quarantine,
        clock: Clock,
        *,
        crowded: int,
        full: int,
    ) -> None:
        """Begin a new file at ``full`` bytes, and write sparse ones anew at ``crowded`` of all."""
        self.stream = stream
        self.depth = 0  # pending records
        self._home, self._quarantine, self._clock = home, quarantine, clock
        self._crowded = crowded
        # What is confirmed in the file that is appended to takes room: it must be a small part.
        self._full = min(max(full, _LEAST), _SEGMENT)
        self._worthless = min(_WORTHLESS, self._full // 4)
        self._writing, self._confirming = native_threads.new_lock(), native_threads.new_lock()
        self._lock = native_threads.new_lock()
        self._segments: list[Segment] = []  # by their first sequence
        self._writer: Writer | None = None
        self._next = 1
        self._started: dict[int, int] = {}  # a submission, and the LOCAL_STARTED about it
        self.has_links = False
        self._is_marking_ill = False

    @property
    def size(self) -> int:
        """The bytes of the segments on the disk."""
        return sum(segment.size for segment in list(self._segments))

    @property
    def oldest(self) -> float | None:
        """When the oldest pending record was appended, unix seconds."""
        with self._lock:
            times = [segment.oldest for segment in self._segments]
        return min((time for time in times if time is not None), default=None)

    # --- appending -------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft]) -> range:
        """Write records and return their sequences once they are on the disk.

        Raises ``SpoolFailed``: none of them is stored, and the file is not written to again.
        """
        with self._writing:
            writer = self._room(sum(map(size_of, drafts)))
            sequences = range(self._next, self._next + len(drafts))
            self._next = sequences.stop
            try:
                frames = writer.append(sequences.start, drafts)
            except BaseException as error:
                self._writer = None
                writer.distrust(sequences)
                if isinstance(error, OSError):
                    raise failure(writer.segment.path.parent, error) from error
                raise
            segment = writer.segment
            with self._lock:
                if len(segment) == 0:
                    self._segments.append(segment)
                for frame in frames:
                    segment.add(frame, state_of(frame.kind))
                self.depth += sum(draft.kind is not Kind.LOCAL_STARTED for draft in drafts)
        links = [
            Link(draft.kind, draft.about, Reference(segment.header.owner, sequence))
            for sequence, draft in zip(sequences, drafts, strict=True)
            if draft.about is not None and draft.kind is not Kind.REJECTED
        ]
        if links:
            with self._confirming:
                with self._lock:
                    dropped = self._apply(links)
                self._settle(dropped)
        return sequences

    def _room(self, size: int) -> Writer:
        """Return the file to append to; a new one if the last is full, or there is none."""
        writer = self._writer
        if writer is not None and writer.has_room(size, self._full):
            return writer
        self._seal()
        folder = self._home.folder()
        path = folder / segment_name(self.stream, self._next)
        try:
            self._writer = Writer(path, self._home.owner, self._next, self._clock)
        except OSError as error:
            raise failure(folder, error) from error
        return self._writer

    def _seal(self) -> None:
        """Let no more be appended to the last file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            if len(writer.segment) == 0:
                writer.segment.remove()

    def _is_open(self, segment: Segment) -> bool:
        writer = self._writer
        return writer is not None and writer.segment is segment

    # --- taking off ------------------------------------------------------------------------

    def confirm(self, sequences: Iterable[int]) -> None:
        """Take records off, write that down, and remove the files that nobody needs any more."""
        sequences = list(sequences)
        with self._confirming:
            with self._lock:
                dropped = self._drop(sequences)
            self._settle(dropped)

    def _drop(self, sequences: Iterable[int]) -> _Dropped:
        """Take records off in memory; return where they were. The caller has two locks."""
        dropped: _Dropped = {}
        for sequence in sequences:
            for each in (sequence, self._started.pop(sequence, None)):
                segment, place = self._find(each)
                if segment is not None:
                    is_awaited = segment.state(place) == AWAITED
                    if segment.drop(place):
                        self.depth -= is_awaited
                        dropped.setdefault(segment, []).append(place)
        return dropped

    def _settle(self, dropped: _Dropped) -> None:
        """Write down what was taken off, and clean up."""
        for segment, places in dropped.items():
            if segment.live or self._is_open(segment):
                self._mark(segment, places)
        self._clean()

    def _mark(self, segment: Segment, places: list[int]) -> None:
        try:
            segment.mark(places)
            self._is_marking_ill = False
        except OSError as error:
            if not self._is_marking_ill:
                _log.warning(
                    "the spool cannot write down what is confirmed (%s); after a restart it is "
                    "sent again",
                    error.strerror,
                )
            self._is_marking_ill = True

    def _clean(self) -> None:
        """Remove segments that are confirmed whole; write a sparse one anew if room is short."""
        if self._is_idle() and self._writing.acquire(blocking=False):  # nobody appends to it now
            try:
                if self._is_idle():
                    self._seal()
            finally:
                self._writing.release()
        with self._lock:
            gone = {s for s in self._segments if not s.live and not self._is_open(s)}
            self._segments = [segment for segment in self._segments if segment not in gone]
        try:
            if gone and self.has_links:  # marks that rest on a record that goes now
                for segment in self._segments:
                    segment.sync_marks()
            for segment in gone:
                segment.remove()
            if self.size > self._crowded:
                self._compact()
        except OSError as error:
            _log.warning("the spool cannot remove what is confirmed: %s", error.strerror)

    def _is_idle(self) -> bool:
        writer = self._writer
        if writer is None or writer.segment.live:
            return False
        return writer.segment.size > self._worthless

    def _compact(self) -> None:
        """Write the sparsest segment anew, without what is confirmed."""
        rest = [s for s in self._segments if not self._is_open(s) and 4 * s.live_bytes < s.size]
        old = min(rest, key=lambda segment: segment.live_bytes, default=None)
        if old is None:
            return
        data = files.read(old.path)
        places = {frame.sequence: frame for frame in scan(old.header, data).frames}
        kept = [place for place in range(len(old)) if old.state(place)]
        frames = [places[old.reference(place).sequence] for place in kept]
        fresh = Segment(old.path, old.header, old.base)
        for place, frame in zip(kept, rewrite(old.path, old.header, data, frames), strict=True):
            fresh.add(frame, old.state(place))
        with self._lock:
            self._segments[self._segments.index(old)] = fresh
        fresh.marks.unlink(missing_ok=True)

    # --- reading ---------------------------------------------------------------------------

    def read(self, after: int, limit: int, size: int, age: float) -> list[Stored]:
        """Return pending records behind a sequence that are not older than ``age`` seconds.

        At most ``limit`` of them, and ``size`` bytes, but one at least.
        """
        places = (
            (segment, place)
            for segment in self._segments
            for since in (self._clock.before(segment.header, age),)
            for place in segment.awaited(after)
            if segment.time(place) >= since
        )
        return self._read(islice(_fitting(places, size), limit))

    def older(self, age: float, limit: int, size: int) -> list[Stored]:
        """Return pending records that are older than ``age``; as many as ``read`` would."""
        places = (
            (segment, place)
            for segment in self._segments
            for place in segment.older(self._clock.before(segment.header, age))
        )
        return self._read(islice(_fitting(places, size), limit))

    def _read(self, places: Iterator[tuple[Segment, int]]) -> list[Stored]:
        """Read records, from files that are opened before others can remove or replace them."""
        opened: dict[Segment, int] = {}
        try:
            with self._lock:
                wanted = []
                for segment, place in places:
                    if segment not in opened:
                        opened[segment] = _open(segment)
                    sequence = segment.sequence(place)
                    where = (*segment.extent(place), sequence in self._started)
                    wanted.append(Where(opened[segment], segment.header, sequence, *where))
            for segment, fd in opened.items():
                if fd < 0:
                    self._lose(segment)
            return read_records(where for where in wanted if where.fd >= 0)
        finally:
            for fd in opened.values():
                if fd >= 0:
                    os.close(fd)

    def reference(self, sequence: int) -> Reference | None:
        """Return what names a pending record for ever; None if it is not pending."""
        with self._lock:
            segment, place = self._find(sequence)
            if segment is None or segment.state(place) != AWAITED:
                return None
            return segment.reference(place)

    def oldest_file(self) -> list[int]:
        """Return the sequences of the pending records of the first segment."""
        with self._lock:
            return [s.sequence(place) for s in self._segments[:1] for place in s.awaited(0)]

    def _find(self, sequence: int | None) -> tuple[Segment | None, int]:
        if sequence is None:
            return None, 0
        at = bisect_right(self._segments, sequence, key=lambda segment: segment.base) - 1
        if at >= 0:
            segment = self._segments[at]
            place = segment.find(sequence)
            if place is not None:
                return segment, place
        return None, 0

    def _lose(self, segment: Segment) -> None:
        """Forget a segment whose file somebody removed."""
        with self._confirming, self._lock:
            if segment in self._segments and not self._is_open(segment):
                self._segments.remove(segment)
                self.depth -= segment.count_awaited()
                self._quarantine.lose(segment.path, segment.count_awaited())

    # --- taking over -----------------------------------------------------------------------

    def take(self, found: Sequence[Segment], links: Sequence[Link]) -> int:
        """Move segments of a dead process here; return the number of pending records.

        Each is in one of the two folders at any moment, with its checkpoints. Raises ``OSError``.
        """
        moved: list[Segment] = []
        with self._writing:
            self._seal()  # so that sequences grow from one segment to the next
            try:
                for segment in found:
                    if segment.live:
                        self._move(segment, self._home.folder())
                        moved.append(segment)
            finally:
                with self._confirming:
                    with self._lock:
                        before = self.depth
                        self._segments += moved
                        self.depth += sum(segment.count_awaited() for segment in moved)
                        dropped = self._apply(links)
                        count = self.depth - before
                    self._settle(dropped)
        return count

    def _move(self, segment: Segment, folder: Path) -> None:
        path = folder / segment_name(self.stream, self._next)
        marks = segment.marks
        if marks.exists():
            files.replace(path.with_suffix(".marks"), [files.read(marks)])
        segment.path.rename(path)
        files.sync_folder(folder)
        files.sync_folder(marks.parent)
        segment.path, segment.base = path, self._next
        self._next = segment.next

    def _apply(self, links: Sequence[Link]) -> _Dropped:
        """Do what records say about others: one runs here, is done here, or was rejected."""
        over = []
        for kind, about, own in links:
            self.has_links = True
            target = self._referred(about)
            if kind is not Kind.LOCAL_STARTED:
                over.append(target)
            elif target is not None and self._is_awaited(target):
                self._started[target] = self._referred(own) or 0
            else:
                over.append(self._referred(own))
        return self._drop(sequence for sequence in over if sequence is not None)

    def _referred(self, reference: Reference) -> int | None:
        found = (segment.referred(reference) for segment in self._segments)
        return next((sequence for sequence in found if sequence is not None), None)

    def _is_awaited(self, sequence: int) -> bool:
        segment, place = self._find(sequence)
        return segment is not None and segment.state(place) == AWAITED

    def close(self) -> bool:
        """Let go of all files; return whether nothing is in them that anybody needs."""
        with self._writing, self._confirming, self._lock:
            self._seal()
            segments, self._segments, self.depth = self._segments, [], 0
            return not any(segment.live for segment in segments)

    def leave(self) -> None:
        """In a forked child: close the parent's file."""
        if self._writer is not None:
            self._writer.close()


def _fitting(places: Iterable[tuple[Segment, int]], size: int) -> Iterator[tuple[Segment, int]]:
    """Iterate until so many bytes are reached."""
    for segment, place in places:
        yield segment, place
        start, end = segment.extent(place)
        size -= end - start
        if size <= 0:
            return


def _open(segment: Segment) -> int:
    """Open the file of a segment to read; -1 if it is gone."""
    try:
        return os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
