-- alter: cancel, requeue or delete tasks.
--
-- KEYS[1]  prefix of the shard
-- ARGV     clock, incarnation, number; three for each order: id, action (c, r, d), tenant or ''
-- Returns  by RS: d done, r requested, n unchanged, u unknown; and the state it has now, or 0
-- @flags allow-oom
-- @library upkeep
-- @include engine
-- @include cancel
-- @include once
local kept = once('alter', tostring)
if kept then return kept end
local ids, answers = {}, {}
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
if #ids > 0 then load_tasks(ids) load_ties(ids) end

local function requeue(task)
  if task.state ~= DEAD then return 'n' .. task.state end
  shelves.take(task)
  if task.h.flow then flows.count(task.h, DEAD, -1) end
  task.generation = task.generation + 1
  task.attempts, task.crashes, task.unroutable, task.finished, task.deadline = 0, 0, 0, 0, 0
  task.reason, task.cancelling, task.popped = '', false, nil
  queue_up(task)
  pins.retake(task)
  emit('requeued', task)
  return 'd3'
end

local function delete(task)
  if task.state < COMPLETED then return 'n' .. task.state end
  emit('deleted', task)
  forget(task)
  return 'd0'
end

local actions = { c = cancel_task, r = requeue, d = delete }
for n, id in ipairs(ids) do
  local i = 4 + 3 * (n - 1)
  local task = find_task(id)
  local _, _, buried = tombs.find(not task and ARGV[i + 1] == 'd' and id or '')
  if buried and (ARGV[i + 2] == '' or ARGV[i + 2] == buried) then
    tombs.remove(buried, id)
    answers[n] = 'd0'
  elseif not task or (ARGV[i + 2] ~= '' and ARGV[i + 2] ~= task.h.tenant) then
    answers[n] = 'u0'
  else
    answers[n] = actions[ARGV[i + 1]](task)
  end
end
follow_up()
return answer(concat(answers, '\30'), ids)
