-- locate: whether this shard knows some tasks, and who runs them.
--
-- ARGV     clock, ids
-- Returns  three for each: its state, 0 if it is unknown; while it runs, token and incarnation
-- @reads
-- @include call.split call.plan sorted_index.agenda task.record task.tasks call.keep_clock
keep_clock()
local ids, found = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
for i = 1, #ids, 1000 do load_tasks({ unpack(ids, i, min(i + 999, #ids)) }) end
for i, id in ipairs(ids) do
  local task, behind = find_task(id), 3 * (i - 1)
  local runs = task and task.state == RUNNING
  found[behind + 1] = task and task.state or 0
  found[behind + 2], found[behind + 3] = runs and format('%.0f', task.token) or '0', runs and task.incarnation or ''
end
return found
