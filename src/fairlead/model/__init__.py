"""What is decided: pure, with no I/O, clock or randomness."""

__all__: tuple[str, ...] = ()
