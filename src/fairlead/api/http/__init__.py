"""HTTP itself: from a connection to a route and back. Start with `server`, then `route`."""

from __future__ import annotations
