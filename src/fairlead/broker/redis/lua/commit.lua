-- commit: make a flow that was written real, by one write of its record; and begin to lay it out.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; the flow
-- Returns  by US: c committed, d another incarnation did, n unknown, i incomplete and the queue that misses members
-- @library upkeep
-- @include engine
-- @include once
-- @include accept
-- @include admit
-- @include see_to
local kept = once('commit', tostring)
if kept then return kept end
local f = flows.find(ARGV[4])
if f and f.phase > STAGED then return answer(f.writer == CALLER and 'c' or 'd') end
if not f or f.writer ~= CALLER then return answer('n') end
for _, share in ipairs(flows.shares(f)) do
  if share.left > 0 then
    flows.unstage(f)
    return answer('i' .. SEP .. share.queue)
  end
end
f.phase, f.committed, f.shares = LAYING, now, ''
-- Ids that Fairlead makes are never used twice; of any other, members of earlier flows may be left.
if #f.id ~= 32 or find(f.id, ':', 1, true) then
  f.life = next_life()
end
drop(flows.stages, f.id)
write('UNLINK', P .. 'staged:' .. f.id)
row('flow_committed', 0, '', f.tenant, 0, 0, '', f.id)
flows.begin(f, LAY)
flows.see_to()
follow_up()
return answer('c')
