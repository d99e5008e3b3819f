"""What goes wrong between Fairlead and the spool, which takes tasks while the broker is away.

    BrokerError
    └── Refused
        ├── SpoolFull       the spool is at a limit; nothing was written, nothing older was dropped
        └── SpoolFailed     the disk did not take it; nothing was acknowledged

Messages hold neither payloads nor the content of records.
"""

from __future__ import annotations

from fairlead.model.errors import Refused


class SpoolFull(Refused):
    """The broker is away, and the spool is at the limit that ``setting`` names.

    ``setting`` is ``max_bytes`` or ``max_count``.
    """

    def __init__(self, limit: int, setting: str) -> None:
        unit = "bytes" if setting == "max_bytes" else "records"
        super().__init__(
            "spool_full", f"the broker is away and the spool is full ({setting}: {limit} {unit})"
        )
        self.limit, self.setting = limit, setting


class SpoolFailed(Refused):
    """The broker is away, and the spool cannot write either: nothing was acknowledged."""

    def __init__(self, message: str) -> None:
        super().__init__("spool_failed", message)
