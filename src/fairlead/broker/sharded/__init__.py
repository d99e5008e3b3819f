"""One broker over several shards, which routes, splits and joins calls.

Begin with ``broker`` and ``session`` (calls to several); docs/internals/shards.md says what holds
between shards.
"""

from fairlead.broker.sharded.broker import ShardedBroker
from fairlead.broker.sharded.shard_store import ShardStore

__all__ = ("ShardStore", "ShardedBroker")
