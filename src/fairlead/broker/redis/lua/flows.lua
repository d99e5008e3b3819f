-- flows: what is known of some flows.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, ids
-- Returns  for each its record (lib/flows), nil if it is unknown or not committed yet
-- @reads
-- @library upkeep
-- @include engine
-- @include read
keep_clock()
local found = {}
for i = 2, #ARGV do
  local f = flows.find(ARGV[i])
  found[i - 1] = f and f.phase > STAGED and call('HGET', P .. 'flows', f.id) or false
end
return found
