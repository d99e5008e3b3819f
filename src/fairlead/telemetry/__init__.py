"""What a process says of itself: ``log`` its lines, ``metrics`` its figures, ``tracing`` its spans.

``counters`` counts what is enqueued and run, and ``metrics_table`` names every metric there is.
"""

from fairlead.telemetry.log import configure

__all__ = ("configure",)
