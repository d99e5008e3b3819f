"""Tools for event loops, threads and processes that know nothing of tasks.

Begin with ``batcher.py`` (group commits), ``portal.py`` (the loop behind sync code) and
``component.py`` (parts of a process that run until it stops).
"""
