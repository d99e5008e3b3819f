"""Decides, and is pure: no I/O, clock or randomness; whatever a rule needs is an argument.

Start with ``lifecycle``, what follows from an outcome, and ``message``, what a task is.
"""
