-- move: a task from one state to another, and every count that hangs on it.
--
-- The twin of the first half of memory/shard.py. Reads KEYS[1], no ARGV. Returns nothing by itself.
-- @share deadlines
-- @each
deadlines = timed('deadlines')
-- @end

-- What waits without standing in a line: see lib/asleep.
local SLEEPS = { true, true, false, false, true }

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
  if task.size > LARGE_BODY then -- what there is to know of it is known without reading its message
    changed[task.id], task.recorded = task, true
    if state == QUEUED and task.due == 0 then task.due = now end
  end
  t[COUNT + state] = t[COUNT + state] + 1
  q.counts[state] = q.counts[state] + 1
  if state < COMPLETED then t[LIVE_BYTES] = t[LIVE_BYTES] + bytes_of(task) end
  t[CHANGED], q.changed = true, true
  stats.count(t, ENQUEUED, 1)
  if WAITS[state] then count_waiting(q) end
  if SLEEPS[state] then asleep.add(task) end
  return t
end

function move(task, to)
  local t = tenant_of(task)
  local q, from = t[QUEUE], task.state
  task.state = to
  changed[task.id] = task
  t[CHANGED], q.changed = true, true
  if from == QUEUED and special(task) then t[SPECIAL] = t[SPECIAL] - 1 end
  task.recorded = true
  t[COUNT + from] = t[COUNT + from] - 1
  t[COUNT + to] = t[COUNT + to] + 1
  q.counts[from] = q.counts[from] - 1
  q.counts[to] = q.counts[to] + 1
  if to >= COMPLETED then t[LIVE_BYTES] = t[LIVE_BYTES] - bytes_of(task)
  elseif from >= COMPLETED then t[LIVE_BYTES] = t[LIVE_BYTES] + bytes_of(task) end
  if WAITS[to] then
    if not WAITS[from] then count_waiting(q) end
  elseif q.warned == 1 and depth(q) < q.warn then
    q.warned = 0
  end
  if SLEEPS[to] then asleep.add(task)
  elseif SLEEPS[from] then asleep.take(task, from) end
  return t
end
