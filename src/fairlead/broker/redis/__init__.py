"""The broker on a Redis or Valkey server."""

from __future__ import annotations

from fairlead.broker.redis.broker import RedisBroker

__all__ = ("RedisBroker",)
