"""The facade: the only package that joins client and worker."""

from fairlead.app.decorator import TaskDecorator
from fairlead.app.facade import Fairlead
from fairlead.app.startup import create_queue

__all__ = ("Fairlead", "TaskDecorator", "create_queue")
