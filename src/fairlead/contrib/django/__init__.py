"""Fairlead as a backend of Django's tasks: put it into INSTALLED_APPS for ``fairlead_worker``.

Start with ``backend``, which Django calls; ``worker`` is what workers import, ``runs`` runs tasks.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.contrib.django.backend import FairleadBackend

__all__ = ("FairleadBackend",)


def __getattr__(name: str) -> object:
    # Later: Django imports this package before its settings can be used.
    if name == "FairleadBackend":
        from fairlead.contrib.django.backend import FairleadBackend

        return FairleadBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
