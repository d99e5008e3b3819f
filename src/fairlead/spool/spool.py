"""The spool of one process."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fairlead.model.errors import InvalidOption, TooLarge
from fairlead.model.spool_errors import SpoolFailed, SpoolFull
from fairlead.runtime import native_threads
from fairlead.runtime.process_hooks import at_fork
from fairlead.spool import files
from fairlead.spool.adoption import adopt
from fairlead.spool.clock import Clock, since_boot
from fairlead.spool.committer import Committer, Request
from fairlead.spool.inspection import stored
from fairlead.spool.journal import Journal
from fairlead.spool.process_folder import ProcessFolder
from fairlead.spool.record_reader import Stored
from fairlead.spool.records import Entry, Kind, Record, Rejection, SpoolLimits, SpoolStats
from fairlead.spool.recovery import Quarantine
from fairlead.spool.writer import Draft, size_of

try:
    import fcntl
except ImportError:  # Windows, which has no lock that ends with its process
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

_READ = 4 * 1024 * 1024  # bytes that pending() returns at most
_LARGEST = 256 * 1024 * 1024  # bytes of a payload
_EXPIRED = 4096  # records that become rejected at a time
_APPENDED = frozenset({Kind.SUBMISSION, Kind.OUTCOME, Kind.LOCAL_STARTED, Kind.LOCAL_DONE})
_LOCAL = frozenset({Kind.LOCAL_STARTED, Kind.LOCAL_DONE})

_open: weakref.WeakSet[Spool] = weakref.WeakSet()
_warned: set[Path] = set()


class Spool:
    """Records of this process, in a folder of its own below a root that processes share.

    Every thread and every loop of the process may use it. A forked child that uses it gets a folder
    of its own, and starts with nothing in it.
    """

    def __init__(self, root: Path, limits: SpoolLimits, clock: Clock, broker: str) -> None:
        self._root, self._limits, self._clock, self._broker = root, limits, clock, broker
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        """Have nothing, and nothing in common with a parent that was forked."""
        limits = self._limits
        self._home = ProcessFolder(self._root, self._broker)
        self._quarantine = Quarantine(self._home.quarantine)
        self._work = Journal(
            "work",
            self._home,
            self._quarantine,
            self._clock,
            crowded=limits.max_bytes // 2,
            full=limits.max_bytes // 8,
        )
        self._rejected = Journal(
            "rejected",
            self._home,
            self._quarantine,
            self._clock,
            crowded=limits.max_bytes // 8,
            full=max(limits.max_bytes // 32, 64 * 1024),
        )
        self._committer = Committer(self._work.append, self._release)
        self._lock = native_threads.new_lock()
        self._expiring = native_threads.new_lock()
        self._adopting = native_threads.new_lock()
        self._count = self._size = 0  # of requests that are not written yet
        self._adopted = 0
        self._is_closed = False

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        limits: SpoolLimits | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = since_boot,
        broker: str = "",
    ) -> Spool:
        """Return a spool below a root. Nothing is on the disk before the first append.

        Logs a warning, once, if the root is on a file system that does not survive a restart of
        the machine or container. ``clock`` tells unix seconds, ``steady`` those since the machine
        started. ``broker`` names the one that is to
        get the records, without a password: ``adopt`` takes what is for the same one only.
        """
        if fcntl is None:
            raise SpoolFailed("a spool needs a system with flock, such as Linux or macOS")
        root = Path(root).absolute()
        if root not in _warned and (type_ := files.volatile(root)) is not None:
            _warned.add(root)
            _log.warning(
                "the spool is on a file system that is gone after a restart (%s): %s", type_, root
            )
        return cls(root, limits or SpoolLimits(), Clock(clock, steady), broker)

    def append(self, entries: Sequence[Entry]) -> list[int]:
        """Write entries and return their sequences, once all of them are on the disk.

        All or none are taken. Blocks; threads that call at once share one fdatasync.

        Raises:
            SpoolFull: They do not fit; nothing was written.
            SpoolFailed: The disk did not take them; none of them counts as accepted.
        """
        if not entries:
            return []
        request = self._submit(entries, None)
        if native_threads.are_threads_patched():
            native_threads.wait_as_greenlet(request.waiter)
        sequences: list[int] = request.waiter.result()
        return sequences

    async def aappend(self, entries: Sequence[Entry]) -> list[int]:
        """Do as ``append`` does, without blocking the loop.

        If the caller is cancelled, the entries may be written all the same.
        """
        if not entries:
            return []
        request = self._submit(entries, asyncio.get_running_loop())
        sequences: list[int] = await request.waiter
        return sequences

    def _submit(self, entries: Sequence[Entry], loop: asyncio.AbstractEventLoop | None) -> Request:
        at = self._clock.steady()
        drafts = [self._draft(entry, at) for entry in entries]
        size = sum(map(size_of, drafts))
        # What is about a record that is in already is taken even if the spool is full.
        count = sum(draft.kind not in _LOCAL for draft in drafts)
        limits = self._limits
        with self._lock:
            if count:
                if self._work.depth + self._count + count > limits.max_count:
                    raise SpoolFull(limits.max_count, "max_count")
                if self._work.size + self._size + size > limits.max_bytes:
                    raise SpoolFull(limits.max_bytes, "max_bytes")
            self._count += count
            self._size += size
        try:
            request = Request(drafts, count, size, loop)
            self._committer.submit(request)
        except BaseException:
            self._release(count, size)
            raise
        return request

    def _draft(self, entry: Entry, at: float) -> Draft:
        if entry.kind not in _APPENDED:
            raise InvalidOption("kind", entry.kind.name, "one that can be appended")
        if len(entry.payload) > _LARGEST:
            raise TooLarge("a record for the spool", len(entry.payload), _LARGEST)
        if entry.kind not in _LOCAL:
            return Draft(entry.kind, entry.payload, at)
        about = self._work.reference(entry.about)
        if about is None:
            raise InvalidOption("about", entry.about, "the sequence of a pending submission")
        return Draft(entry.kind, entry.payload, at, about)

    def _release(self, count: int, size: int) -> None:
        with self._lock:
            self._count -= count
            self._size -= size

    def pending(self, after: int = 0, limit: int = 256) -> list[Record]:
        """Return what is not confirmed, by growing sequence, from behind ``after``.

        At most ``limit`` records, and as many as fit into 4 MiB, but one at least. Kinds are
        SUBMISSION (``started`` says if it runs here), OUTCOME and LOCAL_DONE, which stands for
        the submission that it is about: that one is not pending any more. Reads from the disk, so
        it blocks. What is older than ``max_age`` becomes rejected first.
        """
        age = self._limits.max_age
        self._expire(age)
        while True:
            stored = self._work.read(after, limit, _READ, age)
            records = self._readable(self._work, stored)
            if records or not stored:
                return records
            after = stored[-1].sequence

    def _readable(self, journal: Journal, stored: Sequence[Stored]) -> list[Record]:
        """Return records; put those aside that were damaged since they were written."""
        found = []
        for each in stored:
            if each.kind is None:
                name = self._home.path / f"{journal.stream}-record"
                self._quarantine.keep(name, each.sequence, each.payload)
                journal.confirm([each.sequence])
            else:
                found.append(
                    Record(each.sequence, each.kind, each.payload, each.at, each.is_started)
                )
        return found

    def _expire(self, age: float) -> None:
        """Make rejected records of what is too old, and delete rejected ones that are."""
        if self._expiring.acquire(blocking=False):
            try:
                old = self._readable(self._work, self._work.older(age, _EXPIRED, _READ))
                self._reject([(record.sequence, self._too_old(record)) for record in old])
            finally:
                self._expiring.release()
        if old_rejected := self._rejected.older(age, _EXPIRED, _READ):
            self._rejected.confirm(each.sequence for each in old_rejected)

    def _too_old(self, record: Record) -> bytes:
        message = f"it was in the spool for more than {self._limits.max_age:g} s"
        return Rejection("too_old", message, record.kind, record.payload, record.at).encode()

    def confirm(self, sequences: Iterable[int]) -> None:
        """Take records off, in any order; unknown ones and those that are off are passed over.

        Appends a checkpoint without fdatasync (after a crash of the machine some may be pending
        again: draining is idempotent), and removes files that are confirmed whole. Never fails
        because of the disk. Blocks for a moment; longer if half of the room is used, and a file
        with little left in it is written anew.
        """
        self._work.confirm(sequences)

    def reject(self, sequence: int, payload: bytes) -> None:
        """Keep a record as one that the broker will never take, and confirm it.

        The payload is that of ``Rejection.encode``. It is on the disk when this returns, and kept
        until it is ``max_age`` old or deleted. Raises ``SpoolFailed`` if it cannot be written; the
        record is pending then as before.
        """
        self._reject([(sequence, payload)])

    def _reject(self, found: Sequence[tuple[int, bytes]]) -> None:
        at = self._clock.steady()
        drafts = [
            Draft(Kind.REJECTED, payload, at, about)
            for sequence, payload in found
            if (about := self._work.reference(sequence)) is not None
        ]
        if drafts:
            self._rejected.append(drafts)
            self._work.confirm(sequence for sequence, _ in found)
            self._shed()

    def _shed(self) -> None:
        """Keep rejected records to a quarter of the room: the files with the oldest go."""
        while self._rejected.size > self._limits.max_bytes // 4:
            oldest = self._rejected.oldest_file()
            before = self._rejected.size
            self._rejected.confirm(oldest)
            if self._rejected.size >= before:
                return
            _log.error("%d rejected records of the spool are deleted to make room", len(oldest))

    def rejected(self, limit: int = 100, *, after: int = 0) -> list[Record]:
        """Return the oldest rejected records behind ``after``, in a numbering of their own."""
        stored = self._rejected.read(after, limit, _READ, math.inf)
        return self._readable(self._rejected, stored)

    def forget(self, sequences: Iterable[int]) -> None:
        """Delete rejected records, by the sequences that ``rejected`` gave them."""
        self._rejected.confirm(sequences)

    def adopt(self, *, any_broker: bool = False) -> int:
        """Take over what dead processes left for the same broker; return the number of records.

        With ``any_broker``, for whichever. Their records get new sequences here and keep their
        times. A folder whose owner lives is never touched. Folders that would fill more than half
        of this spool are left, unless it is empty, and so are those that cannot be read, with a
        warning. Blocks, for some seconds for each million records. Raises ``SpoolFailed`` if there
        is no place to take them to.
        """
        with self._adopting:
            if self._is_closed:
                return 0
            count = adopt(
                self._home,
                self._work,
                self._rejected,
                self._quarantine,
                self._limits,
                any_broker=any_broker,
            )
            self._adopted += count
            return count

    def pending_of_others(self) -> Iterator[Record]:
        """Iterate over what is not confirmed in the folders of other processes, dead or alive.

        What is adopted meanwhile may be missed. Reads all of it from the disk, so it blocks.
        """
        for name in self._home.others():
            yield from stored(self._root, name)

    @property
    def root(self) -> Path:
        """The directory below which processes have their folders."""
        return self._root

    @property
    def depth(self) -> int:
        """The number of records that are not confirmed. Costs nothing."""
        return self._work.depth

    @property
    def has_links(self) -> bool:
        """Whether there ever was a record here about another one: it runs here, is done, ..."""
        return self._work.has_links

    def stats(self) -> SpoolStats:
        """Return what the spool holds. Does not read from the disk."""
        return SpoolStats(
            depth=self._work.depth,
            bytes=self._work.size + self._rejected.size,
            oldest_at=self._work.oldest,
            rejected=self._rejected.depth,
            quarantined=self._quarantine.count,
            adopted=self._adopted,
        )

    def close(self) -> None:
        """Let go of the folder, or remove it if it is empty; calls that wait are finished first.

        What is left in it can be adopted. A second close does nothing. A disk that hangs is waited
        for for some seconds; the folder is let go of by the end of the process then.
        """
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        if not self._committer.close():
            _log.error("the disk of the spool does not answer; what it was given is in doubt")
            return
        with self._adopting:
            is_empty = all([self._work.close(), self._rejected.close()])
            self._home.close(is_empty=is_empty)

    def _leave(self) -> None:
        """In a forked child: close what is the parent's, and begin anew."""
        self._work.leave()
        self._rejected.leave()
        self._home.leave()
        was_closed = self._is_closed
        self._begin()
        self._is_closed = was_closed


def _after_fork() -> None:
    for spool in list(_open):
        spool._leave()


at_fork(after_in_child=_after_fork)
