"""What a database holds, put back as often as a test wants it, inside of the server: a moment."""

from __future__ import annotations

from typing import Any

import redis

__all__ = ("Copy",)

_APART = 15  # the database of the copy
_COPY = """
local from, to = ARGV[1], ARGV[2]
redis.call('SELECT', to)
redis.call('FLUSHDB')
redis.call('SELECT', from)
for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', to) end
"""
# The keys that look different in the two, or are in one only. What a server keeps in no order may
# look different and be the same.
_DIFFERING = """
local function look(database)
  local found = {}
  redis.call('SELECT', database)
  for _, key in ipairs(redis.call('KEYS', '*')) do found[key] = redis.call('DUMP', key) end
  return found
end
local one, other, keys = look(ARGV[1]), look(ARGV[2]), {}
for key, value in pairs(one) do if other[key] ~= value then keys[#keys + 1] = key end end
for key in pairs(other) do if not one[key] then keys[#keys + 1] = key end end
return keys
"""


class Copy:
    """All keys of a server's first database, as they were at one moment."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._run = client.register_script(_COPY)
        self._compare = client.register_script(_DIFFERING)

    def take(self) -> None:
        """Keep what the database holds now."""
        self._run(args=[0, _APART])

    def restore(self) -> None:
        """Make the database what it was when the copy was taken."""
        self._run(args=[_APART, 0])

    def differing(self) -> list[bytes]:
        """Return the keys that are not as they were in the copy."""
        keys = [bytes(key) for key in self._compare(args=[0, _APART])]
        digests = [_digests(self._client, keys, database) for database in (0, _APART)]
        return sorted(key for key, *found in zip(keys, *digests, strict=True) if len({*found}) > 1)


def _digests(client: redis.Redis, keys: list[bytes], database: int) -> list[bytes]:
    """What each key holds, whatever the order in which the server keeps it."""
    if not keys:
        return []
    line: Any = client.pipeline(transaction=False)
    line.execute_command("SELECT", database)
    line.execute_command("DEBUG", "DIGEST-VALUE", *keys)
    line.execute_command("SELECT", 0)
    found: list[bytes] = line.execute()[1]
    return found
