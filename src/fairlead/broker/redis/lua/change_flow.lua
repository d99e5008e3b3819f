-- change_flow: cancel a flow as a whole, or retry its failed part.
--
-- ARGV     clock, incarnation, number; the flow, action (c, r), tenant or ''
-- Returns  '' if there is no such flow; else by RS: time, count, more
-- @flags allow-oom
-- @library upkeep
-- @include engine call.once accept.duplicate accept.store flow_members.see_to
local kept = once('alterflow', tostring)
if kept then return kept end
local flow, work, count = flows.find(ARGV[4]), ARGV[5] == 'c' and CANCEL or RETRY, 0
if not flow or (ARGV[6] ~= '' and ARGV[6] ~= flow.tenant) then return answer('') end
if flow.phase == STAGED then
  if work == CANCEL then
    count = call('LLEN', prefix .. 'flow:' .. flow.id)
    flows.unstage(flow)
  end
elseif flow.work > 0 then -- it comes after that
  flow.next = flow.work ~= work and work or 0
  flows.touch(flow)
elseif work == CANCEL and flows.state(flow) == RUNNING or work == RETRY and flow[DEAD] + flow[CANCELLED] > 0 then
  flows.begin(flow, work)
  count = flows.see_to(flow)
  follow_up()
end
return answer(concat({ exact(now), count, flow.work > 0 and 1 or 0 }, '\30'))
