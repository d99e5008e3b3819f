"""The app: the only package that joins client and worker.

``facade.py`` has the class ``Fairlead``, whose body lists every method and where it is written.
Begin there; ``backend.py`` finds broker and ledger, ``worker.py`` makes workers.
"""

from fairlead.app.decorator import TaskDecorator
from fairlead.app.facade import Fairlead
from fairlead.app.startup import create_queue

__all__ = ("Fairlead", "TaskDecorator", "create_queue")
