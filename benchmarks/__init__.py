"""Measurements that are not part of the wheel; `benchmarks/README.md` says what they are."""
