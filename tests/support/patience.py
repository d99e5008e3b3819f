"""A server that is killed is noticed at once; one that is slow, on a busy machine, is not away."""

from __future__ import annotations

import msgspec

from fairlead import Fairlead

__all__ = ("patient",)

_SILENCE = 15.0  # seconds


def patient(app: Fairlead) -> None:
    """Have an app wait longer for a broker that is connected and says nothing."""
    fallback = app._clients.fallback
    if fallback is not None:
        fallback.options = msgspec.structs.replace(fallback.options, silence=_SILENCE)
