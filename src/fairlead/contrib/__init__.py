"""Fairlead inside of web frameworks. Each module needs the framework that it is named for."""

__all__ = ()
