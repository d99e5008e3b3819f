"""The shard's own numbers: one packed field of ``meta``, as ``lua/lib/base`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

__all__ = ("FIELD", "NUMBERS", "pack_numbers", "unpack_numbers")

FIELD = "numbers"

#: In their order. A later layout may put more behind them.
NUMBERS = (
    *("now", "ahead", "token", "letters", "entry", "entries", "bytes", "life", "edges", "jobs"),
    *("sweep", "guard", "alarm", "settings", "next", "laying", "flows_kept", "members_kept"),
    *("unpins", "aside", "orphans", "tombs", "reserved"),
)

_FORM = Struct(f"<{len(NUMBERS)}d")


def unpack_numbers(stored: bytes | None) -> dict[str, float]:
    """Return the numbers by name, zeros if nothing is stored; raises ``ValueError``."""
    if stored is None:
        return dict.fromkeys(NUMBERS, 0.0)
    if len(stored) < _FORM.size:
        raise ValueError(f"{len(stored)} bytes are no numbers of a shard")
    return dict(zip(NUMBERS, _FORM.unpack_from(stored), strict=True))


def pack_numbers(numbers: Mapping[str, float]) -> bytes:
    """Return what the server stores of these numbers."""
    return _FORM.pack(*(numbers[name] for name in NUMBERS))
