"""The folder of ``fairlead up``: one of them at a time uses it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from fairlead.cli.up.target import Target
from fairlead.embedded.directory import LockFile
from fairlead.model.errors import InvalidInput

_NAME = "up.lock"


@contextlib.contextmanager
def held(target: Target, listener: socket.socket) -> Iterator[None]:
    """Hold the folder while its servers are in use; a second `fairlead up` is told where to look.

    Nothing is held for a broker of somebody else: any number of them may use it.
    """
    if target.url is not None:
        yield
        return
    target.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = LockFile(target.folder / _NAME)
    try:
        if not lock.try_exclusive():
            said = os.pread(lock.fd, 256, 0).decode(errors="replace").strip()
            raise InvalidInput(
                f"`fairlead up` runs already on {str(target.folder)!r}"
                + (f": process {said}" if said else "")
                + "; end that one, or start this one in another folder"
            )
        host, port = listener.getsockname()[:2]
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, f"{os.getpid()}, page at http://{host}:{port}".encode(), 0)
        yield
    finally:
        lock.close()
