"""A crawler that is polite to each host, and gives those a rest that fail."""
