"""Servers that come with Fairlead and start by themselves."""

from __future__ import annotations

from fairlead.embedded.endpoint import Endpoint
from fairlead.embedded.options import SCHEME, Options, parse_embedded
from fairlead.embedded.server import find_binary
from fairlead.embedded.valkey import EmbeddedValkey

__all__ = ("SCHEME", "EmbeddedValkey", "Endpoint", "Options", "find_binary", "parse_embedded")
