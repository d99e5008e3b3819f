"""Decides, and is pure: no I/O, clock or randomness; whatever a rule needs is an argument.

Start with ``lifecycle``, which state may follow which, ``retries``, what follows an attempt, and
``message``, what a task is.
"""
