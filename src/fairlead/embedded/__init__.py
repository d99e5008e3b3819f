"""Servers that come with Fairlead and start by themselves."""

from __future__ import annotations

from fairlead.embedded.endpoint import Endpoint
from fairlead.embedded.options import Options, parse_embedded
from fairlead.embedded.valkey import EmbeddedValkey

__all__ = ("EmbeddedValkey", "Endpoint", "Options", "parse_embedded")
