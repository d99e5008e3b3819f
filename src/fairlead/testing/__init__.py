"""A kit for the tests of programs that use Fairlead; with pytest its fixtures are there by name.

Start with ``kit``. ``clock`` stands still until a test moves it, ``crashes`` kills workers.
"""

from fairlead.app.drain import Drained, Left
from fairlead.testing.clock import ManualClock
from fairlead.testing.context import RecordingContext
from fairlead.testing.crashes import Crash
from fairlead.testing.enqueued import EnqueuedTask
from fairlead.testing.kit import Kit

__all__ = (
    "Crash",
    "Drained",
    "EnqueuedTask",
    "Kit",
    "Left",
    "ManualClock",
    "RecordingContext",
)
