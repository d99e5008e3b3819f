"""Programs for those who work on Fairlead itself; no part of the package."""
