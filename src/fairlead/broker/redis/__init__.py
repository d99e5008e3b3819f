"""The broker on a Redis or Valkey server: a verb is a function there, and Python packs and unpacks.

Begin with ``broker`` (the verbs) and ``session`` (a call); ``layout`` says what is stored.
"""

from fairlead.broker.redis.broker import RedisBroker

__all__ = ("RedisBroker",)
