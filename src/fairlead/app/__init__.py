"""The facade: the only package that joins client and worker."""

from fairlead.app.decorator import TaskDecorator
from fairlead.app.facade import Fairlead

__all__ = ("Fairlead", "TaskDecorator")
