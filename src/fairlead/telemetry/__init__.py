"""What a process says of itself."""

from __future__ import annotations

from fairlead.telemetry.log import configure

__all__ = ("configure",)
