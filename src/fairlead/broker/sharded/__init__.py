"""One broker over several shards; ``broker`` says what holds between them and what does not."""

from fairlead.broker.sharded.broker import ShardedBroker
from fairlead.broker.sharded.post import Post

__all__ = ("Post", "ShardedBroker")
