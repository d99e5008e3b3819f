"""Fairlead: a task queue that shares workers fairly between tenants."""

__all__: tuple[str, ...] = ()
