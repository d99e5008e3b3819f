"""Taking over what dead processes left below a root."""

from __future__ import annotations

import logging
from pathlib import Path

from fairlead.spool.journal import Journal
from fairlead.spool.process_folder import ProcessFolder, owner_of
from fairlead.spool.records import SpoolLimits
from fairlead.spool.recovery import Newer, Quarantine, found_bytes, recover

_log = logging.getLogger(__name__)

_told: set[tuple[object, ...]] = set()


def adopt(
    home: ProcessFolder,
    work: Journal,
    rejected: Journal,
    quarantine: Quarantine,
    limits: SpoolLimits,
    *,
    any_broker: bool = False,
) -> int:
    """Move the segments of dead processes here, as far as there is room; return the records.

    Those for another broker stay where they are, unless ``any_broker`` is given.

    Each folder is locked meanwhile, so that one process gets it. If this process dies on the way,
    each segment is in one of the two folders, and the next one takes both. A folder that cannot be
    taken holds up no other. Raises ``SpoolFailed`` if there is no place to take them to.
    """
    count = 0
    for name in home.others():
        with home.claimed(name) as folder:
            if folder is None:
                continue
            try:
                meant = owner_of(folder).broker
                if meant != home.broker and not any_broker and found_bytes(folder):
                    _tell("a spool for another broker (%s) is left alone: %s", meant, folder)
                elif _fits(folder, work, limits):
                    count += _take(folder, work, rejected, quarantine)
                    home.remove(name)
            except Newer:
                _tell("a spool of a later version of Fairlead is left alone: %s", folder)
            except OSError as error:
                _tell("a spool cannot be adopted (%s): %s", error.strerror, folder)
    home.sweep()
    return count


def _tell(text: str, *about: object) -> None:
    """Log a warning, once in the life of the process."""
    if (text, *about) not in _told:
        _told.add((text, *about))
        _log.warning(text, *about)


def _fits(folder: Path, work: Journal, limits: SpoolLimits) -> bool:
    """Return whether half of the room stays free, so that this process can go on appending."""
    if work.depth == 0:
        return True
    is_crowded = work.depth > limits.max_count // 2
    return not is_crowded and work.size + found_bytes(folder) <= limits.max_bytes // 2


def _take(folder: Path, work: Journal, rejected: Journal, quarantine: Quarantine) -> int:
    tasks = recover(folder, work.stream, quarantine)
    others = recover(folder, rejected.stream, quarantine)
    links = [link for found in (*others, *tasks) for link in found.links]
    rejected.take([found.segment for found in others], [])
    count = work.take([found.segment for found in tasks], links)
    if tasks or others:
        _log.info("adopted %d records of a spool whose process has ended", count)
    return count
