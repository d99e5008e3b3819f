-- members: ids of a flow's members in the order they were written.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, flow, how many to pass over, how many at most, '1' for their dependencies too
-- Returns  the ids; or two for each: id, and by GS its first dependencies as they were written
-- @reads
-- @library upkeep
-- @include engine
-- @include accept
-- @include admit
-- @include see_to
-- @include read
keep_clock()
local f, start, ids = flows.find(ARGV[2]), tonumber(ARGV[3]), {}
if not f or f.phase == STAGED then return ids end
-- While it is laid out, what is a task by now stands behind the rest.
local laid = f.phase == LAYING and min(f.place, f.total) or 0
local function add(from, to)
  if to < from then return end
  for _, each in ipairs(call('LRANGE', P .. 'flow:' .. f.id, from, to)) do
    local id, edges = flows.edges_of(each)
    ids[#ids + 1] = id
    if ARGV[5] then ids[#ids + 1] = edges end
  end
end
local last = min(start + tonumber(ARGV[4]), f.total) - 1
add(f.total - laid + start, f.total - laid + min(last, laid - 1))
add(max(start - laid, 0), last - laid)
return ids
