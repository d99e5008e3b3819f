"""Commands of `manage.py`."""

__all__ = ()
