"""Images that take processor time: each in a process of its own, with limits."""
