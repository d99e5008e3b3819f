-- outbox: the oldest of what other shards have to be told.
--
-- ARGV     how many entries are wanted for each shard, names of shards
-- Returns  for each shard its entries, in order; see dependency_release.post
-- @flags no-writes
local found = {}
for i = 2, #ARGV do
  found[i - 1] = redis.call('LRANGE', KEYS[1] .. 'outbox:' .. ARGV[i], 0, ARGV[1] - 1)
end
return found
