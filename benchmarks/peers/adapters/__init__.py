"""One file for each peer: its tasks, how they are enqueued, and how its worker is started."""
