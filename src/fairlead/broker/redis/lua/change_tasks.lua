-- change_tasks: cancel, requeue or delete tasks, let them run now or in another level.
--
-- ARGV     clock, incarnation, number; three for each order: id, action (c, r, d; n: run; p and a level; with
--          '@' and state, generation, attempts by '.': only if it still stands like this), tenant or ''
-- Returns  by RS: d done, r requested, n unchanged, u unknown, l not looked at: a later call may; and the state it has now, or 0
-- @flags allow-oom
-- @library upkeep
-- @include engine settle.cancel call.once
local kept = once('alter', tostring)
if kept then return kept end
local ids, answers = {}, {}
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
if #ids > 0 then load_tasks(ids) tie.load(ids) end

local function requeue(task)
  if task.state ~= DEAD then return 'n' .. task.state end
  shelves.take(task)
  if task.fields.flow then flows.count(task.fields, DEAD, -1) end
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
  shelves.forget(task)
  return 'd0'
end

local function run(task)
  if task.state ~= SCHEDULED and task.state ~= RETRYING then return 'n' .. task.state end
  task.due = min(task.due, now)
  queue_up(task)
  emit('queued', task, 'run')
  return 'd3'
end

-- The record says the level, and the number of moves tells the entry from those that it leaves behind. The message stays
-- as it was accepted: by it duplicates are known.
-- MAX_MOVES of broker/requests.py times MOVED: a byte has room for it beside the unique hold.
-- @const MOST_MOVED=252
local LEVELS = { 'critical', 'high', 'normal', 'low', 'level-4', 'level-5', 'level-6', 'level-7' } -- model/message.py
local function prioritize(task, level)
  if not WAITS[task.state] or task.fields.level == level or task.moved >= MOST_MOVED then return 'n' .. task.state end
  local was_special, tenant = special(task), tenant_of(task)
  task.head = string.gsub(task.head, '^([^\31]*\31[^\31]*\31)%d', '%1' .. level)
  task.fields, task.moved = parsed(task.head), task.moved + MOVED
  if task.state == QUEUED then
    task.due = stats.since(task)
    if was_special then tenant[SPECIAL] = tenant[SPECIAL] - 1 end
    task.recorded = true
    enter_level(task, tenant)
    leave.note_gaps(tenant)
  end
  task.recorded, changed[task.id] = true, task
  emit('prioritized', task, LEVELS[level + 1])
  return 'd' .. task.state
end

local actions = { c = cancel_task, r = requeue, d = delete, n = run, p = prioritize }
for place, id in ipairs(ids) do
  local arg = 4 + 3 * (place - 1)
  local task = find_task(id)
  local action, seen = match(ARGV[arg + 1], '^([^@]*)@?(.*)$')
  local _, _, buried = tombs.find(not task and action == 'd' and id or '')
  if place > 1 and enough() then
    answers[place] = 'l0'
  elseif buried and (ARGV[arg + 2] == '' or ARGV[arg + 2] == buried) then
    tombs.remove(buried, id)
    answers[place] = 'd0'
  elseif not task or (ARGV[arg + 2] ~= '' and ARGV[arg + 2] ~= task.fields.tenant) then
    answers[place] = 'u0'
  elseif seen ~= '' and seen ~= concat({ task.state, task.generation, task.attempts }, '.') then
    answers[place] = 'n' .. task.state
  else
    answers[place] = actions[sub(action, 1, 1)](task, tonumber(sub(action, 2)))
  end
end
follow_up()
return answer(concat(answers, '\30'), ids)
