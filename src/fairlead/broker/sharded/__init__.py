"""One broker over several shards, which routes, splits and joins calls.

Begin with ``broker``, which says what holds between shards, and ``session`` (calls to several).
"""

from fairlead.broker.sharded.broker import ShardedBroker
from fairlead.broker.sharded.shard_store import ShardStore

__all__ = ("ShardStore", "ShardedBroker")
