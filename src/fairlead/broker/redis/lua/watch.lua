-- watch: answer at once for final and unknown tasks and flows; mail follows for the others.
--
-- ARGV     clock, incarnation, ids
-- Returns  a digit for each: its state, 0 if it is unknown
-- @flags allow-oom
-- @library upkeep
-- @include engine
local ids, states = {}, {}
for i = 3, #ARGV do ids[i - 2] = ARGV[i] end
for i = 1, #ids, 1000 do load_tasks({ unpack(ids, i, min(i + 999, #ids)) }) end
for i, id in ipairs(ids) do
  local task = find_task(id)
  local flow = not task and flows.find(id)
  states[i] = task and task.state or 0
  if task and task.state < COMPLETED then tie.add_watcher(id, ARGV[2]) end
  if flow and flow.phase > STAGED then
    states[i] = flows.state(flow)
    if states[i] == RUNNING then tie.add_watcher('\30' .. id, ARGV[2]) end
  end
end
leases.keep_incarnation(ARGV[2])
return conclude() or concat(states)
