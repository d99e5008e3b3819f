"""The queue manager: sends what the ledger has to the broker, and records what becomes of it.

Any number of managers may run. One of them leads, by a lease at the broker; the others stand by.
``leader`` holds the leadership, ``dispatcher``, ``recorder``, ``janitor`` and ``auditor`` are what
it does meanwhile. Start with ``manager``, which runs them.
"""

from fairlead.manager.manager import Manager

__all__ = ("Manager",)
