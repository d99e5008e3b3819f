-- move: a task from one state to another, and every count that hangs on it.
--
-- The twin of the first half of memory/shard.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share due deadlines
-- @each
due, deadlines = agenda('due'), agenda('deadlines')
-- @end

-- What waits without standing in a line, so that a purge finds it.
local SLEEPS = { true, true, false, false, true }
local function asleep(task) return agenda('asleep:' .. task.h.queue .. ':' .. task.h.tenant) end

function count_waiting(q)
  if q.warn >= 0 and depth(q) >= q.warn and q.warned == 0 then
    q.warned = 1
    row('warned', 0, q.name, '', 0, 0, format('%d tasks wait', depth(q)), '')
  end
end

-- Let a new task into the shard, in its first state.
function admit(task, state)
  local t = tenant_of(task)
  local q = t[QUEUE]
  task.state = state
  t[COUNT + state] = t[COUNT + state] + 1
  q.counts[state] = q.counts[state] + 1
  t[CHANGED], q.changed = true, true
  if WAITS[state] then count_waiting(q) end
  if SLEEPS[state] then set_at(asleep(task), task.id, 0) end
  return t
end

function move(task, to)
  local t = tenant_of(task)
  local q, from = t[QUEUE], task.state
  task.state = to
  changed[task.id] = task
  t[CHANGED], q.changed = true, true
  if from == QUEUED and task.recorded then t[SPECIAL] = t[SPECIAL] - 1 end
  task.recorded = true
  t[COUNT + from] = t[COUNT + from] - 1
  t[COUNT + to] = t[COUNT + to] + 1
  q.counts[from] = q.counts[from] - 1
  q.counts[to] = q.counts[to] + 1
  if WAITS[to] then
    if not WAITS[from] then count_waiting(q) end
  elseif q.warned == 1 and depth(q) < q.warn then
    q.warned = 0
  end
  if SLEEPS[to] then set_at(asleep(task), task.id, 0)
  elseif SLEEPS[from] then drop(asleep(task), task.id) end
  return t
end

-- Watch the deadline of a waiting task: at that very moment it may still start.
function must_start(task)
  if task.deadline > 0 then
    local _, exponent = math.frexp(task.deadline)
    set_at(deadlines, task.id, task.deadline + 2 ^ (exponent - 53))
  end
end

-- A task went into a line: its tenant is among the runnable ones now, if nothing is against it.
function made_queued(t)
  if t[STATUS] == READY then
    rung[t[QUEUE].name] = t[QUEUE]
  elseif t[STATUS] == IDLE then
    if t[PAUSE] == 1 then t[STATUS] = PAUSED else make_ready(t) end
  elseif t[STATUS] == AT_LIMITER then
    make_ready(t) -- it may be the new head of the line, and need no room there
  end
end

function enter_level(task, t, front)
  if task.recorded then t[SPECIAL] = t[SPECIAL] + 1 end
  push(t, task.h.level, entry_of(task), front)
  made_queued(t)
end

function queue_up(task, front)
  if task.state == RUNNING then must_start(task) end
  local t = move(task, QUEUED)
  task.due = 0
  enter_level(task, t, front)
end

function schedule(task, to, at)
  if task.state == RUNNING then must_start(task) end
  move(task, to)
  task.due = at
  set_at(due, task.id, at)
end
