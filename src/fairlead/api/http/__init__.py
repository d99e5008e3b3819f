"""HTTP itself: from a connection to a route and back. Start with `server`, then `route`."""
