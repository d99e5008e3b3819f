"""The consistency check of what is stored: start with ``audit``, then ``walk`` and ``tasks``."""
