-- flows: what is known of some flows.
--
-- ARGV     clock, ids
-- Returns  for each its record (flow.flows), nil if it is unknown or not committed yet
-- @reads
-- @library upkeep
-- @include engine call.keep_clock
keep_clock()
local found = {}
for i = 2, #ARGV do
  local flow = flows.find(ARGV[i])
  found[i - 1] = flow and flow.phase > STAGED and call('HGET', prefix .. 'flows', flow.id) or false
end
return found
