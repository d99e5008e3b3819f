from __future__ import annotations

from hypothesis import settings

# One slow example on a busy machine is no bug; what hangs is ended by pytest's own timeout.
settings.register_profile("fairlead", deadline=None)
settings.load_profile("fairlead")
