"""Orders and their bills: a task that exists if and only if the order does."""
