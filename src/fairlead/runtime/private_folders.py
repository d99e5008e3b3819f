"""Folders for this user alone, also below one that others may write to."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from fairlead.model.errors import Refused


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter, or refuse the one that is there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if check_private(folder) != 0o700:
        folder.chmod(0o700)


def check_private(folder: Path) -> int:
    """Refuse what is no folder, or another user's; the mode of one that is ours.

    Links are not followed: whoever made one here chose where it leads.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(
            "directory",
            f"there must be a directory at {str(folder)!r}, and something else is there; move it "
            "away, or choose another path",
        )
    if found.st_uid != os.geteuid():
        raise Refused(
            "permission",
            f"{str(folder)!r} belongs to another user (uid {found.st_uid}, and this process runs "
            f"as {os.geteuid()}); run it as that user, or choose another path",
        )
    return stat.S_IMODE(found.st_mode)
