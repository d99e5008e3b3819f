"""Folders of spools as dead processes leave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fairlead.spool import Entry, Kind, Spool

OWNER = "0" * 31 + "1"


def submissions(*payloads: bytes) -> list[Entry]:
    return [Entry(Kind.SUBMISSION, payload) for payload in payloads]


def payloads(spool: Spool) -> list[bytes]:
    """All that is pending, in pieces of a few."""
    found: list[bytes] = []
    after = 0
    while records := spool.pending(after, 7):
        found += [record.payload for record in records]
        after = records[-1].sequence
    return found


def folder_of(root: Path) -> Path:
    """The one folder of a process below a root."""
    (folder,) = (path for path in root.iterdir() if len(path.name) == 32)
    return folder


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("*/work-*.segment"))


def left_behind(root: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Make the folder of a process that is gone, with these files in it."""
    folder = root / OWNER
    folder.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    (folder / "lock").touch(0o600)
    for name, data in files:
        (folder / name).write_bytes(data)
    return folder


def written(root: Path, groups: Sequence[Sequence[bytes]]) -> Path:
    """Write groups of payloads, each with one append; return the segment, of a closed spool."""
    spool = Spool.open(root)
    for group in groups:
        spool.append(submissions(*group))
    spool.close()
    return segments(root)[0]
