"""The broker that lives in this process, complete: for tests, and as the contract in plain Python.

Begin with ``broker`` (the verbs), then ``enqueue`` and ``exchange``; ``transitions`` moves tasks.
"""

from fairlead.broker.memory.broker import MemoryBroker

__all__ = ("MemoryBroker",)
