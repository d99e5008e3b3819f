-- commit: make a flow that was written real, by one write of its record; and begin to lay it out.
--
-- ARGV     clock, incarnation, number; the flow
-- Returns  by US: c committed, d another incarnation did, n unknown, i incomplete and the queue that misses members
-- @library upkeep
-- @include engine call.once accept.duplicate accept.store flow_members.see_to
local kept = once('commit', tostring)
if kept then return kept end
local flow = flows.find(ARGV[4])
if flow and flow.phase > STAGED then return answer(flow.writer == CALLER and 'c' or 'd') end
if not flow or flow.writer ~= CALLER then return answer('n') end
for _, share in ipairs(flows.shares(flow)) do
  if share.left > 0 then
    flows.unstage(flow)
    return answer('i' .. SEP .. share.queue)
  end
end
flow.phase, flow.committed, flow.shares = LAYING, now, ''
-- Ids that Fairlead makes are never used twice; of any other, members of earlier flows may be left.
if #flow.id ~= 32 or find(flow.id, ':', 1, true) then
  flow.life = next_life()
end
drop(flows.stages, flow.id)
write('UNLINK', prefix .. 'staged:' .. flow.id)
row('flow_committed', 0, '', flow.tenant, 0, 0, '', flow.id)
flows.begin(flow, LAY)
flows.see_to()
follow_up()
return answer('c')
