"""Runs one attempt: the handler on the loop, in a thread or in a process, up to its outcome.

Start with ``attempt``, which all kinds share, then ``executors``. ``context`` is what handlers see.
"""
