"""A broker that lives in this process."""

from fairlead.broker.memory.broker import MemoryBroker

__all__ = ("MemoryBroker",)
