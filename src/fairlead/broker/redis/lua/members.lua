-- members: ids of a flow's members in the order they were written.
--
-- ARGV     clock, flow, how many to pass over, how many at most, '1' for their dependencies too
-- Returns  the ids; or two for each: id, and by GS its first dependencies as they were written
-- @reads
-- @library upkeep
-- @include engine accept.duplicate accept.store flow_members.see_to call.keep_clock
keep_clock()
local flow, start, ids = flows.find(ARGV[2]), tonumber(ARGV[3]), {}
if not flow or flow.phase == STAGED then return ids end
-- While it is laid out, what is a task by now stands behind the rest.
local laid = flow.phase == LAYING and min(flow.place, flow.total) or 0
local function add(from, to)
  if to < from then return end
  for _, each in ipairs(call('LRANGE', prefix .. 'flow:' .. flow.id, from, to)) do
    local id, edges = flows.edges_of(each)
    ids[#ids + 1] = id
    if ARGV[5] then ids[#ids + 1] = edges end
  end
end
local last = min(start + tonumber(ARGV[4]), flow.total) - 1
add(flow.total - laid + start, flow.total - laid + min(last, laid - 1))
add(max(start - laid, 0), last - laid)
return ids
